"""One cdcwatch process on the simulated server and broker: the real rooms, driven a step at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcwatch.close.agenda import Agenda, Work
from cdcwatch.close.clock import DatabaseClock
from cdcwatch.close.closer import Closer
from cdcwatch.close.window import Window
from cdcwatch.deadline.derivation import Derivation
from cdcwatch.deadline.event import EventEncoder, Stamp
from cdcwatch.deadline.position import Position, SnapshotVisibility
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.deadline.schedule import Schedule
from cdcwatch.decode.change import Row
from cdcwatch.decode.wal2json import Wal2JsonDecoder
from cdcwatch.errors import CdcwatchError, ConnectionBrokeError, UnavailableError
from cdcwatch.handoff.outbox import Outbox
from cdcwatch.handoff.progress import Progress, SnapshotMark
from cdcwatch.handoff.sink import FencedError
from cdcwatch.instant import NEGATIVE_INFINITY_US, format_instant
from cdcwatch.pipeline.beginning import StartOverError, where_to_begin
from cdcwatch.pipeline.publisher import Publisher
from cdcwatch.pipeline.reader import Reader
from tests.fakes.table import FakeClock
from tests.simulation.oracle import SnapshotTaken, live_us
from tests.simulation.server import SimSlot, SimTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    from cdcwatch.deadline.event import Event
    from cdcwatch.deadline.schedule import Due
    from cdcwatch.handoff.progress import Origin
    from cdcwatch.handoff.sink import Sink
    from cdcwatch.slot.stream import SlotFacts
    from tests.simulation.server import Server

SLOT = "orders"
HORIZON_US = 3_600_000_000
BATCH_ROWS = 4
OUTBOX_BYTES = 20_000


class _Waker:
    def wake(self) -> None:
        """Nobody sleeps."""


class _Observer:
    def read(self, **_: int) -> None:
        """Nobody looks."""


class SimProcess:
    """Between a start and a crash. Every method is one step; what a crash takes with it is in here."""

    def __init__(
        self,
        server: Server,
        sink: Sink,
        *,
        random: Random,
        monotonic_us: int,
        snapshot_taken: Callable[[SnapshotTaken], None],
    ) -> None:
        self.server, self._sink, self._snapshot_taken = server, sink, snapshot_taken
        self.clock = FakeClock(monotonic_us)
        watched = server.database.watched
        schedule = Schedule(window_end_us=NEGATIVE_INFINITY_US, max_entries=1000)
        closer = Closer(schedule, random=random.random, deletes=watched.deletes)
        self.agenda = Agenda(closer, DatabaseClock(), self.clock)
        self._table, window_table = SimTable(server, self.clock), SimTable(server, self.clock)
        self.outbox = Outbox(OUTBOX_BYTES, lambda: None)
        self.reader = Reader(
            SimSlot(server),
            slot_name=SLOT,
            decoder=lambda: Wal2JsonDecoder(watched),
            derivation=lambda origin: Derivation(DeadlineRule(watched), self._encoder(origin)),
            outbox=self.outbox,
            schedules=(self.agenda,),
            observer=_Observer(),
            waker=_Waker(),  # type: ignore[arg-type]
            acquired=self._acquired,
            reached=lambda: None,
            failed=self._fail,
        )
        self._window = Window(
            self.agenda,
            window_table,
            self.clock,
            horizon_us=HORIZON_US,
            max_entries=1000,
            stream_lags=lambda: self.reader.lags,
        )
        self.publisher: Publisher | None = None
        self.error: CdcwatchError | None = None
        self.closes = self.is_stopping = False
        self.has_ended = False
        self._facts: SlotFacts | None = None
        self._origin: Origin | None = None
        self._batch: list[Due] | None = None

    def _encoder(self, origin: Origin) -> EventEncoder:
        return EventEncoder(
            self.server.database.watched, system_identifier=origin.system_identifier, database=origin.database
        )

    def _fail(self, error: CdcwatchError) -> None:
        self.error = error

    def _publisher_failed(self, error: CdcwatchError) -> None:
        self._fail(StartOverError(str(error)) if isinstance(error, FencedError) else error)

    @property
    def walsender_pid(self) -> int:
        """0 without a connection."""
        return self.reader.facts.walsender_pid if self.reader.facts is not None else 0

    # -- what Service does -------------------------------------------------------------------------------------------

    def _acquired(self, facts: SlotFacts, origin: Origin) -> None:
        self._facts, self._origin = facts, origin
        self.publisher = Publisher(
            self._sink,
            self.outbox,
            begin=self._begin,
            owns_slot=lambda: self.server.sender is not None and self.server.sender.pid == self.walsender_pid,
            failed=self._publisher_failed,
            failing=self._start_closing,
        )

    def _begin(self, sink: Sink, progress: Progress | None) -> Progress:
        facts, origin = self._facts, self._origin
        assert facts is not None
        assert origin is not None
        start = where_to_begin(
            progress,
            facts,
            origin,
            is_exact=sink.is_transactional,
            accept_gap=False,
            server_lsn=lambda: self.server.lsn,
            publish_snapshot=lambda _before, _reason: self._publish_snapshot(sink, facts, origin),
        )
        self._start_closing()
        self.reader.begin_at(start, is_exact=sink.is_transactional)
        return start

    def _publish_snapshot(self, sink: Sink, facts: SlotFacts, origin: Origin) -> Progress:
        server = self.server
        mark = SnapshotMark(
            server.lsn, SnapshotVisibility(server.xid + 1, server.xid + 1, frozenset(), to_first_close=True)
        )
        taken = SnapshotTaken(
            frozenset(done.xid for done in server.log),
            {key: format_instant(us) for key, row in server.rows.items() if (us := live_us(row)) is not None},
        )
        progress = Progress(origin, Position(end_lsn=facts.confirmed_flush_lsn), mark)
        events = self._snapshot_events(facts, origin)
        self._start_closing()
        # Told before: a publication may be durable though its answer is lost.
        self._snapshot_taken(taken)
        sink.publish_snapshot(events, progress)
        return progress

    def _snapshot_events(self, facts: SlotFacts, origin: Origin) -> Iterator[Event]:
        rule, encoder = DeadlineRule(self.server.database.watched), self._encoder(origin)
        stamp = Stamp.of_snapshot(facts.confirmed_flush_lsn, self.server.database.now_us)
        for key, row in list(self.server.rows.items()):
            found = Row(row.deadline_us, row.status, row.version)
            derived = rule.inserted(found, rule.live_us(found))
            if derived is not None:
                yield encoder.snapshot(key, derived, stamp)

    def _start_closing(self) -> None:
        self.closes = True

    # -- the scheduler's steps ---------------------------------------------------------------------------------------

    @property
    def now_s(self) -> float:
        """Its monotonic clock."""
        return self.clock.us / 1_000_000

    def read(self) -> None:
        """A bite of the stream, or an attempt at the slot."""
        if self.reader.step(self.now_s) is None:
            self.has_ended = self.is_stopping or self.error is not None

    def publish(self) -> None:
        """One turn of the publisher."""
        if self.publisher is not None:
            self.publisher.step(0.0)

    def look_at_window(self) -> None:
        """One look of the window."""
        if self.closes:
            self._available(self._window.step)

    def take_batch(self) -> None:
        """A worker takes what is due, or measures the clock."""
        if not self.closes or self._batch is not None:
            return
        work = self.agenda.work_now(BATCH_ROWS)
        if isinstance(work, list):
            self._batch = work
        elif work is Work.MEASURE:
            try:
                self._table.connect()
                self.agenda.observe(self._table.sample_clock(1))
            except UnavailableError:
                self.agenda.measuring_failed()

    def close_batch(self) -> bool:
        """The worker closes what it took. Whether there was something."""
        batch, self._batch = self._batch, None
        if batch is None:
            return False
        try:
            self._table.connect()
        except UnavailableError:
            self.agenda.give_back(batch)
            return True
        try:
            report = self._table.close(batch)
        except UnavailableError as error:
            self._table.disconnect()
            self.agenda.untold(self.agenda.doubt(batch, broke=isinstance(error, ConnectionBrokeError)))
        else:
            self.agenda.settle(report)
        return True

    def stop(self) -> None:
        """SIGTERM."""
        self.is_stopping = True
        self.closes = False
        self.reader.request_stop()
        if self.publisher is not None:
            self.publisher.request_stop()
        else:
            self.outbox.close()

    @property
    def starts_over(self) -> bool:
        """Whether it ended to begin anew."""
        return isinstance(self.error, StartOverError)

    @staticmethod
    def _available(step: Callable[[], None]) -> None:
        try:
            step()
        except UnavailableError:
            return
