"""The publication that pgoutput reads by: what it must hold, what it holds, and the statement that makes it.

https://www.postgresql.org/docs/current/logical-replication-publication.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from psycopg import sql
from psycopg.rows import class_row

from cdcwatch.errors import PreconditionError
from cdcwatch.queries import query
from cdcwatch.slot.partitions import named, several
from cdcwatch.table import NO_PUBLICATION, PublicationStamp

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from cdcwatch.settings import Settings
    from cdcwatch.slot.catalog import TableFacts

COLUMN_LISTS_SINCE: Final = 150_000
VIA_ROOT_SINCE: Final = 130_000
NOTES_SINCE: Final = 140_000
UNTOLD: Final = (
    'close.action = "delete": before PostgreSQL 14 pgoutput tells no close from the DELETE of an application'
)
UNTOLD_REMEDY: Final = 'slot.plugin = "wal2json", or let closes update: close.action = "update"'


class PublicationFacts(Struct, frozen=True):
    """A publication as it is."""

    publishes_all: bool
    """INSERT, UPDATE, DELETE and TRUNCATE."""
    via_root: bool
    has_table: bool
    columns: list[str]
    """Published columns of the table; empty before PostgreSQL 15, which publishes all."""
    has_row_filter: bool
    has_column_list: bool = False
    """A list that names every column is one, too."""


class Flaw(Struct, frozen=True):
    """What is amiss with a publication."""

    said: str
    """After its name."""
    remedy: str
    """The statement that mends it, or several, of which one does."""
    loses_changes: bool = True
    """Otherwise the server refuses the changes themselves."""


class RefusedUpdatesError(PreconditionError):
    """The publication makes the server refuse UPDATE and DELETE: nothing is missing from the stream."""


def read_publication(
    connection: psycopg.Connection[Any], table: TableFacts, settings: Settings
) -> PublicationFacts | None:
    """None when there is no publication of that name."""
    wanted = {
        "publication": settings.slot.publication,
        "schema": table.watched.schema,
        "table": table.watched.name,
        "oid": table.watched.oid,
    }
    with connection.cursor(row_factory=class_row(PublicationFacts)) as cursor:
        return cursor.execute(query("preflight", "publication_facts"), wanted).fetchone()


def publication_stamp(connection: psycopg.Connection[Any], oid: int, settings: Settings) -> PublicationStamp:
    """Of the table with that OID: another one after every ALTER that concerns it; empty without such a publication.

    xmin tells them apart: https://www.postgresql.org/docs/current/ddl-system-columns.html
    """
    wanted = {"publication": settings.slot.publication, "oid": oid}
    row = connection.execute(query("preflight", "publication_stamp"), wanted).fetchone()
    return PublicationStamp(*row) if row else NO_PUBLICATION


def tells_notes(settings: Settings, server_version: int) -> bool:
    """Whether the stream carries the logical messages that this configuration's closes need."""
    is_needed = settings.close.action == "delete" and settings.slot.plugin == "pgoutput"
    return server_version >= NOTES_SINCE or not is_needed


def may_publish(connection: psycopg.Connection[Any], table: TableFacts) -> bool:
    """Whether this role could make a publication for the table."""
    row = connection.execute(query("preflight", "publication_rights"), {"oid": table.watched.oid}).fetchone()
    return bool(row and row[0])


def watched_columns(table: TableFacts) -> list[str]:
    """Key, deadline, status, version: what the decoder reads."""
    watched = table.watched
    others = [column.name for column in (watched.deadline, watched.status, watched.version) if column is not None]
    return list(dict.fromkeys([*(column.name for column in watched.key), *others]))


def column_list(table: TableFacts, server_version: int) -> list[str] | None:
    """The watched columns and those of the replica identity; None: all columns.

    PostgreSQL refuses the application's own UPDATE and DELETE where a column list lacks a column of the replica
    identity, and with REPLICA IDENTITY FULL any list does.
    """
    identities = [table.watched.identity, *(leaf.identity for leaf in table.partitions or ())]
    if server_version < COLUMN_LISTS_SINCE or "f" in identities:
        return None
    needed = dict.fromkeys([*watched_columns(table), *sorted(table.identity_columns)])
    for leaf in table.partitions or ():
        needed.update(dict.fromkeys(leaf.identity_columns))
    return list(needed)


def missing_columns(facts: PublicationFacts, table: TableFacts) -> list[str]:
    """Watched columns that are not published."""
    return [column for column in watched_columns(table) if facts.columns and column not in facts.columns]


def refused_tables(facts: PublicationFacts, table: TableFacts) -> list[str]:
    """The table, or partitions of it, whose UPDATE and DELETE the server refuses for the publication's column list.

    The list must hold the columns of the replica identity, and none goes with REPLICA IDENTITY FULL. One such partition
    is enough to have every UPDATE refused that is planned for it, as a close is.
    https://www.postgresql.org/docs/current/logical-replication-col-lists.html
    """
    if not facts.has_column_list:
        return []
    published = set(facts.columns)
    parts = [(leaf.sql_name, leaf.identity, frozenset(leaf.identity_columns)) for leaf in table.partitions or ()]
    tables = [(table.sql_name, table.watched.identity, table.identity_columns), *parts]
    return [name for name, identity, columns in tables if identity == "f" or not columns <= published]


def publication_flaw(
    settings: Settings, table: TableFacts, facts: PublicationFacts, server_version: int
) -> Flaw | None:
    """The first thing that is amiss; what breaks the application's own changes before what only we miss."""
    name, listed = quoted_name(settings.slot.publication), _member_text(table, server_version)
    member, altering = f"TABLE {listed}", f"ALTER PUBLICATION {name}"
    # SET would take the others out.
    setting = (
        f"BEGIN; {altering} DROP TABLE {table.sql_name}; {altering} ADD {member}; COMMIT"
        if settings.is_shared
        else f"{altering} SET {member}"
    )
    if not facts.has_table and table.partitions is not None and not facts.via_root:
        return Flaw(f"does not hold {table.sql_name} as a whole", f"{altering} SET (publish_via_partition_root = true)")
    if not facts.has_table:
        return Flaw(f"does not hold {table.sql_name}", f"{altering} ADD {member}")
    losses = []
    missing = missing_columns(facts, table)
    if missing:
        losses.append(Flaw(f"lacks the columns {table.quoted(missing)}", setting))
    if facts.has_row_filter:
        losses.append(Flaw("has a row filter: an order that leaves it would look deleted", setting))
    if not facts.publishes_all:
        losses.append(
            Flaw("leaves out some kinds of change", f"{altering} SET (publish = 'insert, update, delete, truncate')")
        )
    refused = refused_tables(facts, table)
    if refused:
        leaves = [leaf for leaf in table.partitions or () if leaf.sql_name in refused]
        others = [] if table.sql_name in refused else [leaf.like_its_parent(table.watched.identity) for leaf in leaves]
        return Flaw(
            f"has a column list that the replica identity of {named(refused)} doesn't go with: UPDATE and DELETE fail"
            " in the application, and so do closes",
            "; or ".join([setting, *([several(others)] if others else [])]),
            loses_changes=bool(losses),
        )
    return losses[0] if losses else None


def require_published(connection: psycopg.Connection[Any], table: TableFacts, settings: Settings) -> None:
    """PreconditionError where the publication is gone, or no longer tells every change of the table.

    RefusedUpdatesError where all that is amiss is that it makes the server refuse changes.
    """
    name = quoted_name(settings.slot.publication)
    facts, version = read_publication(connection, table, settings), connection.info.server_version
    if facts is None:
        raise PreconditionError(
            f"the publication {name} is gone: pgoutput can't read on", remedy=creation_text(settings, [table], version)
        )
    flaw = publication_flaw(settings, table, facts, version)
    if flaw is not None:
        kind = PreconditionError if flaw.loses_changes else RefusedUpdatesError
        raise kind(f"the publication {name} {flaw.said}", remedy=flaw.remedy)


def creation(settings: Settings, tables: Sequence[TableFacts], server_version: int) -> sql.Composed:
    """The statement that makes it, for all tables of the slot."""
    options = " WITH (publish_via_partition_root = true)" if server_version >= VIA_ROOT_SINCE else ""
    return sql.SQL(query("slot", "create_publication")).format(
        publication=sql.Identifier(settings.slot.publication),
        members=sql.SQL(", ").join(_member(table, server_version) for table in tables),
        options=sql.SQL(options),
    )


def _member(table: TableFacts, server_version: int) -> sql.Composable:
    columns = column_list(table, server_version)
    listed = sql.SQL(" ({})").format(sql.SQL(", ").join(map(sql.Identifier, columns))) if columns else sql.SQL("")
    return sql.SQL("{}{}").format(sql.Identifier(table.watched.schema, table.watched.name), listed)


def creation_text(settings: Settings, tables: Sequence[TableFacts], server_version: int) -> str:
    """The same for people who run it themselves; names quoted only where they must be."""
    members = ", ".join(_member_text(table, server_version) for table in tables)
    options = " WITH (publish_via_partition_root = true)" if server_version >= VIA_ROOT_SINCE else ""
    return f"CREATE PUBLICATION {quoted_name(settings.slot.publication)} FOR TABLE {members}{options};"


def _member_text(table: TableFacts, server_version: int) -> str:
    columns = column_list(table, server_version)
    return f"{table.sql_name} ({table.quoted(columns)})" if columns else table.sql_name


def quoted_name(name: str) -> str:
    """An identifier as SQL needs it."""
    is_plain = name.isascii() and name.isidentifier() and name == name.lower()
    return name if is_plain else '"' + name.replace('"', '""') + '"'
