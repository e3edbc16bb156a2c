"""Connections that close, and the threads on them: as the table's rule wants them, traced where traces are wanted."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from cdcwatch.close.attempt import body_of
from cdcwatch.close.claim import ClaimTable, Takes
from cdcwatch.close.errands import Errands
from cdcwatch.close.timekeeping import Timekeeping
from cdcwatch.close.update import PostgresTable
from cdcwatch.close.workers import CloseObserver, Workers
from cdcwatch.tracing.process import traces_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.close.agenda import Agenda
    from cdcwatch.close.clock import Clock
    from cdcwatch.close.outside import Outside
    from cdcwatch.settings import Settings
    from cdcwatch.table import WatchedTable

_CLOSE_ANSWER_TIMEOUT_S: Final = 15.0
_ALSO_ANSWER_TIMEOUT_S: Final = 120.0
"""With SQL of the user's own in the transaction: giving it up rolls it back and tries it whole again."""


def made_table(
    settings: Settings, table: WatchedTable, clock: Clock, *, name: str, answer_timeout_s: float, dsn: str | None = None
) -> PostgresTable:
    """One connection to the watched table."""
    return _kind_of_table(settings)(
        settings.postgres.dsn if dsn is None else dsn,
        table,
        clock,
        changes=settings.close.set,
        also=settings.close.also,
        application_name=f"cdcwatch {name}",
        answer_timeout_s=answer_timeout_s,
    )


def _kind_of_table(settings: Settings) -> Callable[..., PostgresTable]:
    traces = traces_of(settings)
    if traces is None:
        return PostgresTable
    from cdcwatch.tracing.edges import TracedTable  # noqa: PLC0415  an extra

    return partial(TracedTable, traces=traces)


def _kind_of_claim_table(settings: Settings) -> Callable[..., ClaimTable]:
    traces = traces_of(settings)
    if traces is None:
        return ClaimTable
    from cdcwatch.tracing.edges import TracedClaimTable  # noqa: PLC0415  an extra

    return partial(TracedClaimTable, traces=traces)


def _outside(settings: Settings, table: WatchedTable) -> Outside:
    from cdcwatch.close.outside import HttpOutside  # noqa: PLC0415  urllib3 only where it is used

    claim, traces = settings.close.claim, traces_of(settings)
    outside = HttpOutside(claim.url, partial(body_of, table), connections=claim.concurrency, timeout_s=claim.timeout_s)
    if traces is None:
        return outside
    from cdcwatch.tracing.edges import TracedOutside  # noqa: PLC0415  an extra

    return TracedOutside(outside, traces, table.qualified_name)


class Closers:
    """The threads that close; with `close.action = "claim"` they claim, and others call and record."""

    def __init__(
        self, settings: Settings, table: WatchedTable, agenda: Agenda, clock: Clock, observer: CloseObserver
    ) -> None:
        self._settings, self._table, self._clock = settings, table, clock
        is_claim = settings.close.action == "claim"
        self._errands = _errands(settings, table, clock, observer) if is_claim else None
        self._timeout_s = _ALSO_ANSWER_TIMEOUT_S if settings.close.also else _CLOSE_ANSWER_TIMEOUT_S
        self.workers = Workers(
            agenda,
            self._made,
            clock,
            concurrency=settings.close.concurrency,
            batch_rows=settings.close.claim.batch_rows if is_claim else settings.close.batch_rows,
            attempts=settings.close.attempts,
            observer=observer,
            timekeeping=Timekeeping(
                clock,
                max_offset_us=settings.close.max_clock_offset_ms * 1000,
                max_uncertainty_us=settings.close.max_clock_uncertainty_ms * 1000,
            ),
        )

    def _made(self) -> PostgresTable:
        if self._errands is not None:
            return self._claiming("claim", self._errands)
        return made_table(self._settings, self._table, self._clock, name="close", answer_timeout_s=self._timeout_s)

    def _claiming(self, name: str, errands: Errands) -> ClaimTable:
        settings = self._settings
        return _kind_of_claim_table(settings)(
            settings.postgres.dsn,
            self._table,
            self._clock,
            stuck_after_s=settings.close.claim.stuck_after_s,
            takes=Takes(errands.claimed, errands.wait_for_room),
            changes=settings.close.set,
            also=settings.close.also,
            application_name=f"cdcwatch {name}",
            answer_timeout_s=self._timeout_s,
        )

    def start(self) -> None:
        """Starts the threads."""
        if self._errands is not None:
            errands = self._errands
            errands.start(lambda: self._claiming("record", errands))
        self.workers.start()

    def stop(self, timeout_s: float, *, is_started: bool) -> bool:
        """Finishes the batches and calls in flight. False when some did not end in time."""
        until_us = self._clock.monotonic_us() + int(timeout_s * 1_000_000)
        ended = self.workers.stop(timeout_s)
        if self._errands is not None and is_started:
            ended = self._errands.stop(max(1.0, (until_us - self._clock.monotonic_us()) / 1_000_000)) and ended
        return ended

    @property
    def are_alive(self) -> bool:
        """Whether every thread runs."""
        return self.workers.are_alive and (self._errands is None or self._errands.are_alive)

    @property
    def claims_at_hand(self) -> int:
        """Claimed orders that wait to be called or recorded, or are being called."""
        return 0 if self._errands is None else len(self._errands)

    @property
    def unrecorded(self) -> str:
        """Why answers can't be recorded now; empty when they can."""
        return "" if self._errands is None else self._errands.last_error


def _errands(settings: Settings, table: WatchedTable, clock: Clock, observer: CloseObserver) -> Errands:
    claim = settings.close.claim
    return Errands(
        _outside(settings, table),
        clock,
        observer,
        concurrency=claim.concurrency,
        batch_rows=claim.batch_rows,
        attempts=claim.attempts,
        newest_start_s=claim.stuck_after_s - claim.timeout_s,
        failed_status=claim.failed,
    )
