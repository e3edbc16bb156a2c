"""The threads that close: each with its own connection, all on one agenda, which keeps the orders through an outage."""

from __future__ import annotations

import logging
import random
import threading
import traceback
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from cdcwatch import failpoints
from cdcwatch.close.agenda import Work
from cdcwatch.close.closer import ATTEMPTS
from cdcwatch.close.retries import Backoff
from cdcwatch.close.timekeeping import Timekeeping
from cdcwatch.errors import CdcwatchError, ConnectionBrokeError
from cdcwatch.log import NamingThread, told_of
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdcwatch.close.agenda import Agenda
    from cdcwatch.close.attempt import Answer
    from cdcwatch.close.clock import Clock
    from cdcwatch.close.outcome import Outcome, Unclosed
    from cdcwatch.close.table import Table
    from cdcwatch.close.timekeeping import ClockFigures
    from cdcwatch.deadline.schedule import Due

log = logging.getLogger(__name__)

CLOCK_SAMPLES: Final = 5
RECONNECT: Final = Backoff(50_000, 5_000_000)
STALL: Final = Backoff(10_000, 1_000_000)


class CloseObserver(Protocol):
    """Where the figures of closing go. Called by worker threads; must not raise."""

    def batch_settled(self, outcomes: Mapping[Outcome, int], lateness_us: Sequence[int], batch_us: int) -> None:
        """A batch's outcomes, the lateness of each order closed, and how long the batch took."""

    def given_up(self, count: int) -> None:
        """So many orders failed to close for the last time: dead letters."""

    def called(self, answer: Answer, call_us: int) -> None:
        """An external action was called, and how long that took."""

    def clock_measured(self, figures: ClockFigures) -> None:
        """The database's clock was read."""

    def database_lost(self, error: CdcwatchError) -> None:
        """A connection broke or could not be made."""


def log_mistake(logger: logging.Logger, what: str, error: Exception) -> None:
    """Logs where an unforeseen error came from, without its message: that may quote a row."""
    logger.error("%s: %s\n%s", what, type(error).__name__, "".join(traceback.format_tb(error.__traceback__)))


class NoObserver:
    """Takes no figures."""

    def batch_settled(self, outcomes: Mapping[Outcome, int], lateness_us: Sequence[int], batch_us: int) -> None:
        """Nothing."""

    def given_up(self, count: int) -> None:
        """Nothing."""

    def called(self, answer: Answer, call_us: int) -> None:
        """Nothing."""

    def clock_measured(self, figures: ClockFigures) -> None:
        """Nothing."""

    def database_lost(self, error: CdcwatchError) -> None:
        """Nothing."""


class WorkersHealth(NamedTuple):
    """Whether orders get closed."""

    workers: int
    connected: int
    last_progress_monotonic_us: int
    """When a worker last came through a batch, a measurement or an idle slice."""
    last_answer_monotonic_us: int
    """When the database last answered a worker."""
    waiting_since_monotonic_us: int | None
    """Since when the database owes some worker an answer; None: it owes none."""
    last_error: str
    """One line; empty once every worker is connected again."""


class Workers:
    """`concurrency` threads that take from the agenda and close."""

    def __init__(
        self,
        agenda: Agenda,
        make_table: Callable[[], Table],
        clock: Clock,
        *,
        concurrency: int,
        batch_rows: int,
        attempts: int = ATTEMPTS,
        observer: CloseObserver | None = None,
        timekeeping: Timekeeping | None = None,
    ) -> None:
        """`make_table` is called once for each worker and must not connect yet; `attempts` as the agenda's closer's."""
        self._timekeeping = timekeeping or Timekeeping(clock)
        self._attempts = attempts
        self._agenda = agenda
        self._make_table = make_table
        self._clock = clock
        self._batch_rows = batch_rows
        self._observer = observer or NoObserver()
        self._stopping = threading.Event()
        self._threads = [
            NamingThread(target=self._run, args=(number,), name=f"cdcwatch-close-{number}", daemon=True)
            for number in range(concurrency)
        ]
        # Each slot is written by its own thread only.
        self._connected = [False] * concurrency
        self._errors = [""] * concurrency
        self._waiting_since_us: list[int | None] = [None] * concurrency
        self._losses_seen = [0] * concurrency
        self._losses = 0
        self._last_progress_us = self._last_answer_us = clock.monotonic_us()

    def start(self) -> None:
        """Starts the threads; each connects by itself and again when its connection breaks."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> bool:
        """Takes no more orders and waits for the batches in flight. False when some did not end in time."""
        self._stopping.set()
        self._agenda.stop()
        until_us = self._clock.monotonic_us() + int(timeout_s * 1_000_000)
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, (until_us - self._clock.monotonic_us()) / 1_000_000))
        return not any(thread.is_alive() for thread in self._threads)

    def health(self) -> WorkersHealth:
        """How the workers are."""
        return WorkersHealth(
            workers=len(self._threads),
            connected=sum(self._connected),
            last_progress_monotonic_us=self._last_progress_us,
            last_answer_monotonic_us=self._last_answer_us,
            waiting_since_monotonic_us=min(
                (since_us for since_us in self._waiting_since_us if since_us is not None), default=None
            ),
            last_error=next((error for error in self._errors if error), ""),
        )

    @property
    def are_alive(self) -> bool:
        """Whether every thread runs."""
        return all(thread.is_alive() for thread in self._threads)

    def _run(self, number: int) -> None:
        table = self._make_table()
        failures = stalls = 0
        try:
            while not self._stopping.is_set():
                try:
                    self._connect(number, table)
                    stalled = self._step(number, table)
                except CdcwatchError as error:
                    failures += 1
                    self._lose(number, table, error)
                    self._pause(RECONNECT, failures)
                except Exception as error:  # noqa: BLE001 - see below
                    # A mistake of ours must not end the thread: the orders were given back, others may go on.
                    failures += 1
                    log_mistake(log, "a close worker failed", error)
                    self._lose(number, table, CdcwatchError("a close worker failed", remedy="see the log"))
                    self._pause(RECONNECT, failures)
                else:
                    failures = 0
                    self._errors[number] = ""
                    self._last_progress_us = self._clock.monotonic_us()
                    stalls = stalls + 1 if stalled else 0
                    if stalls:
                        self._pause(STALL, stalls)
        finally:
            self._connected[number] = False
            table.disconnect()

    def _connect(self, number: int, table: Table) -> None:
        losses = self._losses
        table.connect()
        self._connected[number] = True
        self._losses_seen[number] = losses

    def _step(self, number: int, table: Table) -> bool:
        """One turn. True when every order of a batch failed, so that the next should wait a little."""
        work = self._agenda.next_work(self._batch_rows)
        stalled = False
        if isinstance(work, list) or work is Work.MEASURE:
            self._waiting_since_us[number] = self._clock.monotonic_us()
            try:
                if isinstance(work, list):
                    stalled = self._close(number, table, work)
                else:
                    self._measure(number, table)
            finally:
                self._waiting_since_us[number] = None
            self._last_answer_us = self._clock.monotonic_us()
        return stalled

    def _renew(self, number: int, table: Table) -> None:
        """Connects anew when another worker has lost its connection since this one was made.

        What cut one may have cut all, without a word: else an order could wait for the time limit of every one in turn.
        """
        if self._losses_seen[number] != self._losses:
            table.disconnect()
            self._connect(number, table)

    def _close(self, number: int, table: Table, batch: list[Due]) -> bool:
        began_us = self._clock.monotonic_us()
        try:
            self._renew(number, table)
        except BaseException:
            self._agenda.give_back(batch)
            raise
        try:
            report = table.close(batch)
        except ConnectionBrokeError:
            given_up = self._agenda.doubt(batch, broke=True)
            if given_up:
                self._tell_on_another(table, given_up)
            raise
        except BaseException:
            self._agenda.doubt(batch)
            raise
        settled = self._agenda.settle(report)
        failpoints.reached("close.settled", len(batch))
        self._observer.batch_settled(settled.outcomes, settled.lateness_us, self._clock.monotonic_us() - began_us)
        if settled.given_up:
            self._tell_given_up(table, settled.given_up)
        elif report.error:
            log.warning(
                "%s not closed for now: %s",
                counted(len(report.unclosed), "order"),
                report.error,
                extra={"reason": report.error},
            )
        return settled.stalled

    def _tell_on_another(self, table: Table, given_up: list[Unclosed]) -> None:
        """Tells of orders that broke the connection, on a new one."""
        try:
            table.disconnect()
            table.connect()
        except BaseException:
            self._agenda.untold(given_up)
            raise
        self._tell_given_up(table, given_up)

    def _tell_given_up(self, table: Table, given_up: list[Unclosed]) -> None:
        try:
            table.tell_given_up(given_up, self._attempts)
        except BaseException:
            self._agenda.untold(given_up)
            raise
        self._observer.given_up(len(given_up))
        log.warning(
            "%s not closed after %d attempts, tried again in about an hour; see `cdcwatch events --dead`: %s",
            counted(len(given_up), "order"),
            self._attempts,
            given_up[-1].error,
            extra={"reason": given_up[-1].error, "count": len(given_up)},
        )

    def _measure(self, number: int, table: Table) -> None:
        try:
            self._renew(number, table)
            samples = table.sample_clock(CLOCK_SAMPLES)
        except BaseException:
            self._agenda.measuring_failed()
            raise
        figures, told = self._timekeeping.measured(self._agenda.observe(samples))
        for line in told:
            log.warning("%s", line)
        self._observer.clock_measured(figures)

    def _lose(self, number: int, table: Table, error: CdcwatchError) -> None:
        if self._connected[number] or not self._errors[number]:
            log.warning("closing waits for the database: %s", error, extra=told_of(error))
        if self._connected[number]:
            self._losses += 1  # two at once may count as one: it differs from what the others saw all the same
        self._connected[number] = False
        self._errors[number] = str(error)
        table.disconnect()
        self._observer.database_lost(error)

    def _pause(self, backoff: Backoff, times: int) -> None:
        self._stopping.wait(backoff.delay_us(times, random.random()) / 1_000_000)  # noqa: S311 - jitter, no secret
