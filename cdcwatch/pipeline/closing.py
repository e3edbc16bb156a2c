"""The closing side put together: agenda, workers and window, each with connections of its own."""

from __future__ import annotations

import random
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from cdcwatch.close.agenda import Agenda
from cdcwatch.close.clock import DatabaseClock, SystemClock
from cdcwatch.close.closer import Closer
from cdcwatch.close.instances import Instances
from cdcwatch.close.part import PartAgenda
from cdcwatch.close.replica import ReplicaFirst, Standby
from cdcwatch.close.sweep import Sweep, SweepObserver
from cdcwatch.close.window import Window
from cdcwatch.close.workers import CloseObserver
from cdcwatch.deadline.schedule import Schedule, bucket_bits_for
from cdcwatch.instant import INFINITY_US, NEGATIVE_INFINITY_US, from_unix_us
from cdcwatch.pipeline.closers import Closers, made_table
from cdcwatch.pipeline.readiness import CloserSigns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cdcwatch.close.clock import Clock
    from cdcwatch.close.part import Part
    from cdcwatch.close.table import Scan
    from cdcwatch.settings import Settings
    from cdcwatch.table import WatchedTable

_WINDOW_ANSWER_TIMEOUT_S: Final = 60.0  # a page is a scan of up to 20,000 rows, on a server that may just have started


class Observer(CloseObserver, SweepObserver, Protocol):
    """Where all figures go."""


def _agenda(
    settings: Settings, clock: Clock, *, window_end_us: int, bucket_bits: int, part: Part | None = None
) -> Agenda:
    schedule = Schedule(
        window_end_us=window_end_us,
        max_entries=settings.window.max_entries,
        bucket_bits=bucket_bits,
        coarse_before_us=from_unix_us(time.time_ns() // 1000),
    )
    close = settings.close
    closer = Closer(schedule, random=random.random, attempts=close.attempts, deletes=close.action == "delete")
    if part is not None:
        return PartAgenda(closer, DatabaseClock(), clock, part)
    return Agenda(closer, DatabaseClock(), clock)


def _sweep(
    settings: Settings,
    table: WatchedTable,
    agenda: Agenda,
    clock: Clock,
    observer: SweepObserver,
    *,
    may_sweep: Callable[[], bool] = lambda: True,
    has_told: Callable[[int], bool] | None = None,
    is_alone: bool = False,
) -> Sweep:
    """`is_alone`: everything that is overdue at all is this process's own, which ends with it."""
    sweep, dsn = settings.sweep, settings.postgres.dsn
    instances = Instances(dsn, table, weight=sweep.weight)
    made = partial(made_table, settings, table, clock, name="sweep", answer_timeout_s=_WINDOW_ANSWER_TIMEOUT_S)
    scan: Scan = made()
    if sweep.dsn and not is_alone:
        scan = ReplicaFirst(
            scan,
            made(dsn=sweep.dsn),
            Standby(sweep.dsn, instances.identity),
            clock,
            position=instances.position,
            max_delay_ms=sweep.max_delay_ms,
            fell_back=observer.fell_back,
        )
    return Sweep(
        agenda,
        scan,
        None if is_alone else instances,
        clock,
        interval_s=sweep.interval_s,
        grace_ms=0 if is_alone else sweep.grace_ms,
        batch_rows=sweep.batch_rows,
        rows_per_s=sweep.rows_per_s,
        observer=observer,
        may_sweep=may_sweep,
        has_told=has_told,
    )


class Closing:
    """Closes what is due; needs neither the stream nor the sink to go on."""

    def __init__(
        self,
        settings: Settings,
        table: WatchedTable,
        observer: Observer,
        *,
        stream_lags: Callable[[], bool],
        has_told: Callable[[int], bool],
        part: Part | None = None,
    ) -> None:
        """`has_told`: whether the stream has told of all up to a position. `part`: what is ours; None: everything."""
        self.is_started = False
        self._clock = clock = SystemClock()
        horizon_us = int(settings.window.horizon_s * 1_000_000)
        # Nothing is let in before the window is loaded.
        self.agenda = _agenda(
            settings, clock, window_end_us=NEGATIVE_INFINITY_US, bucket_bits=bucket_bits_for(horizon_us), part=part
        )
        self._closers = Closers(settings, table, self.agenda, clock, observer)
        self._window = Window(
            self.agenda,
            made_table(settings, table, clock, name="window", answer_timeout_s=_WINDOW_ANSWER_TIMEOUT_S),
            clock,
            horizon_us=horizon_us,
            max_entries=settings.window.max_entries,
            stream_lags=stream_lags,
            is_wanted=lambda: not (isinstance(self.agenda, PartAgenda) and self.agenda.part.is_empty),
        )
        self.sweep: Sweep | None = None
        if settings.sweep.interval_s:
            self.sweep = _sweep(
                settings,
                table,
                self.agenda,
                clock,
                observer,
                may_sweep=lambda: self._window.is_settled,
                has_told=has_told,
            )

    def start(self) -> None:
        """Loads the window, overdue orders first, and closes from the first of them on."""
        self.is_started = True
        self._window.start()
        self._closers.start()
        if self.sweep is not None:
            self.sweep.start()

    def reload(self, emptied: bool) -> None:
        """Reads the table again: partitions came in. `emptied`: some left, or lost their rows."""
        if emptied:
            self.agenda.clear()
        self._window.reload()

    def stop(self, timeout_s: float) -> bool:
        """Finishes the batches in flight and takes no more. False when some did not end in time."""
        if self.sweep is not None:
            self.sweep.request_stop()
        ended = self._closers.stop(timeout_s, is_started=self.is_started)
        if self.sweep is not None:
            ended = self.sweep.stop(1.0) and ended
        return self._window.stop(1.0) and ended

    @property
    def are_threads_alive(self) -> bool:
        """Whether all of them run, where they were started."""
        sweeps = self.sweep is None or self.sweep.is_alive
        return not self.is_started or (self._closers.are_alive and self._window.is_alive and sweeps)

    @property
    def claims_at_hand(self) -> int:
        """Claimed orders of this process that wait to be called or recorded, or are being called."""
        return self._closers.claims_at_hand

    def signs(self) -> CloserSigns:
        """How closing does, for readiness."""
        return _signs(
            self._clock,
            self.agenda,
            self._closers,
            is_started=self.is_started,
            is_loaded=self._window.ready.is_set(),
            loader_error=self._window.last_error,
            loaded_us=self._window.progress_monotonic_us,
        )


class Sweeping:
    """Closes what is overdue in the table, found by looking there alone: no stream, no window."""

    def __init__(self, settings: Settings, table: WatchedTable, observer: Observer, *, once: bool) -> None:
        """`once`: everything that is overdue at all, whoever else sweeps."""
        self.is_started = False
        self._clock = clock = SystemClock()
        # A backlog may be years long.
        bits = bucket_bits_for(365 * 86_400_000_000)
        self.agenda = _agenda(settings, clock, window_end_us=INFINITY_US - 1, bucket_bits=bits)
        self._closers = Closers(settings, table, self.agenda, clock, observer)
        self.sweep = _sweep(settings, table, self.agenda, clock, observer, is_alone=once)
        self._once = once

    def start(self) -> None:
        """Looks and closes from now on; with `once` by `finish`."""
        self.is_started = True
        self._closers.start()
        if not self._once:
            self.sweep.start()

    def finish(self) -> int:
        """Closes until nothing is overdue but what is refused or held by others, and tells how much that is."""
        return self.sweep.finish()

    def stop(self, timeout_s: float) -> bool:
        """Finishes the batches in flight and takes no more. False when some did not end in time."""
        self.sweep.request_stop()
        ended = self._closers.stop(timeout_s, is_started=self.is_started)
        return self.sweep.stop(1.0) and ended

    @property
    def are_threads_alive(self) -> bool:
        """Whether all of them run, where they were started."""
        return not self.is_started or (self._closers.are_alive and (self._once or self.sweep.is_alive))

    def signs(self) -> CloserSigns:
        """How closing does, for readiness."""
        return _signs(
            self._clock,
            self.agenda,
            self._closers,
            is_started=self.is_started,
            is_loaded=self.sweep.has_looked,
            loader_error=self.sweep.last_error,
            loaded_us=self._clock.monotonic_us() if not self.sweep.last_error else self.sweep.looked_monotonic_us,
        )


def _signs(
    clock: Clock,
    agenda: Agenda,
    closers: Closers,
    *,
    is_started: bool,
    is_loaded: bool,
    loader_error: str,
    loaded_us: int,
) -> CloserSigns:
    now_us, health, facts = clock.monotonic_us(), closers.workers.health(), agenda.facts()
    owed_us = health.waiting_since_monotonic_us
    # While others are answered the database works: a long batch is no silence.
    unanswered_us = 0 if owed_us is None else now_us - max(owed_us, health.last_answer_monotonic_us)
    return CloserSigns(
        is_started=is_started,
        is_loaded=is_loaded,
        is_connected=health.connected > 0 and not closers.unrecorded,
        last_error=closers.unrecorded or health.last_error,
        progress_age_s=(now_us - health.last_progress_monotonic_us) / 1e6,
        unanswered_s=max(0, unanswered_us) / 1e6,
        behind_s=facts.behind_us / 1e6,
        held_up_s=agenda.locked_us() / 1e6,
        refused_s=agenda.refused_us() / 1e6,
        window_error=loader_error,
        window_age_s=(now_us - loaded_us) / 1e6,
    )


def stop_all(closings: Iterable[Closing | Sweeping | None], timeout_s: float) -> None:
    """Finishes the batches in flight of all of them at a time, and takes no more."""
    stopping = [
        threading.Thread(target=closing.stop, args=(timeout_s,), name="stopping", daemon=True)
        for closing in closings
        if closing is not None
    ]
    for thread in stopping:
        thread.start()
    for thread in stopping:
        thread.join()
