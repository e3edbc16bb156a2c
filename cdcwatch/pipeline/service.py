"""The service: makes the rooms, starts and stops their threads, and says how it ended.

Start: the slot is taken, then the transactional id (a standby must not fence the active process), then the progress
record is read, then the table where it is a first start, then the stream and the closes. Stop: reading ends, what was
read becomes durable and is confirmed, closes in flight finish.
"""

from __future__ import annotations

import gc
import logging
import sys
import threading
import time
import traceback
from typing import TYPE_CHECKING, Final

from cdcwatch import failpoints
from cdcwatch.backoff import Backoff
from cdcwatch.deadline.derivation import Derivation
from cdcwatch.deadline.position import Position
from cdcwatch.decode.plugins import decoder_factory
from cdcwatch.endpoint import TelemetryServer
from cdcwatch.errors import CdcwatchError, ConfigurationError, NotDurableError, UnavailableError
from cdcwatch.handoff.outbox import Outbox
from cdcwatch.handoff.progress import Progress
from cdcwatch.handoff.sink import FencedError, NoSink
from cdcwatch.lsn import format_lsn
from cdcwatch.pipeline.beginning import StartOverError, where_to_begin
from cdcwatch.pipeline.health import Health
from cdcwatch.pipeline.heartbeat import Heartbeat
from cdcwatch.pipeline.inquiry import Inquiry, Surroundings
from cdcwatch.pipeline.publisher import Publisher
from cdcwatch.pipeline.reader import Reader, Waker
from cdcwatch.pipeline.reconciliation import publish_reconciled
from cdcwatch.pipeline.snapshot import snapshot_of
from cdcwatch.pipeline.watch import Watch
from cdcwatch.slot.stream import PostgresSlot
from cdcwatch.telemetry import Metrics
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.handoff.progress import Origin
    from cdcwatch.handoff.sink import Sink
    from cdcwatch.pipeline.warden import TableChangedError
    from cdcwatch.settings import Settings
    from cdcwatch.slot.stream import SlotFacts

IN_FLIGHT_LIMIT_BYTES: Final = 32 << 20
STOP_TIMEOUT_S: Final = 30.0
_FAREWELL_S: Final = 3.0
_SWITCH_INTERVAL_S: Final = 0.001
"""A due close waits no longer than this for the interpreter while the reader decodes."""
_GC_THRESHOLDS: Final = (50_000, 20, 50)

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
        self._closes = closes and settings.close.action != "none"
        self._announce_ready = announce_ready
        self._metrics = Metrics()
        self._ended = threading.Event()
        self._error: CdcwatchError | None = None
        self._changed: TableChangedError | None = None
        self._origin: Origin | None = None
        self._facts: SlotFacts | None = None
        self._waker = Waker()
        self._outbox = Outbox(IN_FLIGHT_LIMIT_BYTES, self._waker.wake)
        self._reader: Reader | None = None
        self._publisher: Publisher | None = None
        self._heartbeat: Heartbeat | None = None
        self._watch: Watch | None = None
        self._inquiry = Inquiry(settings)
        self._health = Health(self._outbox, closes=self._closes)

    # -- run ---------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until `stop`, the end of `until`, or an error that no retry mends, which is raised."""
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        # A bite of the stream makes thousands of small tuples and no cycles: look for those seldom.
        gc.freeze()
        gc.set_threshold(*_GC_THRESHOLDS)
        threading.excepthook = self._thread_died
        telemetry = TelemetryServer(self._settings.telemetry.listen, self._metrics, self._health)
        try:
            found = self._surroundings()
            if found is not None and not self._ended.is_set():
                self._start(found)
                self._announce_once_ready()
                self._drain()
        finally:
            telemetry.close()
            self._metrics.log_dead_letters()
            if self._reader is None or not self._reader.is_alive():
                self._waker.close()
        error = self._error or self._changed
        if error is not None:
            raise error

    def stop(self) -> None:
        """From a signal handler or another thread: drain, confirm, end."""
        self._ended.set()

    def _table_changed(self, error: TableChangedError) -> None:
        """From the warden: ends in order, so that the progress record tells of the gap."""
        if self._reader is not None and error.is_gap:
            self._reader.mark_gap(str(error))
        if self._reader is not None and error.alters_publication:
            self._reader.expect_altered_publication()
        self._changed = error
        self._ended.set()

    def _server_warned(self, said: str) -> None:
        """In the reader's thread."""
        watch, reader = self._watch, self._reader
        if watch is not None and reader is not None and (complaint := watch.complaint(said, reader)):
            self._table_changed(complaint)

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
        ours = {self._reader, self._publisher, self._heartbeat, self._watch and self._watch.warden}
        if died.thread not in ours:
            return  # of a service that was begun anew
        name = died.thread.name if died.thread else "a thread"
        trace = "".join(traceback.format_exception(died.exc_type, died.exc_value, died.exc_traceback))
        _log.debug("%s died: %s", name, trace)
        kind = died.exc_type.__name__
        self._fail(CdcwatchError(f"{name} met an unexpected {kind}", remedy="start again; report it with --debug"))

    def _surroundings(self) -> Surroundings | None:
        """What the catalog says; tried again while the server is away."""
        backoff = Backoff(first_s=0.2, most_s=5.0)
        while not self._ended.is_set():
            try:
                return self._inquiry.surroundings(claims=self._closes and self._settings.close.action == "claim")
            except UnavailableError as error:
                if not self._stands_by:
                    raise
                wait_s = backoff.next_s()
                _log.warning("%s; again in %.1f s", error, wait_s)
                self._ended.wait(wait_s)
        return None

    def _start(self, found: Surroundings) -> None:
        settings, table = self._settings, found.table
        watch = self._watch = Watch(settings, table, wake=self._waker.wake)
        if self._closes:
            watch.close_with(self._metrics, stream_lags=self._stream_lags, has_told=self._has_told)
        self._reader = Reader(
            PostgresSlot(
                settings.postgres.for_replication(),
                settings.slot.name,
                plugin=settings.slot.plugin,
                warned=self._server_warned,
            ),
            slot_name=settings.slot.name,
            decoder=decoder_factory(
                settings.slot.plugin,
                table,
                publication=settings.slot.publication,
                server_version=found.server_version,
                leaves=watch.leaves,
            ),
            derivation=self._derivation,
            outbox=self._outbox,
            schedule=watch.closing.agenda if watch.closing else None,
            observer=self._metrics,
            waker=self._waker,
            acquired=self._acquired,
            reached=self.stop,
            failed=self._fail,
            until_lsn=found.current_lsn if self._until_current else self._until_lsn,
            arrivals=watch.arrivals,
            table=(table.oid, table.qualified_name, table.publication),
            stands_by=self._stands_by,
        )
        self._health.reader, self._health.closing, self._health.rule = self._reader, watch.closing, watch.rule
        self._health.export(self._metrics)
        self._reader.start()

    def _stream_lags(self) -> bool:
        """Whether orders may be due that the stream has not told of: then the table is asked."""
        return self._reader is not None and (self._reader.lags or self._reader.has_dead_letters)

    def _has_told(self, lsn: int) -> bool:
        """Whether the stream has told of everything up to there."""
        return self._reader is not None and self._reader.has_passed(lsn)

    def _derivation(self, origin: Origin) -> Derivation:
        watch = self._watched()
        return Derivation(watch.rule, watch.stream_encoder(origin))

    def _watched(self) -> Watch:
        if self._watch is None:
            raise RuntimeError("the table is known before the slot is taken")
        return self._watch

    def _announce_once_ready(self) -> None:
        announced = False
        while not self._ended.wait(0.02 if not announced else 3600):
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
        _log.info("the slot %s is ours; it stands at %s", origin.slot, format_lsn(facts.confirmed_flush_lsn))
        self._facts, self._origin = facts, origin
        start = Progress(origin, Position(end_lsn=facts.confirmed_flush_lsn))
        self._publisher = Publisher(
            self._sink(start, origin.slot),
            self._outbox,
            begin=self._begin,
            owns_slot=self._owns_slot,
            failed=self._publisher_failed,
            stands_by=self._stands_by,
            failing=self._start_closing,  # the database is the arbiter: orders are closed whatever the sink does
        )
        self._health.publisher = self._publisher
        self._publisher.start()
        self._watched().guard(origin, reader, changed=self._table_changed, renewed=self._table_renewed)
        if self._settings.slot.heartbeat_s:
            self._heartbeat = Heartbeat(self._inquiry.beat, interval_s=self._settings.slot.heartbeat_s)
            self._heartbeat.start()

    def _start_closing(self) -> None:
        """Not before a first read has its snapshot: what was closed earlier is in neither the read nor the stream."""
        self._watched().start_closing()

    def _sink(self, start: Progress, slot: str) -> Sink:
        settings = self._settings
        if settings.sink.kind == "none":
            return NoSink(start)
        from cdcwatch.handoff.kafka import AtLeastOnceSink, ExactlyOnceSink  # noqa: PLC0415  librdkafka only where used

        kind = ExactlyOnceSink if settings.kafka.delivery == "exactly_once" else AtLeastOnceSink
        return kind(settings.kafka, slot)

    def _begin(self, sink: Sink, progress: Progress | None) -> Progress:
        """In the publisher's thread, when the sink is open the first time: where the stream begins."""
        facts, origin, reader, watch = self._facts, self._origin, self._reader, self._watched()
        if facts is None or origin is None or reader is None:
            raise RuntimeError("the slot is taken before the sink is opened")
        start = where_to_begin(
            progress,
            facts,
            origin,
            is_exact=sink.is_transactional,
            accept_gap=self._accept_gap,
            server_lsn=self._inquiry.current_lsn,
            publish_snapshot=lambda before, reason: self._publish_snapshot(sink, facts, origin, before, reason),
            reads_again=self._reads_again,
        )
        if start.snapshot is not None:
            watch.forgive_before(start.snapshot.lsn)
        watch.begin(start.partitions)
        self._start_closing()
        reader.begin_at(start, is_exact=sink.is_transactional)
        return start

    def _publish_snapshot(
        self, sink: Sink, facts: SlotFacts, origin: Origin, before: Progress | None, reason: str | None
    ) -> Progress:
        watch = self._watched()
        with snapshot_of(self._settings.postgres.dsn, watch.table) as snapshot:
            watch.forgive_before(snapshot.mark.lsn)
            self._start_closing()
            encoder = watch.encoder(origin)
            return publish_reconciled(
                sink, snapshot, watch.table, encoder, facts=facts, origin=origin, before=before, reason=reason
            )

    def _owns_slot(self) -> bool:
        """Whether the server still has our walsender at the slot."""
        reader, origin = self._reader, self._origin
        facts = reader.facts if reader else None
        return facts is not None and origin is not None and self._inquiry.owns_slot(origin.slot, facts)

    # -- stop --------------------------------------------------------------------------------------------------------

    def _drain(self) -> None:
        """At most STOP_TIMEOUT_S; NotDurableError when something that was read is not durable by then."""
        failpoints.reached("stop.begun")
        give_up_s = time.monotonic() + STOP_TIMEOUT_S
        self._health.is_stopping = True
        failed = self._error is not None
        if not failed:
            _log.info("stopping: what was read becomes durable and is confirmed, closes in flight finish")
        if self._watch is not None:
            self._watch.request_stop()
        if self._heartbeat is not None:
            self._heartbeat.request_stop()
        if self._reader is not None:
            self._reader.request_stop()
        if self._watch is not None and self._watch.closing is not None:
            self._watch.closing.stop(1.0 if failed else STOP_TIMEOUT_S / 2)
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


def require_built(settings: Settings, role: str) -> None:
    """ConfigurationError for what this version's configuration knows and its code doesn't do yet."""
    unbuilt = [
        (settings.sink.kind not in {"kafka", "none"}, f'sink.kind = "{settings.sink.kind}"', 'use "kafka" or "none"'),
        (role not in {"all", "read", "close", "sweep"}, f"--role {role}", "use --role all, read, close or sweep"),
    ]
    for wanted, what, instead in unbuilt:
        if wanted:
            raise ConfigurationError(f"{what} is not in this version", remedy=instead)
