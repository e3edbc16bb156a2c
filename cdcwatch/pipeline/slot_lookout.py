"""How far the slot is behind, what it keeps, and how long it lasts: asked now and then, beside everything else.

No answer (a server that is away, a right that is missing) is no trouble of the service's: the figures are unknown then.
"""

from __future__ import annotations

import threading
import time
from math import inf, nan
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from cdcwatch.database import connect, translated
from cdcwatch.errors import CdcwatchError
from cdcwatch.slot.outlook import Alarm, Thresholds, WalRate, alarms, time_to_loss_s
from cdcwatch.slot.rates import WalRates
from cdcwatch.slot.status import SlotStatus, read_status

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    import psycopg

    from cdcwatch.settings import Settings
    from cdcwatch.telemetry import Metrics

EVERY_S: Final = 5.0
_ANSWER_TIMEOUT_S: Final = 15.0


class SlotSight(Struct, frozen=True):
    """The slot at one look."""

    status: SlotStatus
    rate: WalRate
    at_s: float
    """Monotonic."""

    @property
    def alarms(self) -> list[Alarm]:
        """By the thresholds of `cdcwatch slot status`."""
        return alarms(self.status, self.rate, Thresholds())

    @property
    def seconds_to_loss(self) -> float:
        """Until the server drops WAL that the slot needs, if nothing more is confirmed.

        0: lost. inf: never (no limit, or nothing is written). NaN: unknown.
        """
        left_s = time_to_loss_s(self.status, self.rate)
        if left_s is not None:
            return left_s
        is_unlimited = self.status.keep_bytes is None or self.rate.worse == 0
        return inf if is_unlimited else nan


class SlotLookout(threading.Thread):
    """Looks every few seconds over one connection of its own."""

    def __init__(self, settings: Settings, *, every_s: float = EVERY_S) -> None:
        super().__init__(name="lookout", daemon=True)  # a connection attempt can't be interrupted
        self._settings, self._every_s = settings, every_s
        self._stop_requested = threading.Event()
        self.latest: SlotSight | None = None
        """None: unknown."""
        self.problem = ""
        """Why it is unknown."""

    def request_stop(self) -> None:
        """Ends it."""
        self._stop_requested.set()

    def run(self) -> None:
        """Until stopped."""
        while not self._stop_requested.is_set():
            try:
                with translated(), self._connect() as connection:
                    rates = WalRates(connection)
                    while not self._stop_requested.is_set():
                        self._look(connection, rates)
                        self._stop_requested.wait(self._every_s)
            except CdcwatchError as error:
                self.latest, self.problem = None, str(error)
                self._stop_requested.wait(self._every_s)

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return connect(
            self._settings.postgres.dsn, application_name="cdcwatch lookout", answer_timeout_s=_ANSWER_TIMEOUT_S
        )

    def _look(self, connection: psycopg.Connection[tuple[Any, ...]], rates: WalRates) -> None:
        rate, status = rates.look(), read_status(connection, self._settings.slot.name)
        if status is None:
            self.latest, self.problem = None, f"there is no slot {self._settings.slot.name}"
        else:
            self.latest, self.problem = SlotSight(status, rate, time.monotonic()), ""

    def export(self, metrics: Metrics) -> None:
        """The gauges; NaN while a figure is unknown."""

        def seen(figure: Callable[[SlotSight], float | None]) -> Callable[[], float]:
            def value() -> float:
                found = figure(self.latest) if self.latest else None
                return nan if found is None else found

            return value

        gauge = metrics.gauge
        gauge("slot_lag_bytes", "WAL from what is confirmed to its end.", seen(lambda one: one.status.lag_bytes))
        gauge(
            "slot_retained_bytes",
            "WAL that the server keeps for the slot.",
            seen(lambda one: one.status.retained_bytes),
        )
        gauge(
            "slot_seconds_to_loss",
            "Forecast until the server drops WAL that the slot needs; +Inf: never.",
            seen(lambda one: one.seconds_to_loss),
        )
        gauge(
            "slot_wal_bytes_per_second",
            "How fast the server writes WAL: now, or on average where that is more.",
            seen(lambda one: one.rate.worse),
        )
        gauge("slot_active", "1 while somebody reads the slot.", seen(lambda one: float(one.status.active)))
        gauge("slot_sample_age_seconds", "Since the slot was looked at.", seen(lambda one: time.monotonic() - one.at_s))
