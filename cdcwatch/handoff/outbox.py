"""What stands between the reader and the sink: batches in order, bounded in bytes, and the watermark over them.

The reader never waits here: it asks `is_full` and stops reading, so that its status updates go on.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING

from cdcwatch.deadline.position import Position
from cdcwatch.handoff.sink import Batch
from cdcwatch.handoff.watermark import Watermark

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdcwatch.deadline.event import Event
    from cdcwatch.handoff.progress import Progress

_value_of = attrgetter("value")
_EVENT_OVERHEAD_BYTES = 250
"""What an event costs in memory beside its key and value: three Python objects and librdkafka's own copy's frame."""


class Outbox:
    """Shared by the reader's thread and the publisher's."""

    def __init__(
        self, limit_bytes: int, on_flush: Callable[[], None], now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`on_flush` is called, from any thread, when `flush_lsn` has advanced or nothing more will be offered."""
        self._now_s = now_s
        self._offered_s: deque[float] = deque()  # of each of the unacknowledged
        self._acknowledged_s: float | None = None
        self._limit_bytes = limit_bytes
        self._on_flush = on_flush
        self._changed = threading.Condition()
        self._watermark = Watermark()
        self._unacknowledged: deque[Batch] = deque()
        self._durable = Position()  # of the last batch that is, with all before it
        self._published = 0  # how many of them the sink has been given
        self._size_bytes = 0
        self._closed = False
        self.event_count = 0
        self.is_sink_failing = False
        """Set by the publisher: the last attempt at the sink failed, and no later one has succeeded."""

    @property
    def flush_lsn(self) -> int:
        """What may be confirmed to the server."""
        with self._changed:
            return self._watermark.flush_lsn

    @property
    def durable(self) -> Position:
        """After the last batch that is durable with all before it."""
        return self._durable

    @property
    def is_idle(self) -> bool:
        """Whether nothing is in flight."""
        with self._changed:
            return self._watermark.is_idle

    @property
    def is_full(self) -> bool:
        """Whether the reader should stop reading."""
        return self._size_bytes >= self._limit_bytes

    @property
    def is_half_empty(self) -> bool:
        """Whether it may go on."""
        return self._size_bytes * 2 <= self._limit_bytes

    @property
    def size_bytes(self) -> int:
        """In flight."""
        return self._size_bytes

    @property
    def unacknowledged_events(self) -> int:
        """In flight."""
        with self._changed:
            return sum(len(batch.events) for batch in self._unacknowledged)

    @property
    def oldest_age_s(self) -> float:
        """For how long the oldest of what is in flight has been; 0 when nothing is."""
        with self._changed:
            return self._now_s() - self._offered_s[0] if self._offered_s else 0.0

    @property
    def acknowledged_age_s(self) -> float | None:
        """Since something became durable; None: nothing did yet."""
        with self._changed:
            return None if self._acknowledged_s is None else self._now_s() - self._acknowledged_s

    def offer(self, events: Sequence[Event], progress: Progress) -> None:
        """From the reader: events in stream order and the position after them."""
        size_bytes = sum(map(len, map(_value_of, events))) + len(events) * _EVENT_OVERHEAD_BYTES
        with self._changed:
            sequence = self._watermark.hand_over(len(events) + 1)
            self._watermark.mark(progress.position.end_lsn)
            self._unacknowledged.append(Batch(events, progress, sequence, size_bytes))
            self._offered_s.append(self._now_s())
            self._size_bytes += size_bytes
            self.event_count += len(events)
            self._changed.notify()

    def take(self, max_events: int, timeout_s: float) -> list[Batch]:
        """For the publisher: what the sink has not been given yet, whole batches, at least one when there is any."""
        with self._changed:
            if len(self._unacknowledged) == self._published and not (self._closed and self._watermark.is_idle):
                self._changed.wait(timeout_s)
            taken: list[Batch] = []
            events = 0
            while self._published < len(self._unacknowledged):
                batch = self._unacknowledged[self._published]
                if taken and events + len(batch.events) > max_events:
                    break
                taken.append(batch)
                events += len(batch.events)
                self._published += 1
            return taken

    def acknowledge(self, sequences: Sequence[range]) -> None:
        """From the publisher: durable now."""
        with self._changed:
            before = self._watermark.flush_lsn
            for sequence in sequences:
                self._watermark.acknowledge(sequence)
            low = self._watermark.low
            while self._unacknowledged and self._unacknowledged[0].sequence.stop <= low:
                batch = self._unacknowledged.popleft()
                self._offered_s.popleft()
                self._acknowledged_s = self._now_s()
                self._size_bytes -= batch.size_bytes
                self._durable = batch.progress.position
                self._published -= 1
            advanced = self._watermark.flush_lsn > before
        if advanced:
            self._on_flush()

    def begin_at(self, durable: Position) -> None:
        """From the publisher, before the first offer: how far the sink's events go, which may be confirmed."""
        with self._changed:
            self._durable = durable
            self._watermark.mark(durable.end_lsn)

    def accounts_for(self, durable: Progress | None) -> bool:
        """Whether the sink's events can be ours alone: they end where one of our batches does."""
        position = durable.position if durable is not None else Position()
        with self._changed:
            return position == self._durable or any(
                position == batch.progress.position for batch in self._unacknowledged
            )

    def rewind(self, durable: Progress | None) -> None:
        """The sink was opened anew: all that is not in it must be published again.

        `durable`: how far its events go, where the sink can tell; batches are whole in it or not at all.
        """
        with self._changed:
            # Else the first batch alone would carry the watermark over those that are published again, and the sink's
            # record of progress would stand behind what is confirmed.
            self._watermark.retract()
            covered = [
                batch.sequence
                for batch in self._unacknowledged
                if durable is not None and durable.covers(batch.progress)
            ]
            # acknowledge() counts what it drops as published.
            self._published = len(covered)
        self.acknowledge(covered)

    def close(self) -> None:
        """No more will be offered: `take` stops waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._on_flush()

    @property
    def is_drained(self) -> bool:
        """Closed, and everything acknowledged."""
        with self._changed:
            return self._closed and self._watermark.is_idle
