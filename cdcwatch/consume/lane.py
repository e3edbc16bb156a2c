"""One partition: its records in order, what of them is in hand, and up to where all is settled."""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from cdcwatch.backoff import Backoff
from cdcwatch.consume.event import Event, unreadable
from cdcwatch.consume.item import Item, Stage
from cdcwatch.errors import CdcwatchError

if TYPE_CHECKING:
    from cdcwatch.consume.course import Course
    from cdcwatch.consume.event import Record
    from cdcwatch.consume.item import Work

_log = logging.getLogger(__name__)


class Lane:
    """A partition that is ours. `step` is for one worker at a time, the rest for the thread that polls."""

    def __init__(self, topic: str, partition: int, course: Course, work: Work) -> None:
        self.topic, self.partition, self.work = topic, partition, work
        self._course = course
        self._queue: deque[Record] = deque()
        self._hand: list[Item] = []
        self._offered_bytes = self._taken_bytes = 0  # each written by one thread only
        self._backoff = Backoff(first_s=course.first_pause_s, most_s=course.most_pause_s)
        self._is_ended = False
        self.position: int | None = None
        """All before this offset is settled; None: nothing was settled yet."""

    @property
    def waiting(self) -> int:
        """How many records are here and not settled."""
        return len(self._queue) + len(self._hand)

    @property
    def waiting_bytes(self) -> int:
        """What of their values is not in hand yet."""
        return self._offered_bytes - self._taken_bytes

    def offer(self, record: Record) -> None:
        """The next record."""
        self._offered_bytes += len(record.value or b"")
        self._queue.append(record)

    def end(self) -> None:
        """The partition goes, or we stop: what is begun is finished and recorded, nothing else is begun."""
        self._is_ended = True

    def is_ended(self) -> bool:
        """Whether it was told so."""
        return self._is_ended

    def step(self) -> float | None:
        """Takes what is in hand a step further. Seconds until the next step; None: there is nothing to do."""
        if self._is_ended:
            self._finish()
            return None
        try:
            wait_s = self._advance()
        except CdcwatchError:  # the store or the dead-letter topic: told where it was seen
            wait_s = self._backoff.next_s()
        else:
            self._backoff.reset()
        self._pop_settled()
        return wait_s if self.waiting or self._is_ended else None

    def _advance(self) -> float:
        if not self._hand:
            self._take_in_hand()
            self._pop_settled()
        if not self._hand:
            return 0.0
        first = self._hand[0]
        if first.stage is Stage.POISON:
            self._course.grave.send(first.record, first.error, first.attempt)
            self._course.metrics.count("dead_letters")
            first.stage = Stage.BURIED if first.event is not None else Stage.SETTLED
        if first.stage is Stage.BURIED:
            self.work.bury(first)
        if first.stage is Stage.SETTLED:
            return 0.0
        return self.work.run(self._before_poison(), self.is_ended)

    def _before_poison(self) -> list[Item]:
        """From the front up to the first that is to become a dead letter."""
        for place, item in enumerate(self._hand):
            if item.stage in {Stage.POISON, Stage.BURIED}:
                return self._hand[:place]
        return self._hand

    def _take_in_hand(self) -> None:
        records = [self._queue[place] for place in range(min(len(self._queue), self._course.handling.size))]
        found = unreadable(self._course.decode, records)
        self._hand = [self._item(record, event) for record, event in zip(records, found, strict=True)]
        for record in records:
            self._queue.popleft()
            self._taken_bytes += len(record.value or b"")

    def _item(self, record: Record, found: Event | str) -> Item:
        course = self._course
        if isinstance(found, Event):
            if course.types is None or found.type in course.types:
                return Item(record, found)
            is_skipped, error = True, ""
        else:
            is_skipped, error = (course.unreadable if record.value else course.tombstones) == "skip", found
        if is_skipped:
            course.metrics.count("skipped")
        return Item(record, None, Stage.SETTLED if is_skipped else Stage.POISON, error=error)

    def _pop_settled(self) -> None:
        count = 0
        for item in self._hand:
            if item.stage is not Stage.SETTLED:
                break
            count += 1
        if count:
            self.position = self._hand[count - 1].record.offset + 1
            self._hand = self._hand[count:]

    def _finish(self) -> None:
        """What was handled is recorded if the store answers now; if not, another handles it again after the lease."""
        with suppress(CdcwatchError):
            if self._hand and self._hand[0].stage is Stage.BURIED:
                self.work.bury(self._hand[0])
            self.work.run(self._before_poison(), self.is_ended)
            self.work.let_go()
        self._pop_settled()
