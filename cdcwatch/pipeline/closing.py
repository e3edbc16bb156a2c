"""The closing side put together: agenda, workers and window, each with connections of its own."""

from __future__ import annotations

import random
import time
from functools import partial
from typing import TYPE_CHECKING, Final

from cdcwatch.close.agenda import Agenda
from cdcwatch.close.attempt import body_of
from cdcwatch.close.claim import ClaimTable, Takes
from cdcwatch.close.clock import DatabaseClock, SystemClock
from cdcwatch.close.closer import Closer
from cdcwatch.close.errands import Errands
from cdcwatch.close.update import PostgresTable
from cdcwatch.close.window import Window
from cdcwatch.close.workers import CloseObserver, Workers
from cdcwatch.deadline.schedule import Schedule, bucket_bits_for
from cdcwatch.instant import NEGATIVE_INFINITY_US, from_unix_us
from cdcwatch.pipeline.readiness import CloserSigns

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.settings import Settings
    from cdcwatch.table import WatchedTable

_WINDOW_ANSWER_TIMEOUT_S: Final = 60.0  # a page is a scan of up to 20,000 rows, on a server that may just have started
_CLOSE_ANSWER_TIMEOUT_S: Final = 15.0
_ALSO_ANSWER_TIMEOUT_S: Final = 120.0
"""With SQL of the user's own in the transaction: giving it up rolls it back and tries it whole again."""


class Closing:
    """Closes what is due; needs neither the stream nor the sink to go on."""

    def __init__(
        self, settings: Settings, table: WatchedTable, observer: CloseObserver, *, stream_lags: Callable[[], bool]
    ) -> None:
        self.is_started = False
        self._clock = clock = SystemClock()
        horizon_us = int(settings.window.horizon_s * 1_000_000)
        schedule = Schedule(
            window_end_us=NEGATIVE_INFINITY_US,  # nothing is let in before the window is loaded
            max_entries=settings.window.max_entries,
            bucket_bits=bucket_bits_for(horizon_us),
            coarse_before_us=from_unix_us(time.time_ns() // 1000),
        )
        closer = Closer(schedule, random=random.random, attempts=settings.close.attempts)
        self.agenda = Agenda(closer, DatabaseClock(), clock)

        claim = settings.close.claim
        self._errands = _errands(settings, table, clock, observer) if settings.close.action == "claim" else None
        timeout_s = _ALSO_ANSWER_TIMEOUT_S if settings.close.also else _CLOSE_ANSWER_TIMEOUT_S

        def connection(application_name: str, answer_timeout_s: float) -> PostgresTable:
            return PostgresTable(
                settings.postgres.dsn,
                table,
                clock,
                changes=settings.close.set,
                also=settings.close.also,
                application_name=application_name,
                answer_timeout_s=answer_timeout_s,
            )

        def claiming(application_name: str, errands: Errands) -> ClaimTable:
            return ClaimTable(
                settings.postgres.dsn,
                table,
                clock,
                stuck_after_s=claim.stuck_after_s,
                takes=Takes(errands.claimed, errands.wait_for_room),
                changes=settings.close.set,
                also=settings.close.also,
                application_name=application_name,
                answer_timeout_s=timeout_s,
            )

        def closing() -> PostgresTable:
            if self._errands is not None:
                return claiming("cdcwatch claim", self._errands)
            return connection("cdcwatch close", timeout_s)

        self._claiming = claiming
        self._workers = Workers(
            self.agenda,
            closing,
            clock,
            concurrency=settings.close.concurrency,
            batch_rows=settings.close.batch_rows if self._errands is None else claim.batch_rows,
            attempts=settings.close.attempts,
            observer=observer,
        )
        self._window = Window(
            self.agenda,
            connection("cdcwatch window", _WINDOW_ANSWER_TIMEOUT_S),
            clock,
            horizon_us=horizon_us,
            max_entries=settings.window.max_entries,
            stream_lags=stream_lags,
        )

    def start(self) -> None:
        """Loads the window, overdue orders first, and closes from the first of them on."""
        self.is_started = True
        self._window.start()
        if self._errands is not None:
            errands = self._errands
            errands.start(lambda: self._claiming("cdcwatch record", errands))
        self._workers.start()

    def reload(self, emptied: bool) -> None:
        """Reads the table again: partitions came in. `emptied`: some left, or lost their rows."""
        if emptied:
            self.agenda.clear()
        self._window.reload()

    def stop(self, timeout_s: float) -> bool:
        """Finishes the batches in flight and takes no more. False when some did not end in time."""
        until_us = self._clock.monotonic_us() + int(timeout_s * 1_000_000)
        ended = self._workers.stop(timeout_s)
        if self._errands is not None and self.is_started:
            ended = self._errands.stop(max(1.0, (until_us - self._clock.monotonic_us()) / 1_000_000)) and ended
        return self._window.stop(1.0) and ended

    @property
    def are_threads_alive(self) -> bool:
        """Whether all of them run, where they were started."""
        are_calling = self._errands is None or self._errands.are_alive
        return not self.is_started or (self._workers.are_alive and self._window.is_alive and are_calling)

    @property
    def claims_at_hand(self) -> int:
        """Claimed orders of this process that wait to be called or recorded, or are being called."""
        return 0 if self._errands is None else len(self._errands)

    def signs(self) -> CloserSigns:
        """How closing does, for readiness."""
        now_us, health, facts = self._clock.monotonic_us(), self._workers.health(), self.agenda.facts()
        owed_us = health.waiting_since_monotonic_us
        unrecorded = "" if self._errands is None else self._errands.last_error
        # While others are answered the database works: a long batch is no silence.
        unanswered_us = 0 if owed_us is None else now_us - max(owed_us, health.last_answer_monotonic_us)
        return CloserSigns(
            is_started=self.is_started,
            is_loaded=self._window.ready.is_set(),
            is_connected=health.connected > 0 and not unrecorded,
            last_error=unrecorded or health.last_error,
            progress_age_s=(now_us - health.last_progress_monotonic_us) / 1e6,
            unanswered_s=max(0, unanswered_us) / 1e6,
            behind_s=facts.behind_us / 1e6,
            held_up_s=self.agenda.locked_us() / 1e6,
            window_error=self._window.last_error,
            window_age_s=(now_us - self._window.progress_monotonic_us) / 1e6,
        )


def _errands(settings: Settings, table: WatchedTable, clock: SystemClock, observer: CloseObserver) -> Errands:
    from cdcwatch.close.outside import HttpOutside  # noqa: PLC0415  urllib3 only where it is used

    claim = settings.close.claim
    return Errands(
        HttpOutside(claim.url, partial(body_of, table), connections=claim.concurrency, timeout_s=claim.timeout_s),
        clock,
        observer,
        concurrency=claim.concurrency,
        batch_rows=claim.batch_rows,
        attempts=claim.attempts,
        newest_start_s=claim.stuck_after_s - claim.timeout_s,
        failed_status=claim.failed,
    )
