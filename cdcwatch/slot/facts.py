"""What the checks judge: read once, one query a group of facts, nothing changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql
from psycopg.rows import class_row

from cdcwatch.database import translated
from cdcwatch.errors import PreconditionError
from cdcwatch.queries import query
from cdcwatch.slot.allowlist import AllowList
from cdcwatch.slot.catalog import TableFacts, read_table
from cdcwatch.slot.status import SlotStatus, read_status

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cdcwatch.settings import Settings
    from cdcwatch.table import WatchedTable


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """Version, settings and limits."""

    version_number: int
    version: str
    wal_level: str
    in_recovery: bool
    slots_allowed: int
    slots_taken: int
    walsenders_allowed: int
    walsenders_taken: int
    slot_keep_bytes: int | None
    """max_slot_wal_keep_size; None without limit."""
    knows_slot_keep: bool


@dataclass(frozen=True, slots=True)
class RoleFacts:
    """Who we are; names are quoted as SQL needs them."""

    name: str
    is_superuser: bool
    has_replication: bool
    member_of: str | None
    """A managed service's role that stands for REPLICATION, when we are in it."""
    service_role: str | None
    """The same when the server has one at all."""


@dataclass(frozen=True, slots=True)
class Rights:
    """What the role may do with the watched table."""

    may_use_schema: bool
    may_select: bool
    may_update: bool
    may_delete: bool

    @property
    def may_read(self) -> bool:
        """Whether a SELECT would be let through."""
        return self.may_use_schema and self.may_select


@dataclass(frozen=True, slots=True)
class Facts:
    """All of it."""

    settings: Settings
    server: ServerFacts
    role: RoleFacts
    allowed: AllowList
    table: TableFacts | None
    table_error: PreconditionError | None
    """Why there is no `table`."""
    rights: Rights | None
    due_index: str
    """The index by which due rows are found; empty when there is none."""
    open_condition: str
    """The condition of an open row, as SQL."""
    slot: SlotStatus | None


def read_facts(connection: psycopg.Connection[Any], settings: Settings) -> Facts:
    """Reads all groups. Errors as of `cdcwatch.database`; a table that can't be watched is a fact, not an error."""
    with translated():
        with connection.cursor(row_factory=class_row(ServerFacts)) as cursor:
            server = cursor.execute(query("preflight", "server_facts")).fetchone()
        with connection.cursor(row_factory=class_row(RoleFacts)) as cursor:
            role = cursor.execute(query("preflight", "role_facts")).fetchone()
        if server is None or role is None:  # one row each, whatever the server is
            raise AssertionError
        allowed = _allowed(connection)
        slot = read_status(connection, settings.slot.name)
        table, table_error = None, None
        try:
            table = read_table(connection, settings)
        except PreconditionError as error:
            table_error = error
        rights, due_index, condition = None, "", ""
        if table is not None:
            rights = _rights(connection, table.watched, settings)
            condition = open_condition(table.watched).as_string(connection)
            due_index = _due_index(connection, table) if rights.may_read else ""
    return Facts(settings, server, role, allowed, table, table_error, rights, due_index, condition, slot)


def open_condition(table: WatchedTable) -> sql.Composable:
    """When a row is open, with literals: the form in which the planner proves a partial index's own condition."""
    if table.status is None:
        return sql.SQL("{} IS NOT NULL").format(sql.Identifier(table.deadline.name))
    column, statuses = sql.Identifier(table.status.name), [sql.Literal(status) for status in sorted(table.open)]
    if len(statuses) == 1:
        return sql.SQL("{} = {}").format(column, statuses[0])
    return sql.SQL("{} IN ({})").format(column, sql.SQL(", ").join(statuses))


def _allowed(connection: psycopg.Connection[Any]) -> AllowList:
    try:
        row = connection.execute(query("preflight", "allowed_plugins")).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        return AllowList(exists=True, readable=False)
    text = row[0] if row else None
    return AllowList(exists=text is not None, text=text or "")


def _rights(connection: psycopg.Connection[Any], table: WatchedTable, settings: Settings) -> Rights:
    columns = [*table.key, table.deadline, *(column for column in (table.status, table.version) if column)]
    written = [column.name for column in (table.status, table.version) if column]
    # A column of close.set that isn't there is another matter than the right to write it.
    known = {column.name for column in table.columns}
    wanted = {
        "oid": table.oid,
        "read": [column.name for column in columns],
        "written": [*written, *(name for name in settings.close.set if name in known)],
    }
    with connection.cursor(row_factory=class_row(Rights)) as cursor:
        rights = cursor.execute(query("preflight", "rights"), wanted).fetchone()
    return rights or Rights(may_use_schema=False, may_select=False, may_update=False, may_delete=False)


def _due_index(connection: psycopg.Connection[Any], table: TableFacts) -> str:
    """Asks the planner, which alone knows what implies an index's condition."""
    statement = sql.SQL(query("preflight", "explain_due")).format(
        table=sql.Identifier(table.watched.schema, table.watched.name),
        is_open=open_condition(table.watched),
        deadline=sql.Identifier(table.watched.deadline.name),
    )
    with connection.transaction():
        connection.execute(query("preflight", "avoid_full_scans"))
        row = connection.execute(statement).fetchone()
    deadline = table.sql_columns[table.watched.deadline.name]
    for node in _nodes(row[0][0]["Plan"] if row else {}):
        if deadline in node.get("Index Cond", ""):
            return str(node["Index Name"])
    return ""


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A plan's nodes, the outermost first."""
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)
