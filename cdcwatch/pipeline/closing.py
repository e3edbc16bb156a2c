"""The closing side put together: agenda, workers and window, each with connections of its own."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from cdcwatch.close.agenda import Agenda
from cdcwatch.close.clock import DatabaseClock, SystemClock
from cdcwatch.close.closer import Closer
from cdcwatch.close.update import PostgresTable
from cdcwatch.close.window import Window
from cdcwatch.close.workers import CloseObserver, Workers
from cdcwatch.deadline.schedule import Schedule, bucket_bits_for
from cdcwatch.instant import NEGATIVE_INFINITY_US, from_unix_us

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.settings import Settings
    from cdcwatch.table import WatchedTable


class Closing:
    """Closes what is due; needs neither the stream nor the sink to go on."""

    def __init__(
        self, settings: Settings, table: WatchedTable, observer: CloseObserver, *, stream_lags: Callable[[], bool]
    ) -> None:
        self.is_started = False
        clock = SystemClock()
        horizon_us = int(settings.window.horizon_s * 1_000_000)
        schedule = Schedule(
            window_end_us=NEGATIVE_INFINITY_US,  # nothing is let in before the window is loaded
            max_entries=settings.window.max_entries,
            bucket_bits=bucket_bits_for(horizon_us),
            coarse_before_us=from_unix_us(time.time_ns() // 1000),
        )
        self.agenda = Agenda(Closer(schedule, random=random.random), DatabaseClock(), clock)

        def connection(application_name: str) -> PostgresTable:
            return PostgresTable(
                settings.postgres.dsn,
                table,
                clock,
                changes=settings.close.set,
                also=settings.close.also,
                application_name=application_name,
            )

        self._workers = Workers(
            self.agenda,
            lambda: connection("cdcwatch close"),
            clock,
            concurrency=settings.close.concurrency,
            batch_rows=settings.close.batch_rows,
            observer=observer,
        )
        self._window = Window(
            self.agenda,
            connection("cdcwatch window"),
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

    def stop(self, timeout_s: float) -> bool:
        """Finishes the batches in flight and takes no more. False when some did not end in time."""
        ended = self._workers.stop(timeout_s)
        return self._window.stop(1.0) and ended

    @property
    def is_ready(self) -> bool:
        """Whether the window is loaded and a worker is connected."""
        return self._window.ready.is_set() and self._workers.health().connected > 0

    @property
    def last_error(self) -> str:
        """Why not; empty when nothing is known to be wrong."""
        return self._workers.health().last_error or self._window.last_error
