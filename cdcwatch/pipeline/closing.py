"""The closing side put together: agenda, workers and window, each with connections of its own."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING, Final

from cdcwatch.close.agenda import Agenda
from cdcwatch.close.clock import DatabaseClock, SystemClock
from cdcwatch.close.closer import Closer
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

        self._workers = Workers(
            self.agenda,
            lambda: connection(
                "cdcwatch close", _ALSO_ANSWER_TIMEOUT_S if settings.close.also else _CLOSE_ANSWER_TIMEOUT_S
            ),
            clock,
            concurrency=settings.close.concurrency,
            batch_rows=settings.close.batch_rows,
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
        self._workers.start()

    def reload(self, emptied: bool) -> None:
        """Reads the table again: partitions came in. `emptied`: some left, or lost their rows."""
        if emptied:
            self.agenda.clear()
        self._window.reload()

    def stop(self, timeout_s: float) -> bool:
        """Finishes the batches in flight and takes no more. False when some did not end in time."""
        ended = self._workers.stop(timeout_s)
        return self._window.stop(1.0) and ended

    @property
    def are_threads_alive(self) -> bool:
        """Whether all of them run, where they were started."""
        return not self.is_started or (self._workers.are_alive and self._window.is_alive)

    def signs(self) -> CloserSigns:
        """How closing does, for readiness."""
        now_us, health, facts = self._clock.monotonic_us(), self._workers.health(), self.agenda.facts()
        owed_us = health.waiting_since_monotonic_us
        # While others are answered the database works: a long batch is no silence.
        unanswered_us = 0 if owed_us is None else now_us - max(owed_us, health.last_answer_monotonic_us)
        return CloserSigns(
            is_started=self.is_started,
            is_loaded=self._window.ready.is_set(),
            is_connected=health.connected > 0,
            last_error=health.last_error,
            progress_age_s=(now_us - health.last_progress_monotonic_us) / 1e6,
            unanswered_s=max(0, unanswered_us) / 1e6,
            behind_s=facts.behind_us / 1e6,
            held_up_s=self.agenda.locked_us() / 1e6,
            window_error=self._window.last_error,
            window_age_s=(now_us - self._window.progress_monotonic_us) / 1e6,
        )
