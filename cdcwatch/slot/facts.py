"""What the checks judge: read once, one query a group of facts, nothing changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import psycopg
from msgspec import Struct
from msgspec.structs import replace
from psycopg import sql
from psycopg.rows import class_row

from cdcwatch.columns import is_due
from cdcwatch.database import translated
from cdcwatch.errors import PreconditionError
from cdcwatch.queries import query
from cdcwatch.slot.allowlist import AllowList
from cdcwatch.slot.catalog import TableFacts, read_table
from cdcwatch.slot.managed import REPLICATION_ROLES, SERVICES, Service, service_of
from cdcwatch.slot.probe import PluginProbe, probe_plugin
from cdcwatch.slot.publication import PublicationFacts, may_publish, read_publication
from cdcwatch.slot.status import SlotStatus, read_status
from cdcwatch.slot.statuses import StatusFacts, read_statuses
from cdcwatch.slot.surroundings import Surroundings, read_surroundings
from cdcwatch.slot.sweep import SweepFacts, read_sweep
from cdcwatch.slot.tables import require_distinct
from cdcwatch.slot.zones import first_disagreement

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cdcwatch.settings import Settings
    from cdcwatch.table import WatchedTable


class ServerFacts(Struct, frozen=True):
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
    encoding: str = "UTF8"
    idle_slot_timeout_s: float | None = None
    """idle_replication_slot_timeout; None where it is off or unknown."""
    synchronized_standby_slots: str | None = None
    """None before PostgreSQL 17."""
    service_role: str | None = None
    """A role by which a managed service is known."""

    @property
    def service(self) -> Service | None:
        """The managed service that runs it, where it is one."""
        return service_of(self.service_role)

    @property
    def major(self) -> int:
        """15 of 15.20."""
        return self.version_number // 10_000


class RoleFacts(Struct, frozen=True):
    """Who we are; names are quoted as SQL needs them."""

    name: str
    is_superuser: bool
    has_replication: bool
    member_of: str | None
    """A managed service's role that stands for REPLICATION, when we are in it."""
    service_role: str | None
    """The same when the server has one at all."""

    @property
    def may_replicate(self) -> bool:
        """Whether it may make and read slots."""
        return self.is_superuser or self.has_replication or self.member_of is not None


class Rights(Struct, frozen=True):
    """What the role may do with the watched table."""

    may_use_schema: bool
    may_select: bool
    may_update: bool
    may_delete: bool
    is_filtered: bool = False
    """Row-level security hides rows from this role."""
    may_lock: bool = True
    """Rows: UPDATE on any column."""
    may_make_temporary: bool = True
    """Tables: what `close.also` reads is one."""
    database: str = ""
    """Its name, quoted as SQL needs it."""

    @property
    def may_read(self) -> bool:
        """Whether a SELECT would be let through."""
        return self.may_use_schema and self.may_select


class Facts(Struct, frozen=True):
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
    due_index_is_partial: bool = True
    """It holds open rows alone."""
    invalid_indexes: tuple[str, ...] = ()
    statuses: StatusFacts | None = None
    """None without a status column, or without the right to look."""
    zone_disagreement: str | None = None
    """The first local time that the server's zone data and ours read differently."""
    publication: PublicationFacts | None = None
    may_publish: bool = False
    surroundings: Surroundings | None = None
    """None where only the catalog was asked."""
    sweep: SweepFacts | None = None
    """None where only the catalog was asked, or nothing is swept."""
    probe: PluginProbe | None = None
    """None where what comes before the plugin is missing."""
    others: tuple[Facts, ...] = ()
    """Of the tables after the first: what is the table's own in them counts."""
    beside: tuple[TableFacts, ...] = ()
    """Every table of the slot, where there are several and all are there."""

    @property
    def all_tables(self) -> tuple[TableFacts, ...]:
        """What the publication must hold, as far as it is there."""
        return self.beside or ((self.table,) if self.table is not None else ())


OptionsOf = Callable[["WatchedTable", int], "Mapping[str, str]"]
"""The options that the decoder of a table asks for, on a server of that version."""


def read_facts(connection: psycopg.Connection[Any], settings: Settings) -> Facts:
    """Reads all groups of the catalog. A table that can't be watched is a fact, not an error.

    Errors as of `cdcwatch.database`.
    """
    with translated():
        with connection.cursor(row_factory=class_row(ServerFacts)) as cursor:
            markers = [service.marker_role for service in SERVICES]
            server = cursor.execute(query("preflight", "server_facts"), {"service_roles": markers}).fetchone()
        with connection.cursor(row_factory=class_row(RoleFacts)) as cursor:
            granted = list(REPLICATION_ROLES)
            role = cursor.execute(query("preflight", "role_facts"), {"granted": granted}).fetchone()
        if server is None or role is None:  # one row each, whatever the server is
            raise AssertionError
        allowed = _allowed(connection)
        slot = read_status(connection, settings.slot.name)
        table, table_error = None, None
        try:
            table = read_table(connection, settings)
        except PreconditionError as error:
            table_error = error
        facts = Facts(settings, server, role, allowed, table, table_error, None, "", "", slot)
        return facts if table is None else _of_table(connection, facts, table)


def read_all_facts(connection: psycopg.Connection[Any], settings: Settings, options_of: OptionsOf | None) -> Facts:
    """`read_facts`, and what is around them: the connections, the clocks, the output plugin at work.

    Makes short connections of its own. `options_of`: without it the plugin is loaded but not asked for its options.
    """
    first, *further = settings.each()
    facts = read_facts(connection, first)
    others = [read_facts(connection, one) for one in further]
    tables = [one.table for one in (facts, *others) if one.table is not None]
    require_distinct(connection, [one.watched for one in tables])
    if further:
        facts = replace(facts, others=tuple(replace(one, beside=tuple(tables)) for one in others), beside=tuple(tables))
    surroundings = read_surroundings(connection, settings)
    probe = _probe(facts, surroundings, options_of) if _may_probe(facts) else None
    closes = any(one.close.action != "none" for one in settings.each())
    is_swept = bool(settings.sweep.interval_s) and closes and not facts.server.in_recovery
    sweep = read_sweep(connection, settings) if is_swept else None
    return replace(facts, surroundings=surroundings, probe=probe, sweep=sweep)


def _may_probe(facts: Facts) -> bool:
    """Whether all that a slot takes but the plugin is there."""
    server, slot, role = facts.server, facts.slot, facts.role
    if server.wal_level != "logical" or server.in_recovery:
        return False
    if not role.may_replicate:
        return False
    if slot is None:
        return facts.settings.slot.plugin != "pgoutput" and server.slots_taken < server.slots_allowed
    is_ours = slot.plugin == facts.settings.slot.plugin and slot.database == slot.connected_database
    return is_ours and not slot.active and not slot.is_lost


def _probe(facts: Facts, surroundings: Surroundings, options_of: OptionsOf | None) -> PluginProbe | None:
    if surroundings.stream_error is not None:
        return None
    options: Mapping[str, str] = {}
    if options_of is not None and facts.table is not None:
        options = options_of(facts.table.watched, facts.server.version_number)
    elif facts.settings.slot.plugin == "pgoutput":
        return None
    return probe_plugin(facts.settings, options, own_slot=facts.slot.name if facts.slot else None)


def _of_table(connection: psycopg.Connection[Any], facts: Facts, table: TableFacts) -> Facts:
    settings, watched = facts.settings, table.watched
    rights = _rights(connection, watched, settings)
    is_published = settings.slot.plugin == "pgoutput"
    facts = replace(
        facts,
        rights=rights,
        open_condition=open_condition(watched).as_string(connection),
        invalid_indexes=tuple(
            name for (name,) in connection.execute(query("preflight", "invalid_indexes"), {"oid": watched.oid})
        ),
        zone_disagreement=first_disagreement(connection, watched),
        publication=read_publication(connection, table, settings) if is_published else None,
        may_publish=is_published and may_publish(connection, table),
    )
    if not rights.may_read:
        return facts
    facts = replace(facts, statuses=read_statuses(connection, table, settings))
    if facts.statuses is not None and facts.statuses.unfit:
        return facts  # the scan's own condition would be refused
    due_index = _due_index(connection, table)
    is_partial = not due_index or _is_partial(connection, due_index, watched.oid)
    return replace(facts, due_index=due_index, due_index_is_partial=is_partial)


def _is_partial(connection: psycopg.Connection[Any], index: str, oid: int) -> bool:
    row = connection.execute(query("preflight", "index_facts"), {"index": index, "oid": oid}).fetchone()
    return bool(row and row[0])


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
    deadline = sql.Identifier(table.watched.deadline.name)
    statement = sql.SQL(query("preflight", "explain_due")).format(
        table=sql.Identifier(table.watched.schema, table.watched.name),
        is_open=open_condition(table.watched),
        deadline=deadline,
        is_due=is_due(table.watched, deadline),
    )
    with connection.transaction():
        connection.execute(query("preflight", "avoid_full_scans"))
        row = connection.execute(statement).fetchone()
    name = table.sql_columns[table.watched.deadline.name]
    found = ""
    for node in _nodes(row[0][0]["Plan"] if row else {}):
        if name in node.get("Index Cond", ""):
            found = found or str(node["Index Name"])
        elif "Relation Name" in node and node["Node Type"] != "Bitmap Heap Scan":
            return ""  # a partition that is read in full
    return found


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """A plan's nodes, the outermost first."""
    yield plan
    for inner in plan.get("Plans", ()):
        yield from _nodes(inner)
