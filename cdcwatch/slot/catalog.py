"""The watched table as PostgreSQL's catalog has it, or the reason why it can't be watched and what to do about that.

https://www.postgresql.org/docs/current/sql-altertable.html#SQL-ALTERTABLE-REPLICA-IDENTITY
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field
from msgspec.structs import replace
from psycopg.rows import class_row, dict_row

from cdcwatch.database import translated
from cdcwatch.errors import ConfigurationError, PreconditionError
from cdcwatch.queries import query
from cdcwatch.settings import alternatives
from cdcwatch.slot.encodings import codec
from cdcwatch.slot.partitions import Partition, require_whole
from cdcwatch.slot.zones import require_instants, require_zone
from cdcwatch.table import INTEGER_TYPES, ClaimStatuses, Column, WatchedTable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import psycopg

    from cdcwatch.settings import Settings, TableSettings

_NAME_PART = re.compile(r'"((?:[^"]|"")+)"|([^".]+)')
_MOST_NAME_PARTS = 2
_UNWATCHABLE_KINDS: Final = {
    "v": ("is a view", "watch the table under the view"),
    "m": ("is a materialized view", "watch the table under the view"),
    "f": ("is a foreign table", "run cdcwatch beside the database that holds the table"),
}
_UNWATCHABLE_PERSISTENCE: Final = {
    "t": ("is temporary: it is not in the WAL", "watch an ordinary table"),
    "u": ("is unlogged: it is not in the WAL", "ALTER TABLE {table} SET LOGGED"),
}


class MissingColumnError(PreconditionError):
    """The table has no column of a configured name: the stream can't be read on, and is not passed over."""


class _Relation(Struct, frozen=True):
    oid: int
    kind: str
    persistence: str
    identity: str
    sql_schema: str
    sql_name: str


class _CatalogColumn(Struct, frozen=True):
    name: str
    sql_name: str
    type: str
    base: str
    """Of a domain, the type that it comes down to; else empty."""
    time_kind: str
    """timestamptz, timestamp or date; empty for other types."""
    is_not_null: bool
    generated: str
    """Empty, s(tored) or v(irtual)."""
    others: tuple[str, ...] = ()
    """The configuration's other names for it."""


class _UniqueIndex(Struct, frozen=True):
    is_primary: bool
    is_identity: bool
    is_immediate: bool
    columns: list[str]


class TableFacts(Struct, frozen=True):
    """The watched table with what only checks and remedies need of it."""

    watched: WatchedTable
    sql_schema: str
    sql_name: str
    """Schema and name quoted by the server, for statements that people copy."""
    sql_columns: Mapping[str, str]
    """The same for every column."""
    identity_columns: frozenset[str]
    """The columns whose old values UPDATE and DELETE may log; all of them with REPLICA IDENTITY FULL."""
    primary_key: tuple[str, ...]
    generated: Mapping[str, str] = field(default_factory=dict)
    """Generated columns: s(tored) or v(irtual)."""
    partitions: tuple[Partition, ...] | None = None
    """The leaves of a partitioned table; None for an ordinary one."""
    nullable: frozenset[str] = frozenset()
    """The columns that may be NULL."""

    @property
    def is_identity_exact(self) -> bool:
        """Whether the stream tells the old deadline and status of every changed row."""
        watched = self.watched
        wanted = {watched.deadline.name} | ({watched.status.name} if watched.status else set())
        return wanted <= self.identity_columns

    def quoted(self, names: Iterable[str]) -> str:
        """Column names as an SQL list."""
        return ", ".join(self.sql_columns[name] for name in names)


def parse_table_name(text: str) -> tuple[str, str]:
    """`shop.orders` or `"My.Shop"."Or,der"` to schema and table; without a schema it is public.

    Unquoted parts fold to lower case as in SQL. ConfigurationError for anything else.
    """
    parts: list[str] = []
    place = 0
    while match := _NAME_PART.match(text, place):
        # The server folds ASCII only where the encoding has more than one byte a character.
        parts.append(match[1].replace('""', '"') if match[1] else _folded(match[2].strip()))
        place = match.end() + 1
        if text[match.end() : place] != ".":
            break
    if place != len(text) + 1 or not 1 <= len(parts) <= _MOST_NAME_PARTS or not all(parts):
        raise ConfigurationError(
            f"table.name {text!r} is not a table's name",
            remedy="write it as schema.table; double quotes around a part keep its case, dots and spaces",
        )
    return ("public", parts[0]) if len(parts) == 1 else (parts[0], parts[1])


def _folded(part: str) -> str:
    return "".join(character.lower() if character.isascii() else character for character in part)


def load_table(connection: psycopg.Connection[Any], settings: Settings) -> WatchedTable:
    """The watched table. PreconditionError when it isn't there, or can't be watched."""
    return read_table(connection, settings).watched


def read_table(connection: psycopg.Connection[Any], settings: Settings) -> TableFacts:
    """The watched table with its names as SQL and its replica identity. PreconditionError as `load_table`."""
    with translated():
        schema, name = parse_table_name(settings.table.name)
        relation = _relation(connection, schema, name)
        of_table = {"oid": relation.oid}
        with connection.cursor(row_factory=class_row(_CatalogColumn)) as cursor:
            columns = {row.name: row for row in cursor.execute(query("preflight", "columns"), of_table)}
        with connection.cursor(row_factory=class_row(_UniqueIndex)) as cursor:
            indexes = cursor.execute(query("preflight", "unique_indexes"), of_table).fetchall()
        leaves = None
        if relation.kind == "p":
            with connection.cursor(row_factory=class_row(Partition)) as cursor:
                leaves = tuple(cursor.execute(query("preflight", "partitions"), of_table))
        if settings.table.time_zone:
            require_zone(connection, settings.table.time_zone)
    facts = _watchable(schema, name, relation, columns, indexes, settings)
    if leaves is not None:
        # wal2json tells what was logged change by change; pgoutput speaks in the parent's name, and would be believed.
        speaks_for_all = settings.slot.plugin == "pgoutput"
        key = frozenset(column.name for column in facts.watched.key)
        promised = (relation.identity, facts.identity_columns) if speaks_for_all else ("d", key)
        require_whole(facts.sql_name, leaves, *promised)
        facts = replace(facts, watched=replace(facts.watched, leaves=tuple(part.leaf for part in leaves)))
    watched = replace(facts.watched, encoding=codec(connection.info.parameter_status("server_encoding") or ""))
    return replace(facts, watched=watched, partitions=leaves)


def _relation(connection: psycopg.Connection[Any], schema: str, name: str) -> _Relation:
    wanted = {"schema": schema, "name": name}
    with connection.cursor(row_factory=class_row(_Relation)) as cursor:
        relation = cursor.execute(query("preflight", "relation"), wanted).fetchone()
    if relation is None:
        with connection.cursor(row_factory=dict_row) as cursor:
            near = [row["sql_name"] for row in cursor.execute(query("preflight", "near_matches"), wanted)]
        raise PreconditionError(
            f"there is no table {schema}.{name} in database {connection.info.dbname}",
            remedy=f"set table.name to one of: {', '.join(near)} (quotes included)"
            if near
            else "name the table in table.name as schema.table, and its database in postgres.dsn",
        )
    reason = _UNWATCHABLE_KINDS.get(relation.kind) or _UNWATCHABLE_PERSISTENCE.get(relation.persistence)
    if reason is None and relation.kind not in {"r", "p"}:
        reason = ("is not a table", "name a table in table.name")
    if reason is not None:
        raise PreconditionError(f"{relation.sql_name} {reason[0]}", remedy=reason[1].format(table=relation.sql_name))
    return relation


def _watchable(
    schema: str,
    name: str,
    relation: _Relation,
    columns: Mapping[str, _CatalogColumn],
    indexes: Sequence[_UniqueIndex],
    settings: Settings,
) -> TableFacts:
    """Pure: what the catalog says, judged."""
    table, settled = relation.sql_name, settings.table
    _require_columns(table, settled, columns)
    primary = next((index for index in indexes if index.is_primary), None)
    key = _key(table, settled.key, primary, indexes, columns)
    deadline = _column(settled.deadline, columns)
    status = _column(settled.status, columns) if settled.status else None
    version = _column(settled.version, columns) if settled.version else None
    require_instants(table, deadline.sql_name, deadline.type, deadline.time_kind, settled.time_zone)
    if version is not None and version.type not in INTEGER_TYPES:
        raise PreconditionError(
            f"column {version.sql_name} of {table} is {version.type}: a version is a number that each change counts up",
            remedy='name an integer column in table.version, or set table.version = ""',
        )
    identity_columns = _identity_columns(table, relation, primary, indexes, columns)
    key_names = tuple(column.name for column in key)
    if not set(key_names) <= identity_columns:
        listed = ", ".join(column.sql_name for column in key)
        raise PreconditionError(
            f"the replica identity of {table} lacks key columns ({listed}): the stream could not say whose row changed",
            remedy=_identity_remedy(table, primary, key_names),
        )
    watched = WatchedTable(
        schema=schema,
        name=name,
        oid=relation.oid,
        key=tuple(_plain(column) for column in key),
        deadline=_plain(deadline),
        status=_plain(status) if status else None,
        version=_plain(version) if version else None,
        open=frozenset(settled.open) if status else frozenset(),
        closed_status=settings.close.status,
        identity=relation.identity,
        columns=tuple(_plain(column) for column in columns.values()),
        zone="" if deadline.time_kind == "timestamptz" else settled.time_zone,
        claim=_claim_statuses(settings) if status else None,
        deletes=settings.close.action == "delete",
    )
    facts = TableFacts(
        watched,
        relation.sql_schema,
        table,
        {column.name: column.sql_name for column in columns.values()},
        identity_columns,
        tuple(primary.columns) if primary else (),
        {column.name: column.generated for column in columns.values() if column.generated},
        nullable=frozenset(column.name for column in columns.values() if not column.is_not_null),
    )
    return replace(facts, watched=replace(watched, logs_old_rows=facts.is_identity_exact))


def _claim_statuses(settings: Settings) -> ClaimStatuses | None:
    claim = settings.close.claim
    return ClaimStatuses(claim.processing, claim.failed) if settings.close.action == "claim" else None


def _plain(column: _CatalogColumn) -> Column:
    return Column(column.name, column.type, column.base, column.others)


def _require_columns(table: str, settled: TableSettings, columns: Mapping[str, _CatalogColumn]) -> None:
    """MissingColumnError with every configured name that is no column."""
    configured = [("deadline", settled.deadline), ("status", settled.status), ("version", settled.version)]
    named = [(role, _names(text)) for role, text in [*(("key", name) for name in settled.key), *configured] if text]
    missing = [(role, names) for role, names in named if not set(names) & set(columns)]
    if not missing:
        return
    near = [[name for name in columns if name.lower() in {one.lower() for one in names}] for _, names in missing]
    candidates = dict.fromkeys(name for some in near for name in some) if all(near) else columns
    roles = list(dict.fromkeys(role for role, _ in missing))
    optional = "".join(f', or set table.{role} = ""' for role in roles if role in {"status", "version"})
    raise MissingColumnError(
        f"{table} has no column "
        + ", no column ".join(f"{' or '.join(map(repr, names))} (table.{role})" for role, names in missing),
        remedy=f"set {' and '.join(f'table.{role}' for role in roles)}"
        f" to {'one' if len(missing) == 1 else 'some'} of its columns: {', '.join(candidates)}{optional};"
        f' after a rename to both names, as "new_name|{missing[0][1][0]}"',
    )


def _names(text: str) -> tuple[str, ...]:
    return alternatives(text) or (text,)


def _column(text: str, columns: Mapping[str, _CatalogColumn]) -> _CatalogColumn:
    """A configured column, which is there: the first of several names that the table has."""
    names = _names(text)
    found = next(columns[name] for name in names if name in columns)
    return replace(found, others=tuple(name for name in names if name != found.name))


def _key(
    table: str,
    named: Sequence[str],
    primary: _UniqueIndex | None,
    indexes: Sequence[_UniqueIndex],
    columns: Mapping[str, _CatalogColumn],
) -> list[_CatalogColumn]:
    """The columns that tell orders apart, in the key's order."""
    if not named and primary is None:
        raise PreconditionError(
            f"{table} has no primary key: UPDATE and DELETE would not say which order they changed",
            remedy=f"ALTER TABLE {table} ADD PRIMARY KEY (…), or name unique columns in table.key",
        )
    key = [_column(name, columns) for name in named]
    if primary is not None and not named:
        key = [columns[name] for name in primary.columns]
    listed = ", ".join(column.sql_name for column in key)
    nullable = [column.sql_name for column in key if not column.is_not_null]
    if nullable:
        raise PreconditionError(
            f"key columns of {table} may be NULL: {', '.join(nullable)}",
            remedy="; ".join(f"ALTER TABLE {table} ALTER COLUMN {column} SET NOT NULL" for column in nullable),
        )
    arrays = [column.sql_name for column in key if (column.base or column.type).endswith("[]")]
    if arrays:
        raise PreconditionError(
            f"key columns of {table} are arrays: {', '.join(arrays)}",
            remedy="name other unique columns in table.key",
        )
    if not any(set(index.columns) <= {column.name for column in key} for index in indexes):
        raise PreconditionError(
            f"nothing keeps the key ({listed}) of {table} unique",
            remedy=f"CREATE UNIQUE INDEX CONCURRENTLY ON {table} ({listed}), or set table.key = []",
        )
    return key


def _identity_columns(
    table: str,
    relation: _Relation,
    primary: _UniqueIndex | None,
    indexes: Sequence[_UniqueIndex],
    columns: Iterable[str],
) -> frozenset[str]:
    """The columns that the WAL tells of an old row. PreconditionError when there is no replica identity at all."""
    if relation.identity == "f":
        return frozenset(columns)
    if relation.identity == "d" and primary is not None:
        # A deferrable primary key is none: the server logs nothing of the old row then.
        return frozenset(primary.columns if primary.is_immediate else ())
    if relation.identity == "i":
        return frozenset(next((index.columns for index in indexes if index.is_identity), ()))
    if relation.identity == "n":
        raise PreconditionError(
            f"the replica identity of {table} is NOTHING: UPDATE and DELETE are missing from the stream",
            remedy=_identity_remedy(table, primary, ()),
        )
    return frozenset()


def _identity_remedy(table: str, primary: _UniqueIndex | None, key: Sequence[str]) -> str:
    """DEFAULT where the primary key does; else FULL, which always does."""
    is_default_enough = primary is not None and primary.is_immediate and set(key) <= set(primary.columns)
    return f"ALTER TABLE {table} REPLICA IDENTITY {'DEFAULT' if is_default_enough else 'FULL'}"
