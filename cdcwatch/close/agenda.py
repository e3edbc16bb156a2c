"""The pending orders, shared between the stream's reader, the window's loader and the workers that close.

Workers take turns as leader: one waits for the next deadline, the others for their turn, so that a deadline wakes one
thread. Waits are slices of at most a second of monotonic time, so that no jump of a clock outlasts one.
"""

from __future__ import annotations

import threading
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from cdcwatch.close.outcome import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdcwatch.close.clock import Clock, ClockSample, DatabaseClock, Reading
    from cdcwatch.close.closer import Closer, Settled, Update
    from cdcwatch.close.outcome import CloseReport, Unclosed
    from cdcwatch.deadline.schedule import Due

SLICE_US: Final = 1_000_000
_PRESSING_FROM_US: Final = 30_000
_PRESSING_TO_US: Final = 2_000_000
# How many changes are taken in under one hold of the lock: about a millisecond's worth.
_APPLY_SLICE: Final = 1_000


class Work(Enum):
    """What a worker is asked to do besides closing a batch."""

    MEASURE = "measure"
    """Read the database's clock and hand in the samples."""
    REST = "rest"
    """Nothing was due for a slice; come back."""
    STOP = "stop"


class AgendaFacts(NamedTuple):
    """For metrics and health."""

    pending: int
    retrying: int
    next_deadline_us: int | None
    """Microseconds since 2000-01-01 UTC."""
    now_us: int | None
    """The database's clock; None before the first measurement."""
    clock_uncertainty_us: int
    window_end_us: int
    busy_us: int
    """Since when, by the monotonic clock, there has always been something due: how long that is."""

    @property
    def overdue_us(self) -> int:
        """How long the oldest pending deadline has been due, 0 when none is."""
        if self.next_deadline_us is None or self.now_us is None:
            return 0
        return max(0, self.now_us - self.next_deadline_us)

    @property
    def behind_us(self) -> int:
        """How long the oldest due order has waited for a worker: a deadline long past that just came in has not."""
        return min(self.overdue_us, self.busy_us)


class Agenda:
    """A Closer and the database's clock under one lock."""

    def __init__(self, closer: Closer, database_clock: DatabaseClock, clock: Clock) -> None:
        self._closer = closer
        self._database_clock = database_clock
        self._clock = clock
        self._lock = threading.Lock()
        self._leader_wakes = threading.Condition(self._lock)
        self._follower_wakes = threading.Condition(self._lock)
        self._has_leader = False
        self._leader_until_us: int | None = None
        """The deadline that the leader waits for, in the database's time; None: it waits for anything."""
        self._is_measuring = False
        self._is_stopping = False
        self._caught_up_us = clock.monotonic_us()
        """When a worker last found nothing due."""
        self._was_full = False
        """Whether the last batch was as large as they may be."""

    def __len__(self) -> int:
        with self._lock:
            return len(self._closer)

    def apply(self, updates: Sequence[Update]) -> None:
        """Takes in row changes in their order: key, deadline (None: it is off) and version."""
        for start in range(0, len(updates), _APPLY_SLICE):
            with self._lock:
                self._notice(self._closer.apply(updates[start : start + _APPLY_SLICE]))

    def clear(self) -> None:
        """The table was truncated."""
        with self._lock:
            self._closer.clear()

    def presses(self) -> bool:
        """Whether deadlines passed a moment ago wait for a worker: a spike, not a backlog of longer standing.

        At once where the last batch was a full one: then there are more than the workers take in one go.
        """
        with self._lock:  # not `facts`: the reader asks before every bite
            next_us, now_us = self._closer.schedule.next_deadline_us, self._now_us()
        if next_us is None or now_us is None:
            return False
        return (1 if self._was_full else _PRESSING_FROM_US) <= now_us - next_us < _PRESSING_TO_US

    def load(self, dues: Sequence[Due]) -> int:
        """Takes in orders read from the table; the stream's word stands. The window's end, which they may pull back."""
        with self._lock:
            self._notice(self._closer.load(dues))
            return self._closer.schedule.window_end_us

    def unknown(self, dues: Sequence[Due]) -> list[Due]:
        """Of orders overdue in the table those that nobody here has in hand; none before the clock is known."""
        with self._lock:
            now_us = self._now_us()
            return [] if now_us is None else [due for due in dues if not self._closer.knows(due, now_us)]

    def load_found(self, dues: Sequence[Due]) -> int:
        """Takes in what the sweep has found and nobody here has in hand; how many those are."""
        with self._lock:
            now_us = self._now_us()
            count = 0 if now_us is None else self._closer.load_found(dues, now_us)
            if count:
                self._leader_wakes.notify()
                self._follower_wakes.notify()
            return count

    @property
    def untried(self) -> int:
        """Orders that the sweep found and no close has come back for."""
        with self._lock:
            return self._closer.untried

    @property
    def recovered(self) -> int:
        """Closed of what the sweep found."""
        with self._lock:
            return self._closer.recovered

    def found_but(self, stuck_us: int) -> tuple[int, int]:
        """Of what the sweep found: how many may soon be closed, and how many are refused or held for so long."""
        with self._lock:
            return self._closer.found_but(self._clock.monotonic_us() - stuck_us)

    def _now_us(self) -> int | None:
        """The database's clock, where it was measured."""
        return self._database_clock.now_us(self._clock.monotonic_us()) if self._database_clock.is_known else None

    def extend_window(self, to_us: int) -> int:
        """Lets in deadlines through `to_us`; gives the window's end until now, from where the table is to be read."""
        with self._lock:
            return self._closer.schedule.extend_window(to_us)

    def next_work(self, limit: int) -> list[Due] | Work:
        """Waits for something to do, at most for a slice: a batch of at most `limit` due orders, or another task.

        Every batch is handed back by `settle`, `doubt` or `give_back`; MEASURE by `observe` or `measuring_failed`.
        """
        with self._lock:
            work = self._work_now(limit)
            if work is not None:
                return work
            if self._has_leader:
                self._follower_wakes.wait(SLICE_US / 1_000_000)
                return self._work_now(limit) or Work.REST
            self._has_leader = True
            try:
                self._wait_as_leader()
                return self._work_now(limit) or Work.REST
            finally:
                self._has_leader = False
                self._leader_until_us = None
                self._follower_wakes.notify()

    def work_now(self, limit: int) -> list[Due] | Work | None:
        """The same without waiting; None: there is nothing to do now."""
        with self._lock:
            return self._work_now(limit)

    def settle(self, report: CloseReport) -> Settled:
        """Hands in what became of a batch."""
        monotonic_us = self._clock.monotonic_us()
        with self._lock:
            settled = self._closer.settle(report, monotonic_us)
            if any(unclosed.outcome is Outcome.NOT_DUE for unclosed in report.unclosed):
                self._database_clock.doubt()
            if report.unclosed:
                self._leader_wakes.notify()
            return settled

    def give_back(self, batch: Sequence[Due]) -> None:
        """Hands a batch back that was not tried."""
        with self._lock:
            self._closer.give_back(batch, self._clock.monotonic_us())
            self._leader_wakes.notify()
            self._follower_wakes.notify()

    def doubt(self, batch: Sequence[Due], *, broke: bool = False) -> list[Unclosed]:
        """Hands a batch back of which nobody knows whether it is closed: see `Closer.doubt`."""
        with self._lock:
            given_up = self._closer.doubt(batch, self._clock.monotonic_us(), broke=broke)
            self._leader_wakes.notify()
            self._follower_wakes.notify()
            return given_up

    def untold(self, given_up: Sequence[Unclosed]) -> None:
        """Hands back orders that were given up, when no dead letter could be left of them."""
        with self._lock:
            self._closer.untold(given_up, self._clock.monotonic_us())
            self._leader_wakes.notify()

    def observe(self, samples: Sequence[ClockSample]) -> Reading:
        """Hands in a measurement of the database's clock."""
        with self._lock:
            self._is_measuring = False
            reading = self._database_clock.observe(samples)
            self._leader_wakes.notify()
            return reading

    def measuring_failed(self) -> None:
        """Hands the measurement back, for another worker."""
        with self._lock:
            self._is_measuring = False
            self._follower_wakes.notify()

    def stop(self) -> None:
        """Every `next_work` from now on is STOP."""
        with self._lock:
            self._is_stopping = True
            self._leader_wakes.notify_all()
            self._follower_wakes.notify_all()

    def facts(self) -> AgendaFacts:
        """How things stand."""
        monotonic_us = self._clock.monotonic_us()
        with self._lock:
            closer, database_clock = self._closer, self._database_clock
            return AgendaFacts(
                pending=len(closer),
                retrying=closer.retrying,
                next_deadline_us=closer.schedule.next_deadline_us,
                now_us=database_clock.now_us(monotonic_us) if database_clock.is_known else None,
                clock_uncertainty_us=database_clock.uncertainty_us,
                window_end_us=closer.schedule.window_end_us,
                busy_us=monotonic_us - self._caught_up_us,
            )

    def nearest(self, count: int) -> list[Due]:
        """The next `count` of what is pending, the earliest first; for whoever looks."""
        with self._lock:
            return self._closer.schedule.nearest(count)

    def locked_us(self) -> int:
        """How long an order has been held by others' locks at most. For health: looks at every order tried again."""
        with self._lock:
            since_us = self._closer.locked_since_us
            return 0 if since_us is None else self._clock.monotonic_us() - since_us

    def refused_us(self) -> int:
        """How long closes have been refused for the table or the role, none succeeding. Looks at every retry."""
        with self._lock:
            since_us = self._closer.refused_since_us
            return 0 if since_us is None else self._clock.monotonic_us() - since_us

    def _work_now(self, limit: int) -> list[Due] | Work | None:
        if self._is_stopping:
            return Work.STOP
        monotonic_us = self._clock.monotonic_us()
        if self._database_clock.needs_measuring(monotonic_us) and not self._is_measuring:
            self._is_measuring = True
            return Work.MEASURE
        if not self._database_clock.is_known:
            return None
        batch = self._closer.take(self._database_clock.now_us(monotonic_us), monotonic_us, limit)
        self._was_full = len(batch) >= limit
        if not batch:
            self._caught_up_us = monotonic_us
        elif not self._has_leader:
            # The one who leaves to close hands the watch on.
            self._follower_wakes.notify()
        return batch or None

    def _wait_as_leader(self) -> None:
        delay_us: int | None = None
        if self._database_clock.is_known:
            monotonic_us = self._clock.monotonic_us()
            now_us = self._database_clock.now_us(monotonic_us)
            delay_us = self._closer.delay_us(now_us, monotonic_us)
            self._leader_until_us = None if delay_us is None else now_us + delay_us
        self._leader_wakes.wait(min(SLICE_US, SLICE_US if delay_us is None else delay_us) / 1_000_000)

    def _notice(self, earliest_us: int | None) -> None:
        """Wakes the leader only when what it waits for is no longer the next."""
        if earliest_us is not None and (self._leader_until_us is None or earliest_us < self._leader_until_us):
            self._leader_wakes.notify()
