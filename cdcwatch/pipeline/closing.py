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
from cdcwatch.close.workers import CloseObserver, Workers, WorkersHealth
from cdcwatch.deadline.schedule import Schedule, bucket_bits_for
from cdcwatch.instant import NEGATIVE_INFINITY_US, from_unix_us

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.settings import Settings
    from cdcwatch.table import WatchedTable

_WINDOW_ANSWER_TIMEOUT_S: Final = 60.0  # a page is a scan of up to 20,000 rows, on a server that may just have started
_CLOSE_ANSWER_TIMEOUT_S: Final = 15.0
_ALSO_ANSWER_TIMEOUT_S: Final = 120.0
"""With SQL of the user's own in the transaction: giving it up rolls it back and tries it whole again."""
# Longer than a batch takes, with `also` and triggers, on a busy server.
_STUCK_US: Final = 5_000_000


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
        self.agenda = Agenda(Closer(schedule, random=random.random), DatabaseClock(), clock)

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
    def is_ready(self) -> bool:
        """Whether the window is loaded, a worker is connected, and what is due gets closed."""
        return self._window.ready.is_set() and self._workers.health().connected > 0 and not self._is_stuck

    @property
    def last_error(self) -> str:
        """Why not; empty when nothing is known to be wrong."""
        stuck = "nothing due gets closed: the database does not answer" if self._is_stuck else ""
        return self._workers.health().last_error or self._window.last_error or stuck

    @property
    def _is_stuck(self) -> bool:
        return is_stuck(self._workers.health(), self.agenda.facts().overdue_us, self._clock.monotonic_us())


def is_stuck(health: WorkersHealth, overdue_us: int, now_us: int) -> bool:
    """Whether something is due and nothing was done about it for seconds.

    What is with a worker is not overdue on the agenda any more, and idle workers make their rounds meanwhile: then it
    is the database's last answer that counts.
    """
    since_us = health.waiting_since_monotonic_us
    unanswered = since_us is not None and now_us - max(since_us, health.last_answer_monotonic_us) > _STUCK_US
    return unanswered or (overdue_us > _STUCK_US and now_us - health.last_progress_monotonic_us > _STUCK_US)
