"""The reader's thread: takes the slot, follows its stream, comes back when the connection breaks."""

from __future__ import annotations

import logging
import select
import socket
import threading
import time
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from cdcwatch import failpoints
from cdcwatch.backoff import Backoff
from cdcwatch.errors import CdcwatchError, GapError, PreconditionError, UnavailableError
from cdcwatch.handoff.progress import Origin, Progress, TableMark
from cdcwatch.log import at_lsn, told_of
from cdcwatch.pipeline.beginning import StartOverError, require_no_gap
from cdcwatch.pipeline.follower import LAG_S, Follower, ReadingState, StreamRestart
from cdcwatch.pipeline.readiness import ReaderSigns
from cdcwatch.slot.stream import SlotBusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdcwatch.deadline.derivation import Derivation
    from cdcwatch.decode.change import Decoder
    from cdcwatch.handoff.outbox import Outbox
    from cdcwatch.pipeline.arrivals import Arrivals
    from cdcwatch.pipeline.follower import ReadingObserver, ScheduleFeed
    from cdcwatch.slot.stream import Holder, Slot, SlotFacts, SlotStream

_STANDBY_POLL_S: Final = 1.0
_STOP_POLL_S: Final = 0.05

_log = logging.getLogger(__name__)


class Waker:
    """Ends another thread's wait on a socket."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._theirs.setblocking(False)

    def wake(self) -> None:
        """From any thread, any number of times."""
        try:
            self._ours.send(b"\0")
        except BlockingIOError:
            return  # it is awake enough

    def wait(self, others: list[int], timeout_s: float) -> None:
        """Until woken, one of the others is readable, or the time is over."""
        if self._theirs.fileno() in select.select([self._theirs.fileno(), *others], [], [], timeout_s)[0]:
            self._theirs.recv(4096)

    def close(self) -> None:
        """Both ends."""
        self._ours.close()
        self._theirs.close()


class _Following(Struct):
    """A connection that streams."""

    stream: SlotStream
    state: ReadingState
    follower: Follower
    stepped_s: float = 0.0


class Reader(threading.Thread):
    """Owns the slot while it runs. `failed` is called with an error that no retry mends."""

    def __init__(
        self,
        slot: Slot,
        *,
        slot_name: str,
        decoder: Callable[[], Decoder],
        derivation: Callable[[Origin], Derivation],
        outbox: Outbox,
        schedules: Sequence[ScheduleFeed | None],
        observer: ReadingObserver,
        waker: Waker,
        acquired: Callable[[SlotFacts, Origin], None],
        reached: Callable[[], None],
        failed: Callable[[CdcwatchError], None],
        until_lsn: int | None = None,
        arrivals: Sequence[Arrivals | None] = (None,),
        tables: Sequence[TableMark] = (TableMark(),),
        stands_by: bool = True,
    ) -> None:
        """`schedules`, `arrivals` and `tables`: of every table; the last for the progress record.

        `stands_by`: waits while another process has the slot, or the server is away.
        """
        super().__init__(name="reader", daemon=True)  # a connection attempt can't be interrupted
        self._slot, self._slot_name = slot, slot_name
        self._make_decoder, self._make_derivation = decoder, derivation
        self._outbox, self._schedules, self._observer, self._waker = outbox, schedules, observer, waker
        self._acquired, self._reached, self._failed = acquired, reached, failed
        self._until_lsn, self._arrivals, self._tables, self._stands_by = until_lsn, arrivals, tables, stands_by
        self._state: ReadingState | None = None
        self._derivation: Derivation | None = None
        self._facts: SlotFacts | None = None
        self._stop_requested, self._abandoned = threading.Event(), threading.Event()
        self._following: _Following | None = None
        self._backoff = Backoff(first_s=0.1, most_s=5.0)
        self._announced: Holder | None = None
        self._gap: str | None = None
        self._away, self._expects_alteration = "", False
        self._begin_lsn = 0  # where the slot stood when it was taken
        self._applied_lsn = 0  # through where the schedule has seen the stream, a replay that broke off counted back
        self.reconnect_count = 0
        self._stepped_s = self._heard_s = time.monotonic()

    @property
    def facts(self) -> SlotFacts | None:
        """Of the connection at hand; None while there is none."""
        return self._facts

    @property
    def is_streaming(self) -> bool:
        """Whether the slot is ours and the sink has told where to begin."""
        state = self._state
        return self._facts is not None and state is not None and state.start is not None

    @property
    def lags(self) -> bool:
        """Whether the stream is behind, held up or away."""
        state = self._state
        return self._facts is None or state is None or time.monotonic() - state.caught_up_s > LAG_S

    def signs(self, now_s: float) -> ReaderSigns:
        """How reading does, for readiness. From any thread; `now_s` by the clock of `step`."""
        return ReaderSigns(
            is_streaming=self.is_streaming,
            has_slot=self._facts is not None,
            away=self._away,
            stepped_age_s=now_s - self._stepped_s,
            heard_age_s=now_s - self._heard_s,
        )

    @property
    def has_dead_letters(self) -> bool:
        """Whether there are rows of which the stream told what nobody understood."""
        return self._derivation is not None and self._derivation.dead_letter_count > 0

    @property
    def confirmed_lsn(self) -> int:
        """What the server was told last."""
        return self._state.confirmed_lsn if self._state else 0

    def begin_at(self, start: Progress, *, is_exact: bool) -> None:
        """From the publisher: events through `start` are in the sink; reading may begin.

        `is_exact`: the snapshot in the record is all that the topic holds of the table's read. Else it may hold more:
        events of an attempt that broke off, of orders that were settled before the next one. Nothing is skipped then.
        """
        if self._state is None:
            raise RuntimeError("the publisher runs only once the slot is ours")
        mark = start.snapshot
        if mark is not None and self._begin_lsn >= mark.lsn:
            mark = None
        self._state.begin_at(start, mark, skips_snapshot=is_exact)
        self._waker.wake()

    def has_passed(self, lsn: int) -> bool:
        """Whether the stream was read beyond it, and events before it handed over."""
        return self._derivation is not None and self._derivation.position.end_lsn >= lsn

    def mark_gap(self, reason: str) -> None:
        """The last progress record shall say that events may be missing, so that no later start overlooks it."""
        self._gap = reason

    def expect_altered_publication(self) -> None:
        """The last progress record shall not hold it against the publication that it was altered: we said how."""
        self._expects_alteration = True

    def request_stop(self) -> None:
        """Stops reading; the thread ends once all that was read is durable and confirmed, or with `abandon`."""
        self._stop_requested.set()
        self._waker.wake()

    def abandon(self) -> None:
        """Ends the thread though not all that was read is durable: nothing more is confirmed."""
        self._abandoned.set()
        self.request_stop()

    def run(self) -> None:
        """Until stopped or failed."""
        try:
            while (wait_s := self.step(time.monotonic())) is not None:
                self._rest(wait_s)
        finally:
            self._close_outbox()

    def step(self, now_s: float) -> float | None:
        """Takes the slot, or follows its stream for a bite; never waits for anything but a connection.

        Seconds after which it wants to be called again though nothing arrived; negative: only then. None: it has ended.
        """
        self._stepped_s = now_s
        try:
            return self._turn(now_s)
        except SlotBusyError as error:
            if not self._stands_by:
                self._failed(PreconditionError(str(error), remedy="end that process first: SIGTERM lets it drain"))
                return None
            if self._announced != error.holder:
                self._announced = error.holder
                _log.warning("standby: %s", error)
            self._away = ""
            return _STANDBY_POLL_S
        except StreamRestart as restart:
            self._leave()
            _log.info("reader: %s", restart)
            return 0.0
        except CdcwatchError as error:
            self._leave()
            if isinstance(error, UnavailableError) and self._stands_by:
                return self._lost(error)
            if isinstance(error, GapError):
                self.mark_gap(str(error))
            self._failed(error)
            return None

    def _lost(self, error: UnavailableError) -> float:
        wait_s = self._backoff.next_s()
        remedy = f" (remedy: {error.remedy})" if str(error) != self._away else ""
        self.reconnect_count, self._away = self.reconnect_count + 1, str(error)
        _log.warning(
            "reader: %s; again in %.1f s%s", error, wait_s, remedy, extra=told_of(error, lsn=self.confirmed_lsn)
        )
        failpoints.reached("stream.lost")
        return wait_s

    def _turn(self, now_s: float) -> float | None:
        following = self._following
        if following is None:
            return None if self._stop_requested.is_set() else self._begin(now_s)
        if self._is_done(following):
            failpoints.reached("stop.confirmed")
            self._leave()
            return None
        return self._follow(following, now_s)

    def _rest(self, wait_s: float) -> None:
        following = self._following
        if following is None:
            self._stop_requested.wait(wait_s)
        elif wait_s < 0:
            # The step's own work was rest enough for the socket to fill up.
            time.sleep(max(0.0, following.stepped_s - wait_s - time.monotonic()))
        elif wait_s > 0:
            self._waker.wait([following.stream.fileno()] if following.follower.reads else [], wait_s)

    def _begin(self, now_s: float) -> float:
        facts, stream = self._slot.acquire(self._make_decoder().options())
        self._announced, self._away = None, ""
        self._backoff.reset()
        try:
            failpoints.reached("stream.acquired")
            self._facts = facts
            state, derivation = self._take_over(facts)
            follower = Follower(
                stream,
                facts,
                decoder=self._make_decoder(),
                derivation=derivation,
                outbox=self._outbox,
                schedules=self._schedules,
                state=state,
                observer=self._observer,
                now_s=now_s,
            )
        except BaseException:
            self._facts = None
            stream.close()
            raise
        self._following = _Following(stream, state, follower)
        return 0.0

    def _follow(self, following: _Following, now_s: float) -> float:
        following.stepped_s = now_s
        wait_s = following.follower.step(now_s)
        self._heard_s = following.follower.heard_s
        state = following.state
        if wait_s > 0 and following.follower.reads:
            state.caught_up_s = now_s + wait_s  # for as long as it rests there is nothing more
        # A first start publishes the table before it ends, wherever the slot stands.
        begun = state.start is not None
        if begun and state.until_lsn is not None and state.confirmed_lsn >= state.until_lsn:
            state.until_lsn = None
            self._reached()
        return wait_s

    def _leave(self) -> None:
        following, self._following = self._following, None
        self._facts = None
        if following is not None:
            received_lsn = following.stream.received_lsn
            if received_lsn > self._begin_lsn:
                self._applied_lsn = received_lsn
            following.stream.close()

    def _take_over(self, facts: SlotFacts) -> tuple[ReadingState, Derivation]:
        """The first time: tells the others that the slot is ours. Later: the same slot of the same server, or a gap."""
        first, *further = self._tables
        stream = (facts.system_identifier, facts.timeline, facts.database, self._slot_name)
        origin = Origin(*stream, *first, tuple(further))
        self._begin_lsn = facts.confirmed_flush_lsn
        if self._state is None or self._derivation is None:
            self._applied_lsn = self._begin_lsn
            self._state = ReadingState(origin, until_lsn=self._until_lsn, arrivals=self._arrivals)
            self._derivation = self._make_derivation(origin)
            self._acquired(facts, origin)
            return self._state, self._derivation
        if facts.confirmed_flush_lsn > self._applied_lsn:
            # Another process had it meanwhile: it may have had nothing to publish, but deadlines to learn of.
            raise StartOverError("the slot was moved on meanwhile, and the deadlines between were not seen here")
        if self._state.start is not None:
            handed_over = Progress(self._state.origin, self._state.handed_over)
            try:
                require_no_gap(facts, handed_over, origin, server_lsn=facts.server_lsn)
            except PreconditionError as error:
                # By our own memory it is a gap; by the topic's record it may be none.
                raise StartOverError(str(error)) from None
            mark = self._state.snapshot
            self._state.snapshot = mark if mark and self._begin_lsn < mark.lsn else None
        _log.info("reader: the stream goes on", extra=at_lsn(self._begin_lsn))
        return self._state, self._derivation

    def _close_outbox(self) -> None:
        """Nobody else offers."""
        state, gap = self._state, self._gap
        if state is not None and state.start is not None and (gap is not None or self._expects_alteration):
            if self._expects_alteration:
                state.origin = _to_be_altered(state.origin)
            self._gap, self._expects_alteration = None, False
            self._outbox.offer([], state.progress(state.handed_over, gap))
        self._outbox.close()

    def _is_done(self, following: _Following) -> bool:
        state = following.state
        if not self._stop_requested.is_set():
            return False
        if not state.stopping:
            state.stopping = True
            self._close_outbox()
        if self._abandoned.is_set():
            return True
        # The last status update must have carried what became durable last.
        durable_lsn = min(self._outbox.flush_lsn, following.stream.received_lsn)
        return self._outbox.is_drained and state.confirmed_lsn >= durable_lsn


def _to_be_altered(origin: Origin) -> Origin:
    """As the record has it when publication entries are about to be mended: nobody compares them then."""
    first, *further = (table._replace(publication=table.publication._replace(members="")) for table in origin.tables)
    return replace(origin, publication=first.publication, further=tuple(further))
