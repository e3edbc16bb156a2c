"""What advancing or dropping a slot loses: changes by kind, events by type, orders that the topic won't know."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field

from cdcwatch.deadline.rule import MOVED, SCHEDULED
from cdcwatch.inspection.changes import read_changes
from cdcwatch.inspection.peek import start_of, system_identifier, tracer_of
from cdcwatch.inspection.trace import TRUNCATE_KIND, UNREADABLE_KIND, Traced
from cdcwatch.slot.tables import load_tables

if TYPE_CHECKING:
    import psycopg

    from cdcwatch.settings import Settings
    from cdcwatch.slot.status import SlotStatus

MOST_CHANGES: Final = 1_000_000
"""Counting stops here."""
_MOST_KEYS: Final = 1_000_000


class Skipped(Struct):
    """Counted as the changes come."""

    changes: Counter[str] = field(default_factory=Counter)
    """By kind: insert, update, delete, truncate, unreadable."""
    events: Counter[str] = field(default_factory=Counter)
    """By type, without the prefix; only what the topic doesn't hold yet."""
    is_lower_bound: bool = False
    """There are more than were counted."""
    _live: dict[tuple[str, str], bool] = field(default_factory=dict)

    @property
    def change_count(self) -> int:
        """Of the watched table."""
        return self.changes.total()

    @property
    def live_orders(self) -> int:
        """Orders with a live deadline that the topic would not learn."""
        return sum(self._live.values())

    @property
    def ended_orders(self) -> int:
        """Orders that the topic would take for open for ever."""
        return len(self._live) - self.live_orders

    def count(self, traced: Traced) -> None:
        """One change."""
        self.changes[traced.kind] += 1
        if traced.event is None:
            return
        if traced.kind == UNREADABLE_KIND:
            self.events["dead letters"] += 1
            return
        kind = str(traced.event["type"])
        self.events[kind.removeprefix("deadline.")] += 1
        if traced.kind == TRUNCATE_KIND:
            self._live = {order: live and order[0] != traced.table for order, live in self._live.items()}
        elif len(self._live) < _MOST_KEYS or (traced.table, traced.key) in self._live:
            self._live[traced.table, traced.key] = kind in {SCHEDULED, MOVED}


def skipped(
    connection: psycopg.Connection[Any], settings: Settings, status: SlotStatus, upto_lsn: int | None
) -> Skipped:
    """Reads the slot up to `upto_lsn` (None: all of it) without consuming anything, at most MOST_CHANGES of ours."""
    tables = load_tables(connection, settings)
    system = system_identifier(connection)
    tracer = tracer_of(tables, status, start_of(settings, status, system), system)
    counted = Skipped()
    for message in read_changes(connection, settings, tables, status, upto_lsn=upto_lsn):
        if message is None:
            continue
        for traced in tracer.feed(message):
            counted.count(traced)
        if counted.change_count >= MOST_CHANGES:
            counted.is_lower_bound = True
            break
    return counted
