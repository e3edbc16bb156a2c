"""The window of deadlines held in memory: loaded at the start, overdue orders first, and moved on as time passes.

First the schedule's window is extended, so that the stream's changes in the new range are let in; then the range is
read from the table, and what the stream has said meanwhile stands. The other way about, a change between the two would
be lost.
"""

from __future__ import annotations

import logging
import random
import threading
from typing import TYPE_CHECKING, Final, NamedTuple

from cdcwatch import failpoints
from cdcwatch.close.clock import DatabaseClock
from cdcwatch.close.workers import CLOCK_SAMPLES, RECONNECT, log_mistake
from cdcwatch.errors import CdcwatchError
from cdcwatch.instant import NEGATIVE_INFINITY_US
from cdcwatch.log import NamingThread

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.close.agenda import Agenda
    from cdcwatch.close.clock import Clock
    from cdcwatch.close.table import Table

log = logging.getLogger(__name__)

_LOOK_EVERY_S: Final = 1.0
_NEAR_BEHIND_US: Final = 10_000_000
_NEAR_AHEAD_US: Final = 2_500_000
"""Longer than the pause between two looks, so that a deadline is known before it comes."""


class Range(NamedTuple):
    """Deadlines to read from the table: `after_us < deadline <= through_us`."""

    after_us: int | None
    """None: from the beginning."""
    through_us: int


def wants_extension(*, now_us: int, window_end_us: int, horizon_us: int, pending: int, max_entries: int) -> bool:
    """Less than three quarters of the horizon is left, and there is room.

    Without the second, a window that overflowed would be extended and overflow again at once, over and over.
    """
    return window_end_us < now_us + horizon_us * 3 // 4 and pending <= max_entries * 3 // 4


class Window:
    """Keeps the agenda's window ahead of the database's clock, on a thread and a connection of its own."""

    def __init__(
        self,
        agenda: Agenda,
        table: Table,
        clock: Clock,
        *,
        horizon_us: int,
        max_entries: int,
        stream_lags: Callable[[], bool] = lambda: False,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        """The schedule's window must end before everything (`NEGATIVE_INFINITY_US`) until `start`.

        `is_wanted`: whether the agenda would let in anything; where it wouldn't, the table is not read.
        """
        self.ready = threading.Event()
        """Set once everything overdue and all within the horizon was loaded, or as much as there is room for."""
        self._agenda = agenda
        self._table = table
        self._clock = clock
        self._horizon_us = horizon_us
        self._max_entries = max_entries
        self._database_clock = DatabaseClock()
        self._unread: Range | None = None
        self._stopping = threading.Event()
        self._reload_wanted = threading.Event()
        self._awake = threading.Event()
        """Ends the pause between two looks."""
        self._thread = NamingThread(target=self._run, name="cdcwatch-window", daemon=True)
        self._last_error = ""
        self._progress_us = clock.monotonic_us()
        self._stream_lags, self._is_wanted = stream_lags, is_wanted

    @property
    def last_error(self) -> str:
        """Why the table can't be read now; empty when it can."""
        return self._last_error

    @property
    def progress_monotonic_us(self) -> int:
        """When it last came through a look or a page."""
        return self._progress_us

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    @property
    def is_settled(self) -> bool:
        """Whether all before the window's end was read, and nothing is to be read again."""
        return self.ready.is_set() and self._unread is None and not self._reload_wanted.is_set()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread. False when a read did not end in time."""
        self._stopping.set()
        self._awake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def reload(self) -> None:
        """Asks for everything up to the window's end to be read again: after a gap, or when partitions came in."""
        self._reload_wanted.set()
        self._awake.set()

    def _run(self) -> None:
        failures = 0
        try:
            while not self._stopping.is_set():
                try:
                    self.step()
                except CdcwatchError as error:
                    failures += 1
                    if not self._last_error:
                        log.warning("the window can't be read: %s", error)
                    self._fail(str(error), failures)
                except Exception as error:  # noqa: BLE001 - see below
                    # A mistake of ours must not end the thread: orders would no longer be loaded, unseen.
                    failures += 1
                    log_mistake(log, "the window can't be read", error)
                    self._fail("the window can't be read: see the log", failures)
                else:
                    failures = 0
                    self._last_error = ""
                    self._progress_us = self._clock.monotonic_us()
                    self._awake.wait(_LOOK_EVERY_S)
                    self._awake.clear()
        finally:
            self._table.disconnect()

    def step(self) -> None:
        """One look: reads what is unread, and the next range when it is time. For the thread, and for tests."""
        if self._unread is None and self._reload_wanted.is_set():
            self._reload_wanted.clear()
            self._unread = Range(None, self._agenda.facts().window_end_us)
        if self._unread is None and not self._is_time():
            if self._is_wanted() and self._stream_lags():
                self._read_near()
            return
        self._table.connect()
        if self._unread is None or not self._database_clock.is_known:
            # Each time: a clock that has been set since would place the window beside what is due.
            self._database_clock.observe(self._table.sample_clock(CLOCK_SAMPLES))
        if self._unread is None:
            through_us = self._now_us() + self._horizon_us
            before_us = self._agenda.extend_window(through_us)
            self._unread = Range(before_us if before_us > NEGATIVE_INFINITY_US else None, through_us)
            failpoints.reached("window.extended")
        self._read()
        if self._unread is None:
            self.ready.set()
            # An idle connection for an hour is one that breaks unseen.
            self._table.disconnect()

    def _read_near(self) -> None:
        """What is due about now, as the table has it: orders that a stream held up has not told of yet.

        One short range of the partial index a second; what the stream has said stands.
        """
        self._table.connect()
        now_us = self._now_us()
        for chunk in self._table.open_deadlines(now_us - _NEAR_BEHIND_US, now_us + _NEAR_AHEAD_US):
            self._agenda.load(chunk)

    def _is_time(self) -> bool:
        if not self._database_clock.is_known:
            return True
        facts = self._agenda.facts()
        return wants_extension(
            now_us=self._now_us() if facts.now_us is None else facts.now_us,
            window_end_us=facts.window_end_us,
            horizon_us=self._horizon_us,
            pending=facts.pending,
            max_entries=self._max_entries,
        )

    def _read(self) -> None:
        """Reads `_unread`, and keeps in it what remains when a read breaks off."""
        if self._unread is None:
            return
        after_us, through_us = self._unread
        for chunk in self._table.open_deadlines(after_us, through_us) if self._is_wanted() else ():
            window_end_us = self._agenda.load(chunk)
            self._progress_us = self._clock.monotonic_us()
            failpoints.reached("window.loaded", len(chunk))
            # All before this was read: deadlines without time zone come in the order of their local times.
            last_us = max(NEGATIVE_INFINITY_US, chunk[-1].deadline_us - self._table.disorder_us)
            self._unread = Range(last_us - 1 if last_us > NEGATIVE_INFINITY_US else None, through_us)
            if window_end_us < last_us:
                # No room: the window was pulled back, and what lies beyond is read when it is extended again.
                break
            if self._stopping.is_set():
                return
        self._unread = None

    def _now_us(self) -> int:
        return self._database_clock.now_us(self._clock.monotonic_us())

    def _fail(self, error: str, failures: int) -> None:
        self._last_error = error
        self._table.disconnect()
        self._stopping.wait(RECONNECT.delay_us(failures, random.random()) / 1_000_000)  # noqa: S311 - jitter, no secret
