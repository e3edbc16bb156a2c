"""One connection's stream: slot -> decode -> deadline -> outbox and schedule, and the status updates back.

While the sink fails and holds no more, the stream is scouted: deadlines still reach the schedule, so that orders are
closed on time through a broker's outage of any length, events are dropped, and nothing of it counts as read; afterwards
the stream is taken again from where the outbox ends.

It never waits for the sink, for a close or for a huge transaction: when too much is in flight it stops reading, and its
status updates go on with the position that is durable.
"""

from __future__ import annotations

from enum import Enum
from math import inf
from typing import TYPE_CHECKING, Final, Protocol

from msgspec import Struct
from msgspec.structs import replace

from cdcwatch import failpoints
from cdcwatch.deadline.derivation import Learnt
from cdcwatch.deadline.position import Position
from cdcwatch.errors import UnavailableError
from cdcwatch.handoff.progress import Progress, SnapshotMark
from cdcwatch.slot.protocol import KEEPALIVE, XLOG_DATA, XLOG_DATA_HEADER_BYTES, parse_keepalive

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdcwatch.deadline.derivation import Derivation, Update
    from cdcwatch.deadline.event import Event
    from cdcwatch.decode.change import Decoder
    from cdcwatch.handoff.outbox import Outbox
    from cdcwatch.handoff.progress import Origin
    from cdcwatch.pipeline.arrivals import Arrivals
    from cdcwatch.slot.stream import SlotFacts, SlotStream

BITE_BYTES: Final = 1 << 20
_BIG_BITE_BYTES: Final = 128 << 10
"""A bite of this size means that we are behind."""
_PORTION_MESSAGES: Final = 1000
"""Events are handed over in batches of so many at most: what a sink must write in one piece is never long."""
_NAP_S: Final = 0.003
"""When behind, the walsender sends faster to a full socket than to a reader that takes every message at once."""
_WAY_NAP_S: Final = 0.02
_WAY_S: Final = 1.0
"""It gives way for so long at most, then reads for as long: closes that stay late must not starve the stream."""
_STATUS_INTERVAL_S: Final = 10.0
_FLUSH_STATUS_INTERVAL_S: Final = 0.05
_IDLE_OFFER_INTERVAL_S: Final = 1.0
_ASK_AFTER_SILENCE_S: Final = 5.0
_ASK_FOR_ARRIVALS_S: Final = 0.2
_FIRST_PATIENCE_S: Final = 13.0
LAG_S: Final = 0.5
"""A reader that had not all there was for so long is behind."""
_SCOUT_AFTER_S: Final = 3.0
"""A sink that takes nothing for so long is taken for failing, though it says nothing."""


class ScheduleFeed(Protocol):
    """Where deadlines go."""

    def apply(self, updates: Sequence[Update]) -> None:
        """Key, live deadline or None, version: in stream order."""
        ...

    def clear(self) -> None:
        """The table was emptied."""
        ...

    def presses(self) -> bool:
        """Whether many orders have just come due and are being closed."""
        ...


class ReadingObserver(Protocol):
    """What telemetry wants to know."""

    def read(self, *, messages: int, changes: int, replayed: int, received_lsn: int) -> None:
        """After every bite. `replayed`: of the changes those that came before, and give no event again."""
        ...

    def not_understood(self, *, count: int, last: str) -> None:
        """After a bite with rows that can't be understood. `last`: the last one's id and reason."""
        ...


_NOTHING: Final = Position()


class StreamRestart(UnavailableError):  # noqa: N818
    """The sink takes events again: the stream is to be read anew from what it was given last."""

    def __init__(self) -> None:
        super().__init__("the sink works again: what was only scouted is read anew", remedy="nothing")


class _Mode(Enum):
    READ = "read"
    SCOUT = "scout"
    HOLD = "hold"


class ReadingState(Struct):
    """What outlives a connection."""

    origin: Origin
    start: Progress | None = None
    """Set once the sink has said how far its events go; nothing is read before."""
    handed_over: Position = _NOTHING
    """What the outbox was given, durable or not."""
    snapshot: SnapshotMark | None = None
    """Goes along in the record until a connection finds the slot itself beyond it: a replay may begin before."""
    skips_snapshot: bool = True
    """Whether transactions that the read of the table has shown give no events again."""
    patience_s: float = _FIRST_PATIENCE_S
    """How long a silent server is believed: doubled after each time it was given up, as it may only be decoding."""
    confirmed_lsn: int = 0
    """The greatest flush position that the server has: found at the slot, or carried by a status update."""
    caught_up_s: float = -inf
    """When the reader last had everything there was, by the clock of `step`."""
    stopping: bool = False
    until_lsn: int | None = None
    arrivals: Sequence[Arrivals | None] = (None,)
    """Of every table, where it is partitioned."""
    additions: int = 0
    """How often arrivals were handed over, in the slot's life."""

    def begin_at(self, start: Progress, snapshot: SnapshotMark | None = None, *, skips_snapshot: bool = True) -> None:
        """The sink has spoken: events through `start` are in it."""
        self.skips_snapshot = skips_snapshot
        self.handed_over = max(self.handed_over, start.position)
        self.snapshot = snapshot
        self.additions = start.additions
        self.start = start

    def progress(self, position: Position, gap: str | None = None) -> Progress:
        """The record that says: events through there."""
        first, *further = (arrivals.known if arrivals else None for arrivals in self.arrivals)
        return Progress(self.origin, position, self.snapshot, gap, first, self.additions, tuple(further))


class Follower:
    """One connection's stream. `step` does what there is to do and never waits."""

    def __init__(
        self,
        stream: SlotStream,
        facts: SlotFacts,
        *,
        decoder: Decoder,
        derivation: Derivation,
        outbox: Outbox,
        schedules: Sequence[ScheduleFeed | None],
        state: ReadingState,
        observer: ReadingObserver,
        now_s: float,
    ) -> None:
        """`schedules`: of every table; None where nothing is closed."""
        self._stream, self._state = stream, state
        self._decode, self._derivation = decoder.decode, derivation
        self._outbox, self._schedules, self._observer = outbox, schedules, observer
        self._feeds = [schedule for schedule in schedules if schedule is not None]
        self._arrivals = [arrivals for arrivals in state.arrivals if arrivals is not None]
        timeout_s = facts.wal_sender_timeout_s
        self._status_interval_s = min(_STATUS_INTERVAL_S, timeout_s / 3) if timeout_s else _STATUS_INTERVAL_S
        self._begun = False
        self._paused = self._scouts = False
        self._paused_s: float | None = None
        self._stepped_s = now_s
        self._way_s = -inf
        self._reply_now = False
        self._heard_s = self._status_s = self._offer_s = self._asked_s = now_s
        self._offered_lsn = 0
        self._sent_flush_lsn = facts.confirmed_flush_lsn  # never lower than what the server has
        state.confirmed_lsn = max(state.confirmed_lsn, facts.confirmed_flush_lsn)

    @property
    def reads(self) -> bool:
        """Whether the next step would read: if not, readable bytes are no reason to call it."""
        return self._mode() is not _Mode.HOLD

    @property
    def heard_s(self) -> float:
        """When the server was last heard, or not listened to on purpose, by the clock of `step`."""
        return self._heard_s

    def _mode(self) -> _Mode:
        state, outbox = self._state, self._outbox
        if state.stopping:
            return _Mode.HOLD
        self._paused = not outbox.is_half_empty if self._paused else outbox.is_full
        if not self._paused:
            self._paused_s = None
        if state.start is not None and not self._paused:
            return _Mode.READ
        stuck = self._paused_s is not None and self._stepped_s - self._paused_s >= _SCOUT_AFTER_S
        scouts = self._scouts or stuck or outbox.is_sink_failing
        return _Mode.SCOUT if scouts and self._feeds else _Mode.HOLD

    def step(self, now_s: float) -> float:
        """Seconds after which it wants to be called again though nothing arrived. Negative: only then, a nap."""
        bite_bytes, gives_way = 0, False
        self._stepped_s = now_s
        mode = self._mode()
        if self._paused and self._paused_s is None:
            self._paused_s = now_s
        if mode is not _Mode.HOLD:
            if self._scouts and mode is _Mode.READ:
                raise StreamRestart
            if not self._begun:
                self._begin()
            self._scouts = mode is _Mode.SCOUT
            gives_way = self._gives_way(now_s)
            bite_bytes = 0 if gives_way else self._bite(now_s)
        else:
            self._heard_s = now_s
        if mode is not _Mode.HOLD and not gives_way and bite_bytes < _BIG_BITE_BYTES:
            self._state.caught_up_s = now_s
        self._offer_what_else_there_is(now_s)
        self._send_status(now_s)
        if gives_way:
            return -_WAY_NAP_S
        if bite_bytes >= BITE_BYTES:
            return 0.0
        if bite_bytes >= _BIG_BITE_BYTES:
            return -_NAP_S
        return self._wait_s(now_s)

    def _bite(self, now_s: float) -> int:
        messages = self._stream.read(BITE_BYTES)
        if not messages:
            return 0
        self._heard_s = now_s
        failpoints.reached("stream.read", self._derivation.open_changes)
        return self._take(messages)

    def _gives_way(self, now_s: float) -> bool:
        """A spike of closes goes first: its own echo in the stream can wait for some milliseconds."""
        if not any(feed.presses() for feed in self._feeds):
            return False
        if now_s - self._way_s >= 2 * _WAY_S:
            self._way_s = now_s
        if now_s - self._way_s >= _WAY_S:
            return False
        self._heard_s = now_s  # who doesn't listen must not complain of silence
        return True

    def _begin(self) -> None:
        """The stream starts at or before what was handed over already."""
        state = self._state
        covered = state.handed_over
        mark = state.snapshot if state.skips_snapshot else None
        self._derivation.restart(covered, mark.skipped if mark else None)
        self._offered_lsn = covered.end_lsn
        self._begun = True

    def _take(self, messages: list[memoryview]) -> int:
        derivation, decode, feed = self._derivation, self._decode, self._derivation.feed
        dead_before, replayed_before = derivation.dead_letter_count, derivation.replayed_count
        changes_before, known_lsn, bite_bytes = derivation.change_count, derivation.position.end_lsn, 0
        for at in range(0, len(messages), _PORTION_MESSAGES):
            for received in messages[at : at + _PORTION_MESSAGES]:
                message = received.tobytes()
                bite_bytes += len(message)
                if message[0] == XLOG_DATA:
                    decoded = decode(message[XLOG_DATA_HEADER_BYTES:])
                    if decoded is not None:
                        feed(decoded)
                elif message[0] == KEEPALIVE:
                    keepalive = parse_keepalive(message)
                    self._reply_now |= keepalive.reply_requested
                    # Only with nothing in flight: an event that is read and not durable lies before this position.
                    if not derivation.in_transaction and not derivation.has_undrained and self._outbox.is_idle:
                        derivation.idle_at(keepalive.wal_end)
            failpoints.reached("stream.parsed", derivation.open_changes)
            self._hand_over()
        self._observer.read(
            messages=len(messages),
            changes=derivation.change_count - changes_before,
            replayed=derivation.replayed_count - replayed_before,
            received_lsn=self._stream.received_lsn,
        )
        if derivation.dead_letter_count > dead_before and not self._scouts:
            dead_letters = derivation.dead_letter_count - dead_before
            self._observer.not_understood(count=dead_letters, last=derivation.last_dead_letter)
        if self._stream.received_lsn > known_lsn:
            self._state.patience_s = _FIRST_PATIENCE_S
        return bite_bytes

    def _hand_over(self) -> None:
        portion = self._derivation.drain()
        learnt = Learnt(portion.updates, portion.truncated_at)
        for schedule, (updates, truncated_at) in zip(self._schedules, (learnt, *portion.further), strict=True):
            if schedule is not None:
                self._teach(schedule, updates, truncated_at)
        if portion.events and not self._scouts:
            self._offer(portion.events)
            for arrivals in self._arrivals:
                arrivals.note(portion.events)

    def _teach(self, schedule: ScheduleFeed, updates: list[Update], truncated_at: Sequence[int]) -> None:
        begin = 0
        for place in truncated_at:
            schedule.apply(updates[begin:place])
            schedule.clear()
            begin = place
        rest = updates[begin:] if begin else updates
        if rest:
            schedule.apply(rest)
            failpoints.reached("heap.scheduled", self._derivation.open_changes)

    def _offer(self, events: Sequence[Event]) -> None:
        position, mark = self._derivation.position, self._state.snapshot
        if self._derivation.tells_all and mark is not None and not mark.tells_all:
            self._state.snapshot = replace(mark, tells_all=True)
        self._outbox.offer(events, self._state.progress(position))
        if events:
            failpoints.reached("outbox.offered", self._derivation.open_changes)
        self._state.handed_over = position
        self._offered_lsn = position.end_lsn

    def _offer_what_else_there_is(self, now_s: float) -> None:
        """Commits without events and keepalives move the position too: told once a second, or when asked."""
        if not self._begun or self._scouts or self._state.stopping:
            return
        end_lsn = self._derivation.position.end_lsn
        for arrivals in self._arrivals if not self._paused else ():
            events = arrivals.take(end_lsn)
            if events is not None:
                self._state.additions += 1
                self._offer(events)
        if end_lsn <= self._offered_lsn:
            return
        until_lsn = self._state.until_lsn
        asked = self._reply_now or (until_lsn is not None and end_lsn >= until_lsn)
        if asked or now_s - self._offer_s >= _IDLE_OFFER_INTERVAL_S:
            self._offer_s = now_s
            self._offer([])

    def _send_status(self, now_s: float) -> None:
        flush_lsn = min(self._outbox.flush_lsn, self._stream.received_lsn)
        advanced = flush_lsn > self._sent_flush_lsn
        since_s = now_s - self._status_s
        silent_s = now_s - self._heard_s
        if silent_s >= self._state.patience_s:
            self._state.patience_s *= 2
            raise UnavailableError(
                f"nothing came from the server for {silent_s:.0f} s, not even an answer",
                remedy="see the network between; cdcwatch connects again by itself",
            )
        ask_after_s = self._ask_after_s()
        ask = silent_s >= ask_after_s and now_s - self._asked_s >= ask_after_s
        if not (
            self._reply_now
            or ask
            or since_s >= self._status_interval_s
            or (advanced and (since_s >= _FLUSH_STATUS_INTERVAL_S or self._state.stopping))
        ):
            return
        if advanced:
            failpoints.reached("feedback.built", self._derivation.open_changes)
        self._stream.send_status(max(flush_lsn, self._sent_flush_lsn), reply_requested=ask)
        if advanced:
            failpoints.reached("feedback.sent", self._derivation.open_changes)
        self._status_s = now_s
        self._reply_now = False
        if ask:
            self._asked_s = now_s
        self._sent_flush_lsn = max(flush_lsn, self._sent_flush_lsn)
        self._state.confirmed_lsn = max(self._state.confirmed_lsn, self._sent_flush_lsn)

    def _ask_after_s(self) -> float:
        """Arrivals wait for the stream to pass a place: on an idle server an answer alone says that it has."""
        return _ASK_FOR_ARRIVALS_S if any(one.waits for one in self._arrivals) else _ASK_AFTER_SILENCE_S

    def _wait_s(self, now_s: float) -> float:
        due_s = [self._status_s + self._status_interval_s, max(self._heard_s, self._asked_s) + self._ask_after_s()]
        if self._begun and not self._scouts and self._derivation.position.end_lsn > self._offered_lsn:
            due_s.append(self._offer_s + _IDLE_OFFER_INTERVAL_S)
        if self._outbox.flush_lsn > self._sent_flush_lsn:
            due_s.append(self._status_s + _FLUSH_STATUS_INTERVAL_S)
        return min(max(0.0, min(due_s) - now_s), 1.0)
