"""What a slot holds next, and which events that gives: with the decoder and the derivation of the service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from cdcwatch.deadline.derivation import Derivation
from cdcwatch.deadline.event import EventEncoder
from cdcwatch.deadline.position import Position
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.deadline.sharing import SharedDerivation
from cdcwatch.errors import CdcwatchError
from cdcwatch.handoff.bus import bus_of
from cdcwatch.inspection.changes import read_changes, require_readable
from cdcwatch.inspection.trace import Traced, Tracer
from cdcwatch.lsn import parse_lsn
from cdcwatch.queries import query
from cdcwatch.slot.admin import connected, found_status
from cdcwatch.slot.tables import load_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psycopg

    from cdcwatch.deadline.position import SnapshotVisibility
    from cdcwatch.settings import Settings
    from cdcwatch.slot.status import SlotStatus
    from cdcwatch.table import WatchedTable

_LINES_A_CHANGE: Final = 8
_FIRST_LINES: Final = 500


class Peeked(Struct, frozen=True):
    """The next changes of the slot."""

    changes: tuple[Traced, ...]
    is_all: bool
    """Nothing of the watched table comes after them."""
    notes: tuple[str, ...]
    """What else decides what is published."""


class Start(Struct, frozen=True):
    """Where the service would begin to publish."""

    covered: Position
    snapshot: SnapshotVisibility | None
    notes: tuple[str, ...]


def peek(settings: Settings, count: int) -> Peeked:
    """The next `count` changes of the watched table. Consumes nothing; errors as of `read_changes`."""
    with connected(settings) as connection:
        status = found_status(connection, settings)
        require_readable(status)
        tables = load_tables(connection, settings)
        start = start_of(settings, status, system_identifier(connection))
        lines = max(_FIRST_LINES, count * _LINES_A_CHANGE)
        while True:
            seen = 0
            traced: list[Traced] = []
            for seen, one in enumerate(_traced(connection, settings, tables, status, start, lines), 1):  # noqa: B007
                traced += one
                if len(traced) > count:
                    return Peeked(tuple(traced[:count]), is_all=False, notes=start.notes)
            if seen < lines:
                return Peeked(tuple(traced), is_all=True, notes=start.notes)
            lines *= 8  # the beginning was all about other tables: look further, from the beginning


def _traced(
    connection: psycopg.Connection[Any],
    settings: Settings,
    tables: Sequence[WatchedTable],
    status: SlotStatus,
    start: Start,
    lines: int,
) -> Iterator[list[Traced]]:
    tracer = tracer_of(tables, status, start, system_identifier(connection))
    for message in read_changes(connection, settings, tables, status, upto_count=lines):
        yield tracer.feed(message) if message is not None else []


def tracer_of(tables: Sequence[WatchedTable], status: SlotStatus, start: Start, system: str) -> Tracer:
    """A tracer that publishes what the service would, from there on."""
    rules = {table.qualified_name: DeadlineRule(table) for table in tables}
    named = {"system_identifier": system, "database": status.connected_database, "slot": status.name}
    encoders = [EventEncoder(table, **named) for table in tables]
    shared = list(zip(rules.values(), encoders, strict=True))
    derivation = Derivation(*shared[0])
    if len(tables) > 1:
        derivation = SharedDerivation(shared, [table.oid for table in tables])
    return Tracer(rules, derivation, start.covered, start.snapshot)


def system_identifier(connection: psycopg.Connection[Any]) -> str:
    """Which database system this is, as IDENTIFY_SYSTEM tells."""
    row = connection.execute(query("slot", "flushed_lsn")).fetchone()
    return str(row[1]) if row else ""


def start_of(settings: Settings, status: SlotStatus, system: str) -> Start:
    """From the topic's progress record, where it can be read; else from the slot's own position."""
    own = Position(end_lsn=parse_lsn(status.confirmed_flush_lsn or "0/0"))
    bus = bus_of(settings)
    if bus is None:
        return Start(own, None, ())
    try:
        progress = bus.progress()
    except CdcwatchError as error:
        return Start(own, None, (f"the topic can't be asked ({error}): what it holds already is shown as new",))
    if progress is None:
        return Start(
            own, None, ("the topic has no progress of this slot: the first run publishes all open orders before",)
        )
    if progress.origin.system_identifier != system:
        return Start(own, None, ("the topic's progress is of another database system: run stops with a gap",))
    if own.end_lsn > progress.position.end_lsn:
        return Start(own, None, ("the slot is beyond the topic's progress: run stops with a gap (--accept-gap)",))
    mark = progress.snapshot
    snapshot = mark.skipped if mark is not None and own.end_lsn < mark.lsn else None
    covered = progress.position if bus.is_transactional else own
    return Start(covered, snapshot, ())
