"""`--role sweep` and `cdcwatch sweep`: closing by polling alone. Needs no slot, no stream and no topic."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from cdcwatch.endpoint import TelemetryServer
from cdcwatch.errors import ConfigurationError
from cdcwatch.pipeline.closing import Sweeping
from cdcwatch.pipeline.onlooker import LOOK_S, Onlooker
from cdcwatch.pipeline.readiness import judge_closer
from cdcwatch.telemetry import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.settings import Settings
    from cdcwatch.table import WatchedTable

_STOP_TIMEOUT_S: Final = 15.0

_log = logging.getLogger(__name__)


class Sweeper:
    """One process that sweeps."""

    def __init__(
        self, settings: Settings, *, once: bool = False, announce_ready: Callable[[], None] = lambda: None
    ) -> None:
        """`once`: ends when nothing is overdue, and takes no other instance into account."""
        self._settings, self._once, self._announce_ready = settings, once, announce_ready
        self._metrics = Metrics()
        self._ended = threading.Event()
        self._onlooker = Onlooker(settings, self._ended, stands_by=not once)
        self._sweeping: Sweeping | None = None
        self._is_stopping = False
        self.closed = 0
        """Orders that it has closed."""
        self.left = 0
        """With `once`: overdue orders that the database refuses to close, or that others hold."""
        gauge = self._metrics.gauge
        gauge("ready", "1 when /readyz is 200.", lambda: float(self.readiness()["ready"]))
        gauge("pending_entries", "Deadlines in memory.", lambda: len(self._sweeping.agenda) if self._sweeping else 0)

    def run(self) -> None:
        """Until `stop`, or with `once` until nothing is overdue. StartOverError: the table is another one now."""
        listen = "" if self._once else self._settings.telemetry.listen
        telemetry = TelemetryServer(listen, self._metrics, self)
        try:
            table = self._onlooker.first_look()
            if table is not None and not self._ended.is_set():
                self._sweep(table)
        finally:
            telemetry.close()

    def stop(self) -> None:
        """From a signal handler or another thread: closes in flight finish."""
        self._ended.set()
        if self._sweeping is not None:
            self._sweeping.sweep.request_stop()

    def readiness(self) -> dict[str, Any]:
        """As of `Vitals`."""
        part = judge_closer(self._sweeping.signs() if self._sweeping else None)
        return {"ready": part.ready, "closer": part.document()}

    def liveness(self) -> list[str]:
        """As of `Vitals`."""
        sweeping = self._sweeping
        return [] if self._is_stopping or sweeping is None or sweeping.are_threads_alive else ["closer"]

    def _sweep(self, table: WatchedTable) -> None:
        sweeping = self._sweeping = Sweeping(self._settings, table, self._metrics, once=self._once)
        sweeping.start()
        try:
            if self._once:
                self.left = sweeping.finish()
            else:
                self._watch(table)
        finally:
            self._is_stopping = True
            sweeping.stop(_STOP_TIMEOUT_S)
            self.closed = sweeping.agenda.recovered

    def _watch(self, table: WatchedTable) -> None:
        """Says when it is ready; begins anew when the statements no longer fit the table."""
        announced = False
        waited_s = 0.0
        while not self._ended.wait(pause_s := LOOK_S if announced else 0.05):
            waited_s += pause_s
            if not announced and self.readiness()["ready"]:
                announced = True
                _log.info("ready")
                self._announce_ready()
            if waited_s >= LOOK_S:
                waited_s = 0.0
                self._onlooker.require_same(table)


def require_sweeping(settings: Settings, *, once: bool) -> None:
    """ConfigurationError where there is nothing to sweep with."""
    if settings.close.action == "none":
        raise ConfigurationError('close.action = "none": a sweep would close nothing', remedy='use "update"')
    if once and settings.close.action == "claim":
        raise ConfigurationError(
            'close.action = "claim": calls and their later attempts outlast a sweep that is to end',
            remedy="run `cdcwatch sweep` without --once",
        )
    if not once and not settings.sweep.interval_s:
        raise ConfigurationError(
            "sweep.interval_s = 0: there is no sweep", remedy="set how many seconds lie between two"
        )
