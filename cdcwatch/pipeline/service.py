"""The service: makes the rooms, starts and stops their threads, and says how it ended.

Start: the slot is taken, then the transactional id (a standby must not fence the active process), then the progress
record is read, then the table where it is a first start, then the stream and the closes. Stop: reading ends, what was
read becomes durable and is confirmed, closes in flight finish.
"""

from __future__ import annotations

import logging
import threading
import time
import traceback
from functools import partial
from typing import TYPE_CHECKING, Final

from cdcwatch import failpoints
from cdcwatch.deadline.derivation import Derivation
from cdcwatch.deadline.position import Position
from cdcwatch.deadline.sharing import SharedDerivation
from cdcwatch.decode.plugins import several_factory
from cdcwatch.endpoint import TelemetryServer
from cdcwatch.errors import (
    CdcwatchError,
    DecodeError,
    NotDurableError,
    PreconditionError,
)
from cdcwatch.handoff.progress import Progress
from cdcwatch.handoff.sink import FencedError, tell_made_anew
from cdcwatch.log import told_of
from cdcwatch.lsn import format_lsn
from cdcwatch.pipeline.beginning import StartOverError, where_to_begin
from cdcwatch.pipeline.board import Board
from cdcwatch.pipeline.catching_up import catching_up
from cdcwatch.pipeline.closing import stop_all
from cdcwatch.pipeline.health import Health
from cdcwatch.pipeline.heartbeat import Heartbeat
from cdcwatch.pipeline.inquiry import Inquiry, Surroundings
from cdcwatch.pipeline.interpreter import tune
from cdcwatch.pipeline.lookouts import Lookouts
from cdcwatch.pipeline.publisher import Publisher
from cdcwatch.pipeline.reachable import once_reachable
from cdcwatch.pipeline.reader import Reader, Waker
from cdcwatch.pipeline.reads import Reads, forgive_before, unread
from cdcwatch.pipeline.recent import RecentOutbox
from cdcwatch.pipeline.sinks import made_sink
from cdcwatch.pipeline.watch import Watch
from cdcwatch.signals import LONGEST_WAIT_S
from cdcwatch.slot.stream import PostgresSlot
from cdcwatch.telemetry import Metrics
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdcwatch.handoff.progress import Origin
    from cdcwatch.handoff.sink import Sink
    from cdcwatch.pipeline.closing import Closing
    from cdcwatch.pipeline.warden import TableChangedError
    from cdcwatch.settings import Settings
    from cdcwatch.slot.stream import SlotFacts

IN_FLIGHT_LIMIT_BYTES: Final = 32 << 20
STOP_TIMEOUT_S: Final = 30.0
_FAREWELL_S: Final = 3.0
_LOOK_S: Final = 0.5

_log = logging.getLogger(__name__)


class Service:
    """One process of `cdcwatch run`."""

    def __init__(
        self,
        settings: Settings,
        *,
        closes: bool = True,
        until_lsn: int | None = None,
        until_current: bool = False,
        accept_gap: bool = False,
        reads_again: bool = False,
        stands_by: bool = True,
        announce_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`until_lsn`: ends by itself once everything up to there is confirmed; `until_current`: up to now.

        `reads_again`: the table is read before the stream goes on, though nothing is missing. `stands_by`: waits while
        another process has the slot, or a server is away.
        """
        self._settings, self._accept_gap, self._reads_again = settings, accept_gap, reads_again
        self._until_lsn, self._until_current, self._stands_by = until_lsn, until_current, stands_by
        self._closes = closes and any(one.close.action != "none" for one in settings.each())
        self._claims = any(one.close.action == "claim" for one in settings.each())
        self._announce_ready = announce_ready
        self._metrics = Metrics([one.table.name for one in settings.each()], role="all" if closes else "read")
        self._ended, self._stopped = threading.Event(), threading.Event()
        self._error: CdcwatchError | None = None
        self._changed: TableChangedError | None = None
        self._origin: Origin | None = None
        self._facts: SlotFacts | None = None
        self._waker = Waker()
        self._outbox = RecentOutbox(IN_FLIGHT_LIMIT_BYTES, self._waker.wake)
        self._reader: Reader | None = None
        self._publisher: Publisher | None = None
        self._heartbeat: Heartbeat | None = None
        self._watches: tuple[Watch, ...] = ()
        self._inquiry = Inquiry(settings)
        self._health = Health(self._outbox, closes=self._closes)
        self._health.export(self._metrics)
        self._lookouts = Lookouts(settings, self._outbox, self._metrics)
        self._board = Board(self._metrics, self._health, settings, outbox=self._outbox, slot=self._lookouts.slot)

    # -- run ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until `stop`, the end of `until`, or an error that no retry mends, which is raised."""
        tune()
        threading.excepthook = self._thread_died
        telemetry = TelemetryServer(self._settings.telemetry.listen, self._metrics, self._health, self._board)
        self._lookouts.start()
        try:
            found = self._surroundings()
            if found is not None and not self._ended.is_set():
                self._until_lsn = found.current_lsn if self._until_current else self._until_lsn
                self._start(found)
                with catching_up(self._until_lsn, self._outbox):
                    self._announce_once_ready()
                if self._closes_on():
                    self._close_alone()
                self._drain()
        finally:
            telemetry.close()
            self._lookouts.request_stop()
            self._metrics.log_dead_letters()
            if self._reader is None or not self._reader.is_alive():
                self._waker.close()
        error = self._error or self._changed
        if error is not None:
            raise error

    def stop(self) -> None:
        """From a signal handler or another thread: drain, confirm, end."""
        self._stopped.set()
        self._ended.set()

    def _table_changed(self, watch: Watch, error: TableChangedError) -> None:
        """From the warden: ends in order, so that the progress record tells of the gap."""
        if self._reader is not None and error.is_gap:
            self._reader.mark_gap(error.past)
        if self._reader is not None and error.alters_publication:
            self._reader.expect_altered_publication()
        watch.is_sound = False
        self._changed = error
        self._ended.set()

    def _server_warned(self, said: str) -> None:
        """In the reader's thread."""
        for watch in self._watches:
            if self._reader is not None and (complaint := watch.complaint(said, self._reader)):
                self._table_changed(watch, complaint)

    def _table_renewed(self, reason: str) -> None:
        """From the warden: the stream goes on, the statements of closing must be made anew."""
        self._fail(StartOverError(reason))

    def _publisher_failed(self, error: CdcwatchError) -> None:
        """A fence that isn't ours: another process has the slot, or had it."""
        self._fail(StartOverError(str(error)) if isinstance(error, FencedError) else error)

    def _fail(self, error: CdcwatchError) -> None:
        self._error = self._error or error
        self._ended.set()

    def _thread_died(self, died: threading.ExceptHookArgs) -> None:
        """A mistake of ours: the process ends, nothing more is confirmed, and a start replays."""
        ours = {self._reader, self._publisher, self._heartbeat, *(watch.warden for watch in self._watches)}
        if died.thread not in ours:
            return  # of a service that was begun anew
        name = died.thread.name if died.thread else "a thread"
        trace = "".join(traceback.format_exception(died.exc_type, died.exc_value, died.exc_traceback))
        _log.debug("%s died: %s", name, trace)
        kind = died.exc_type.__name__
        self._fail(CdcwatchError(f"{name} met an unexpected {kind}", remedy="start again; report it with --debug"))

    def _surroundings(self) -> Surroundings | None:
        """What the catalog says; tried again while the server is away."""
        look = partial(self._inquiry.surroundings, claims=self._closes and self._claims)
        return once_reachable(look, self._ended, stands_by=self._stands_by)

    def _start(self, found: Surroundings) -> None:
        settings = self._settings
        watches = self._watches = tuple(
            Watch(one, table, wake=self._waker.wake) for one, table in zip(settings.each(), found.tables, strict=True)
        )
        if self._closes:
            for watch in watches:
                watch.close_with(self._metrics.of(watch.name), stream_lags=self._stream_lags, has_told=self._has_told)
        self._reader = Reader(
            PostgresSlot(
                settings.postgres.for_replication(),
                settings.slot.name,
                plugin=settings.slot.plugin,
                warned=self._server_warned,
            ),
            slot_name=settings.slot.name,
            decoder=several_factory(
                settings.slot.plugin,
                found.tables,
                publication=settings.slot.publication,
                server_version=found.server_version,
                leaves=[watch.leaves for watch in watches],
            ),
            derivation=self._derivation,
            outbox=self._outbox,
            schedules=[watch.closing.agenda if watch.closing else None for watch in watches],
            observer=self._metrics,
            waker=self._waker,
            acquired=self._acquired,
            reached=self.stop,
            failed=self._fail,
            until_lsn=self._until_lsn,
            arrivals=[watch.arrivals for watch in watches],
            tables=[watch.mark for watch in watches],
            stands_by=self._stands_by,
        )
        self._health.reader = self._reader
        self._health.watches = self._board.watches = watches
        self._health.closings = self._closings()
        self._reader.start()

    def _closings(self) -> dict[str, Closing]:
        return {watch.name: watch.closing for watch in self._watches if watch.closing is not None}

    def _stream_lags(self) -> bool:
        """Whether orders may be due that the stream has not told of: then the table is asked."""
        return self._reader is not None and (self._reader.lags or self._reader.has_dead_letters)

    def _has_told(self, lsn: int) -> bool:
        """Whether the stream has told of everything up to there."""
        return self._reader is not None and self._reader.has_passed(lsn)

    def _derivation(self, origin: Origin) -> Derivation:
        tables = [(watch.rule, watch.stream_encoder(origin)) for watch in self._watches]
        if len(tables) == 1:
            return Derivation(*tables[0])
        return SharedDerivation(tables, [watch.table.oid for watch in self._watches])

    def _announce_once_ready(self) -> None:
        announced = False
        while not self._ended.wait(0.02 if not announced else LONGEST_WAIT_S):
            if not announced and self._health.readiness()["ready"]:
                announced = True
                _log.info("ready")
                self._announce_ready()

    # -- the reader and the publisher meet ---------------------------------------------------------------------------

    def _acquired(self, facts: SlotFacts, origin: Origin) -> None:
        """In the reader's thread, once the slot is ours the first time."""
        reader = self._reader
        if reader is None:
            raise RuntimeError("the reader takes the slot")
        lsn = format_lsn(facts.confirmed_flush_lsn)
        _log.info("the slot %s is ours; it stands at %s", origin.slot, lsn, extra={"slot": origin.slot, "lsn": lsn})
        self._facts, self._origin = facts, origin
        start = Progress(origin, Position(end_lsn=facts.confirmed_flush_lsn))
        self._publisher = Publisher(
            made_sink(self._settings, start, {watch.topic: watch.table for watch in self._watches}),
            self._outbox,
            begin=self._begin,
            owns_slot=self._owns_slot,
            failed=self._publisher_failed,
            stands_by=self._stands_by,
            failing=self._start_closing,  # the database is the arbiter: orders are closed whatever the sink does
        )
        self._health.publisher = self._publisher
        self._publisher.start()
        for watch in self._watches:
            watch.guard(origin, reader, changed=self._table_changed, renewed=self._table_renewed)
        if self._settings.slot.heartbeat_s:
            self._heartbeat = Heartbeat(self._inquiry.beat, interval_s=self._settings.slot.heartbeat_s)
            self._heartbeat.start()

    def _start_closing(self) -> None:
        """Not before a first read has its snapshot: what was closed earlier is in neither the read nor the stream."""
        self._start_closing_of(self._watches)

    @staticmethod
    def _start_closing_of(watches: Sequence[Watch]) -> None:
        for watch in watches:
            watch.start_closing()

    def _begin(self, sink: Sink, progress: Progress | None) -> Progress:
        """In the publisher's thread, when the sink is open the first time: where the stream begins."""
        facts, origin, reader = self._facts, self._origin, self._reader
        if facts is None or origin is None or reader is None:
            raise RuntimeError("the slot is taken before the sink is opened")
        start = where_to_begin(
            progress,
            facts,
            origin,
            is_exact=sink.is_transactional,
            accept_gap=self._accept_gap,
            server_lsn=self._inquiry.current_lsn,
            publish_snapshot=partial(self._reads().publish, sink, facts, origin),
            reads_again=self._reads_again,
        )
        for watch in unread(self._watches, progress, start):
            if watch.topic in sink.made_topics:
                tell_made_anew(watch.topic)
        if start.snapshot is not None:
            forgive_before(self._watches, start.snapshot.lsn)
        for watch, known in zip(self._watches, start.each_partitions, strict=True):
            watch.begin(known)
        self._start_closing()
        reader.begin_at(start, is_exact=sink.is_transactional)
        return start

    def _reads(self) -> Reads:
        return Reads(
            self._settings,
            self._watches,
            self._inquiry,
            begun=self._start_closing_of,
            awaits=self._health.await_writers,
            ended=self._ended,
            reads_all=self._reads_again,
        )

    def _owns_slot(self) -> bool:
        """Whether the server still has our walsender at the slot."""
        reader, origin = self._reader, self._origin
        facts = reader.facts if reader else None
        return facts is not None and origin is not None and self._inquiry.owns_slot(origin.slot, facts)

    # -- one table of several in trouble -----------------------------------------------------------------------------

    def _closes_on(self) -> bool:
        """Whether the stream has ended for what is wrong with a table, and others have orders to close."""
        closings = self._closings().values()
        if len(closings) <= 1 or self._stopped.is_set() or not any(closing.is_started for closing in closings):
            return False
        return isinstance(self._error or self._changed, PreconditionError | DecodeError)

    def _close_alone(self) -> None:
        """What was read becomes durable, and is confirmed; closing goes on until the process is told to stop."""
        error = self._error or self._changed
        if error is None or self._reader is None:
            return
        until_stopped = "%s (remedy: %s): nothing is read any more; orders are closed until I am stopped"
        _log.error(until_stopped, error, error.remedy, extra=told_of(error))
        self._health.trouble = str(error)
        self._reader.request_stop()
        if self._publisher is not None:
            self._publisher.request_stop()
        self._join(time.monotonic() + STOP_TIMEOUT_S)
        while not self._stopped.wait(_LOOK_S):
            for watch in self._watches:
                watch.close_if_sound()
            self._health.closings = self._closings()

    # -- stop --------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """At most STOP_TIMEOUT_S; NotDurableError when something that was read is not durable by then."""
        failpoints.reached("stop.begun")
        give_up_s = time.monotonic() + STOP_TIMEOUT_S
        self._health.is_stopping = True
        failed = self._error is not None
        if not failed:
            _log.info("stopping: what was read becomes durable and is confirmed, closes in flight finish")
        for watch in self._watches:
            watch.request_stop()
        if self._heartbeat is not None:
            self._heartbeat.request_stop()
        if self._reader is not None:
            self._reader.request_stop()
        stop_all([watch.closing for watch in self._watches], 1.0 if failed else STOP_TIMEOUT_S / 2)
        if self._publisher is not None:
            self._publisher.request_stop()
        self._join(time.monotonic() + 1.0 if failed else give_up_s)
        if not failed and not self._outbox.is_idle:
            events = counted(self._outbox.unacknowledged_events, "event")
            self._error = NotDurableError(
                f"stopped with {events} not durable; nothing of that is confirmed",
                remedy="start again: they are read again from the slot and published",
            )
        failpoints.reached("stop.drained")

    def _join(self, give_up_s: float) -> None:
        for thread in (self._publisher, self._reader):
            if thread is not None and thread.is_alive():
                thread.join(max(0.1, give_up_s - time.monotonic()))
        if self._reader is not None and self._reader.is_alive():
            self._reader.abandon()
            self._reader.join(_FAREWELL_S)
