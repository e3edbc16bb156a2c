"""`--role sweep` and `cdcwatch sweep`: closing by polling alone. Needs no slot, no stream and no topic."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from cdcwatch.close.pending import count_overdue
from cdcwatch.database import connect
from cdcwatch.endpoint import TelemetryServer
from cdcwatch.errors import ConfigurationError
from cdcwatch.headway import is_watched, stage
from cdcwatch.log import about_table
from cdcwatch.pipeline.board import Board
from cdcwatch.pipeline.closing import Sweeping, stop_all
from cdcwatch.pipeline.health import export_heap
from cdcwatch.pipeline.onlooker import LOOK_S, Onlooker
from cdcwatch.pipeline.readiness import judge_closers
from cdcwatch.signals import LONGEST_WAIT_S
from cdcwatch.telemetry import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdcwatch.close.agenda import Agenda
    from cdcwatch.settings import Settings
    from cdcwatch.table import WatchedTable

_STOP_TIMEOUT_S: Final = 15.0
_MOST_COUNTED: Final = 10_000_000

_log = logging.getLogger(__name__)


class Sweeper:
    """One process that sweeps."""

    def __init__(
        self, settings: Settings, *, once: bool = False, announce_ready: Callable[[], None] = lambda: None
    ) -> None:
        """`once`: ends when nothing is overdue, and takes no other instance into account."""
        self._settings, self._once, self._announce_ready = settings, once, announce_ready
        self._each = [one for one in settings.each() if one.close.action != "none"]
        self._metrics = Metrics([one.table.name for one in self._each], role="sweep")
        self._ended = threading.Event()
        self._onlookers = [Onlooker(one, self._ended, stands_by=not once) for one in self._each]
        self._sweepings: dict[str, Sweeping] = {}
        self._is_stopping = False
        self.closed = 0
        """Orders that it has closed."""
        self.left = 0
        """With `once`: overdue orders that the database refuses to close, or that others hold."""
        self._metrics.gauge("ready", "1 when /readyz is 200.", lambda: float(self.readiness()["ready"]))
        export_heap(self._metrics, self._agenda)
        self._board = Board(self._metrics, self, settings)

    def run(self) -> None:
        """Until `stop`, or with `once` until nothing is overdue. StartOverError: the table is another one now."""
        listen = "" if self._once else self._settings.telemetry.listen
        telemetry = TelemetryServer(listen, self._metrics, self, self._board)
        try:
            tables = [onlooker.first_look() for onlooker in self._onlookers]
            found = [table for table in tables if table is not None]
            if len(found) == len(tables) and not self._ended.is_set():
                self._onlookers[0].require_distinct(found)
                self._sweep(found)
        finally:
            telemetry.close()

    def stop(self) -> None:
        """From a signal handler or another thread: closes in flight finish."""
        self._ended.set()
        for sweeping in list(self._sweepings.values()):
            sweeping.sweep.request_stop()

    def readiness(self) -> dict[str, Any]:
        """As of `Vitals`."""
        part = judge_closers({name: sweeping.signs() for name, sweeping in list(self._sweepings.items())})
        return {"ready": part.ready, "closer": part.document()}

    def liveness(self) -> list[str]:
        """As of `Vitals`."""
        alive = all(sweeping.are_threads_alive for sweeping in list(self._sweepings.values()))
        return [] if self._is_stopping or alive else ["closer"]

    def _agenda(self, name: str) -> Agenda | None:
        sweeping = self._sweepings.get(name)
        return None if sweeping is None else sweeping.agenda

    def _sweep(self, tables: Sequence[WatchedTable]) -> None:
        for one, table in zip(self._each, tables, strict=True):
            name = one.table.name
            self._sweepings[name] = Sweeping(one, table, self._metrics.of(name), once=self._once)
        self._board.show(
            [
                (one, self._sweepings[one.table.name].agenda, len(table.key))
                for one, table in zip(self._each, tables, strict=True)
            ]
        )
        sweepings = self._sweepings.values()
        if self._ended.is_set():  # by a signal, after which some of them were made
            self.stop()
        for name, sweeping in self._sweepings.items():
            with about_table(name if len(tables) > 1 else ""):
                sweeping.start()
        try:
            if self._once:
                with stage("closing", unit="orders", total=self._overdue(tables), asked=self._recovered):
                    self.left = sum(sweeping.finish() for sweeping in sweepings)
            else:
                self._watch(tables)
        finally:
            self._is_stopping = True
            stop_all(sweepings, _STOP_TIMEOUT_S)
            self.closed = self._recovered()

    def _recovered(self) -> int:
        return sum(sweeping.agenda.recovered for sweeping in list(self._sweepings.values()))

    def _overdue(self, tables: Sequence[WatchedTable]) -> int | None:
        """Where somebody looks on: it takes a scan of the partial index."""
        if not is_watched():
            return None
        with connect(self._settings.postgres.dsn, application_name="cdcwatch sweep") as connection:
            return sum(count_overdue(connection, table, _MOST_COUNTED) for table in tables)

    def _watch(self, tables: Sequence[WatchedTable]) -> None:
        """Says when it is ready; begins anew when the statements no longer fit the table."""
        announced = False
        waited_s = 0.0
        while not self._ended.wait(pause_s := LONGEST_WAIT_S if announced else 0.05):
            waited_s += pause_s
            if not announced and self.readiness()["ready"]:
                announced = True
                _log.info("ready")
                self._announce_ready()
            if waited_s >= LOOK_S:
                waited_s = 0.0
                for onlooker, table in zip(self._onlookers, tables, strict=True):
                    onlooker.require_same(table)


def require_sweeping(settings: Settings, *, once: bool) -> None:
    """ConfigurationError where there is nothing to sweep with."""
    actions = {one.close.action for one in settings.each()}
    if actions == {"none"}:
        raise ConfigurationError('close.action = "none": a sweep would close nothing', remedy='use "update"')
    if once and "claim" in actions:
        raise ConfigurationError(
            'close.action = "claim": calls and their later attempts outlast a sweep that is to end',
            remedy="run `cdcwatch sweep` without --once",
        )
    if not once and not settings.sweep.interval_s:
        raise ConfigurationError(
            "sweep.interval_s = 0: there is no sweep", remedy="set how many seconds lie between two"
        )
