"""A watched table in memory that keeps the contract of `Table`, with a clock that tests set."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from msgspec import Struct

from cdcwatch.close.clock import ClockSample
from cdcwatch.close.outcome import Closed, CloseReport, CurrentRow, Outcome, Unclosed, classify
from cdcwatch.close.table import Overdue, OverduePage
from cdcwatch.deadline.schedule import Due
from cdcwatch.errors import ConnectionBrokeError, UnavailableError
from cdcwatch.instant import INFINITY_US
from cdcwatch.table import Column, WatchedTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cdcwatch.table import Key

WATCHED = WatchedTable(
    schema="public",
    name="orders",
    oid=16384,
    key=(Column("id", "bigint"),),
    deadline=Column("expires_at", "timestamp with time zone"),
    status=Column("status", "text"),
    version=Column("version", "integer"),
    open=frozenset({"pending"}),
    closed_status="expired",
)


class FakeClock:
    """A monotonic clock set by hand."""

    def __init__(self, us: int = 1_000_000) -> None:
        self.us = us
        self.wall_ahead_us = self.slept_us = 0

    def monotonic_us(self) -> int:
        return self.us

    def wall_us(self) -> int:
        return self.us + self.wall_ahead_us

    def suspended_us(self) -> int:
        return self.slept_us


class FakeRow(Struct):
    status: str
    deadline_us: int | None
    version: int = 0


@dataclass
class FakeDatabase:
    """What all connections share: rows, locks, the clock, whether the server is up."""

    watched: WatchedTable = WATCHED
    now_us: int = 850_000_000_000_000
    rows: dict[Key, FakeRow] = field(default_factory=dict)
    locked: set[Key] = field(default_factory=set)
    poison: set[Key] = field(default_factory=set)
    """Orders whose close raises an error."""
    breaking: set[Key] = field(default_factory=set)
    """Orders whose close breaks the connection, without being done."""
    is_up: bool = True
    cuts_after_close: int = 0
    """So many closes are done, and then the connection breaks before the answer."""
    closes: list[tuple[Key, int]] = field(default_factory=list)
    """Every close, with the database's clock at it."""
    given_up: list[tuple[Key, int, str]] = field(default_factory=list)
    """Dead letters: key, attempts, error."""
    lock: threading.RLock = field(default_factory=threading.RLock)


class FakeTable:
    """One connection to a FakeDatabase."""

    disorder_us = 0

    def __init__(self, database: FakeDatabase, clock: FakeClock, *, page_rows: int = 3) -> None:
        self._database = database
        self._clock = clock
        self._page_rows = page_rows
        self.is_connected = False

    def connect(self) -> None:
        self._check()
        self.is_connected = True

    def disconnect(self) -> None:
        self.is_connected = False

    def close(self, batch: Sequence[Due]) -> CloseReport:
        database = self._database
        report = CloseReport()
        with database.lock:
            self._check(connected=True)
            if any(due.key in database.breaking for due in batch):
                self.is_connected = False
                raise ConnectionBrokeError("broken", remedy="none")
            for due in batch:
                row = database.rows.get(due.key)
                current = row and CurrentRow(row.status, row.version, row.deadline_us, self._is_due(row))
                outcome = classify(due, current, database.watched)
                if outcome is Outcome.LOCKED and due.key not in database.locked:
                    if due.key in database.poison:
                        report.unclosed.append(Unclosed(due, Outcome.FAILED, None, "poison"))
                        report.error = "poison"
                        continue
                    if database.watched.deletes:
                        del database.rows[due.key]
                    else:
                        row.status = database.watched.closed_status
                        row.version += 1
                    database.closes.append((due.key, database.now_us))
                    report.closed.append(Closed(due.key, due.deadline_us, row.version, database.now_us))
                else:
                    report.unclosed.append(Unclosed(due, outcome, current))
            if database.cuts_after_close:
                database.cuts_after_close -= 1
                self.is_connected = False
                raise ConnectionBrokeError("cut before the answer", remedy="none")
        return report

    def tell_given_up(self, given_up: Sequence[Unclosed], attempts: int) -> None:
        self._check(connected=True)
        self._database.given_up += [(one.due.key, attempts, one.error) for one in given_up]

    def sample_clock(self, count: int) -> list[ClockSample]:
        self._check(connected=True)
        now_us = self._clock.monotonic_us()
        return [ClockSample(now_us, self._database.now_us, now_us)] * count

    def open_deadlines(self, after_us: int | None, through_us: int) -> Iterator[list[Due]]:
        with self._database.lock:
            self._check(connected=True)
            found = sorted(
                (row.deadline_us, key, row.version)
                for key, row in self._database.rows.items()
                if row.status in self._database.watched.open
                and row.deadline_us is not None
                and row.deadline_us <= through_us
                and (after_us is None or row.deadline_us > after_us)
            )
        for start in range(0, len(found), self._page_rows):
            self._check(connected=True)
            yield [
                Due(key, deadline_us, version) for deadline_us, key, version in found[start : start + self._page_rows]
            ]

    def overdue(self, *, mark_us: int | None, since_us: int | None, grace_us: int, limit: int) -> OverduePage:
        with self._database.lock:
            self._check(connected=True)
            found = sorted(
                (row.deadline_us, key, row.version)
                for key, row in self._database.rows.items()
                if row.status in self._database.watched.open
                and row.deadline_us is not None
                and row.deadline_us <= self._database.now_us - grace_us
                and (mark_us is None or row.deadline_us >= mark_us)
                and (since_us is None or row.deadline_us > since_us)
            )
        orders = [Overdue(Due(key, deadline_us, version), deadline_us) for deadline_us, key, version in found[:limit]]
        return OverduePage(orders, is_last=len(orders) < limit)

    def _is_due(self, row: FakeRow) -> bool:
        return row.deadline_us not in (None, INFINITY_US) and row.deadline_us <= self._database.now_us

    def _check(self, *, connected: bool = False) -> None:
        if not self._database.is_up or (connected and not self.is_connected):
            raise UnavailableError("the fake database is away", remedy="bring it back")
