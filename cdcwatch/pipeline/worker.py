"""`run --role close`: closes the orders of the partitions that the consumer group gives it. Needs no slot."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cdcwatch.endpoint import TelemetryServer
from cdcwatch.errors import CdcwatchError, ConfigurationError
from cdcwatch.handoff.bus import bus_of
from cdcwatch.handoff.heard import Interpreter
from cdcwatch.log import about_table
from cdcwatch.pipeline.board import Board
from cdcwatch.pipeline.closing import Closing
from cdcwatch.pipeline.health import export_ages, export_heap
from cdcwatch.pipeline.interpreter import tune
from cdcwatch.pipeline.onlooker import LOOK_S, Onlooker
from cdcwatch.pipeline.ownership import Ownership
from cdcwatch.pipeline.readiness import judge_closer, judge_subscriber
from cdcwatch.pipeline.reading import ReadingWatch
from cdcwatch.pipeline.subscriber import PartFeed, Subscriber
from cdcwatch.telemetry import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.handoff.member import Holder, Member
    from cdcwatch.pipeline.readiness import Part
    from cdcwatch.settings import Settings
    from cdcwatch.table import WatchedTable

_STOP_TIMEOUT_S: Final = 15.0
_FAREWELL_S: Final = 5.0
"""For leaving the group: with the brokers away it is left by silence."""
_WATCH_S: Final = 0.5

_log = logging.getLogger(__name__)


class Worker:
    """One process of `cdcwatch run --role close`."""

    def __init__(self, settings: Settings, *, announce_ready: Callable[[], None] = lambda: None) -> None:
        self._settings, self._announce_ready = settings, announce_ready
        self._metrics = Metrics([settings.table.name], role="close")
        self._ended = threading.Event()
        self._error: CdcwatchError | None = None
        self._onlooker = Onlooker(settings, self._ended)
        self._reading = ReadingWatch(settings.postgres.dsn, settings.slot.name)
        self._closing: Closing | None = None
        self._subscriber: Subscriber | None = None
        self._is_stopping = False
        self._board = Board(self._metrics, self, settings)
        gauge = self._metrics.gauge
        gauge("ready", "1 when /readyz is 200.", lambda: float(self.readiness()["ready"]))
        export_heap(self._metrics, lambda _table: self._closing.agenda if self._closing else None)
        at_hand = "Claimed orders of this process, of close.claim, until their answer is recorded."
        gauge("claims_at_hand", at_hand, lambda: self._closing.claims_at_hand if self._closing else 0)
        export_ages(self._metrics, "subscriber", self._subscriber_part)
        export_ages(self._metrics, "closer", self._closer_part)
        gauge("assigned_partitions", "--role close: partitions of the topic that are this worker's.", self._assigned)

    def run(self) -> None:
        """Until `stop` or an error that no retry mends. StartOverError: the table is another one now."""
        # As of `Service`: closes don't wait for the interpreter, and small tuples are no cycles.
        tune()
        threading.excepthook = self._thread_died
        telemetry = TelemetryServer(self._settings.telemetry.listen, self._metrics, self, self._board)
        try:
            table = self._onlooker.first_look()
            if table is not None and not self._ended.is_set():
                self._close(table)
        finally:
            telemetry.close()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """From a signal handler or another thread: leaves the group, closes in flight finish."""
        self._ended.set()

    def readiness(self) -> dict[str, Any]:
        """As of `Vitals`."""
        parts = {"subscriber": self._subscriber_part(), "closer": self._closer_part()}
        return {
            "ready": all(part.ready for part in parts.values()),
            **{name: part.document() for name, part in parts.items()},
        }

    def liveness(self) -> list[str]:
        """As of `Vitals`."""
        subscriber, closing = self._subscriber, self._closing
        if self._is_stopping or subscriber is None or closing is None:
            return []
        alive = {"subscriber": subscriber.is_alive(), "closer": closing.are_threads_alive}
        return [name for name, lives in alive.items() if not lives]

    def _subscriber_part(self) -> Part:
        return judge_subscriber(self._subscriber.signs() if self._subscriber else None)

    def _closer_part(self) -> Part:
        return judge_closer(self._closing.signs() if self._closing else None)

    def _assigned(self) -> float:
        return len(self._subscriber.ownership.assigned) if self._subscriber else 0

    def _close(self, table: WatchedTable) -> None:
        closing = self._closing = Closing(
            self._settings,
            table,
            self._metrics,
            stream_lags=self._stream_lags,
            has_told=self._has_told,
            part=Ownership(),
        )
        agenda = closing.agenda
        self._board.show([(self._settings, agenda, len(table.key))])
        if not isinstance(agenda, PartFeed):
            raise TypeError("an agenda of a part")
        subscriber = self._subscriber = Subscriber(
            self._joined,
            Interpreter(table, self._onlooker.database, self._onlooker.system_identifier),
            agenda,
            reload=partial(closing.reload, emptied=False),
            failed=self._fail,
            observer=self._metrics,
        )
        self._reading.look()
        with about_table(self._settings.table.name if self._settings.is_shared else ""):
            closing.start()
        subscriber.start()
        try:
            self._watch(table)
        finally:
            self._is_stopping = True
            _log.info("stopping: leaves the group, closes in flight finish")
            # Others may have our partitions while the last closes run: each statement decides for itself.
            subscriber.request_stop()
            closing.stop(_STOP_TIMEOUT_S)
            subscriber.join(_FAREWELL_S)
            self._reading.disconnect()

    def _joined(self, holder: Holder) -> Member:
        bus = bus_of(self._settings)
        if bus is None:
            raise RuntimeError("asked for before: `require_closing`")
        return bus.member(holder)

    def _fail(self, error: CdcwatchError) -> None:
        self._error = self._error or error
        self._ended.set()

    def _thread_died(self, died: threading.ExceptHookArgs) -> None:
        """A mistake of ours: without its subscriber a worker would close by what it knew."""
        name = died.thread.name if died.thread else "a thread"
        if died.thread is not self._subscriber:
            return  # of a worker that was begun anew
        trace = "".join(traceback.format_exception(died.exc_type, died.exc_value, died.exc_traceback))
        _log.debug("%s died: %s", name, trace)
        kind = died.exc_type.__name__
        self._fail(CdcwatchError(f"{name} met an unexpected {kind}", remedy="start again; report it with --debug"))

    def _stream_lags(self) -> bool:
        """Whether orders may be due that were not told here: then the table is asked."""
        subscriber = self._subscriber
        return subscriber is None or subscriber.lags or self._reading.lags

    def _has_told(self, lsn: int) -> bool:
        """Whether everything up to there was in the topic, and then heard."""
        subscriber, told_s = self._subscriber, self._reading.told_s(lsn)
        return subscriber is not None and told_s is not None and subscriber.caught_up_s > told_s

    def _watch(self, table: WatchedTable) -> None:
        """Says when it is ready; begins anew when the statements no longer fit the table."""
        announced = False
        looked_s = watched_s = time.monotonic()
        while not self._ended.wait(0.05 if not announced else _WATCH_S):
            if not announced and self.readiness()["ready"]:
                announced = True
                _log.info("ready")
                self._announce_ready()
            now_s = time.monotonic()
            if now_s - watched_s >= _WATCH_S:
                watched_s = now_s
                self._reading.look()
            if now_s - looked_s >= LOOK_S:
                looked_s = now_s
                self._onlooker.require_same(table)


def require_closing(settings: Settings) -> None:
    """ConfigurationError where there is nothing to close with, or to hear of orders by."""
    if settings.close.action == "none":
        raise ConfigurationError('close.action = "none": --role close would close nothing', remedy='use "update"')
    if settings.sink.kind not in {"kafka", "redis"}:
        raise ConfigurationError(
            f'sink.kind = "{settings.sink.kind}": --role close hears of orders by the topic',
            remedy='set sink.kind to "kafka" or "redis", or close by --role all or --role sweep',
        )
