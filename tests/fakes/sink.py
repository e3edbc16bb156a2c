"""A broker in memory and sinks on it, which keep Sink's contract in both deliveries."""

from __future__ import annotations

import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from cdcwatch.deadline.event import DeadLetter, GapEvent, for_partition
from cdcwatch.errors import UnavailableError
from cdcwatch.handoff.sink import FencedError
from tests.murmur2 import partition_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cdcwatch.deadline.event import Event
    from cdcwatch.handoff.progress import Progress
    from cdcwatch.handoff.sink import Batch
    from cdcwatch.handoff.told import Told


class FakeRecord(NamedTuple):
    """A record that a read_committed subscriber sees."""

    partition: int
    key: bytes | None
    value: bytes


@dataclass
class FakeBroker:
    """What outlives every sink: the topic, the dead letters, the progress records, who may write."""

    partitions: int = 3
    records: list[FakeRecord] = field(default_factory=list)
    dead: list[FakeRecord] = field(default_factory=list)
    progress: dict[str, Progress] = field(default_factory=dict)
    epochs: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    is_up: bool = True
    cuts_before_commit: int = 0
    """So many publications are lost, and the producer is told that it doesn't know."""
    cuts_after_commit: int = 0
    """So many are durable, and the producer is told that it doesn't know."""
    lock: threading.RLock = field(default_factory=threading.RLock)

    def write(self, events: Iterable[Event]) -> int:
        """Appends them all; an event about the whole table goes to every partition."""
        count = 0
        for event in events:
            count += 1
            if isinstance(event, DeadLetter):
                self.dead.append(FakeRecord(0, event.id, event.value))
            else:
                self.records += self.records_of(event)
        return count

    def records_of(self, event: Event) -> list[FakeRecord]:
        """What becomes of it in the topic."""
        if event.key is not None:
            return [FakeRecord(partition_of(event.key, self.partitions), event.key, event.value)]
        key = event.record_key if isinstance(event, GapEvent) else None
        return [
            FakeRecord(partition, key, for_partition(event.value, partition)) for partition in range(self.partitions)
        ]

    def require_up(self) -> None:
        """UnavailableError while it is away."""
        if not self.is_up:
            raise _away()


class FakeSink:
    """`is_transactional`: exactly once; else at least once, where reports come once the broker is there."""

    made_topics = ()

    def __init__(self, broker: FakeBroker, slot: str, *, is_transactional: bool = True) -> None:
        self._broker, self._slot, self._is_transactional = broker, slot, is_transactional
        self._epoch: int | None = None
        self._acknowledged: list[range] = []
        self._queued: list[Batch] = []

    @property
    def is_transactional(self) -> bool:
        return self._is_transactional

    def open(self) -> Progress | None:
        self.close()
        broker = self._broker
        with broker.lock:
            broker.require_up()
            if self._is_transactional:
                broker.epochs[self._slot] += 1
            self._epoch = broker.epochs[self._slot]
            return broker.progress.get(self._slot)

    def publish(self, batches: Sequence[Batch]) -> None:
        broker = self._broker
        with broker.lock:
            self._check_open()
            if not self._is_transactional:
                self._queued += batches
                return
            self._commit([event for batch in batches for event in batch.events], batches[-1].progress)
            self._acknowledged += [batch.sequence for batch in batches]

    def survey(self, made: Callable[[int], Told], topic: str = "") -> Told:
        with self._broker.lock:
            self._check_open()
            self._broker.require_up()
            told = made(self._broker.partitions)
            for record in self._broker.records:
                told.note(*record)
            return told

    def publish_snapshot(self, events: Iterable[Event], progress: Progress) -> int:
        with self._broker.lock:
            self._check_open()
            self._broker.require_up()
            if self._is_transactional:
                return self._commit(list(events), progress)
            count = self._broker.write(events)
            self._broker.progress[self._slot] = progress
            return count

    def acknowledged(self) -> list[range]:
        with self._broker.lock:
            self._check_open()
            if self._queued and self._broker.is_up:
                self._deliver()
            acknowledged, self._acknowledged = self._acknowledged, []
            return acknowledged

    def close(self) -> None:
        self._epoch, self._acknowledged, self._queued = None, [], []

    def _deliver(self) -> None:
        """The last first, as partitions report in any order."""
        broker = self._broker
        queued, self._queued = self._queued, []
        for batch in queued:
            broker.write(batch.events)
            broker.progress[self._slot] = batch.progress
        self._acknowledged += [range(at, at + 1) for batch in reversed(queued) for at in reversed(batch.sequence)]

    def _commit(self, events: Sequence[Event], progress: Progress) -> int:
        broker = self._broker
        broker.require_up()
        if self._epoch != broker.epochs[self._slot]:
            raise FencedError("another sink writes this slot's events now", remedy="end one of the two")
        if broker.cuts_before_commit:
            broker.cuts_before_commit -= 1
            raise _away()
        count = broker.write(events)
        broker.progress[self._slot] = progress
        if broker.cuts_after_commit:
            broker.cuts_after_commit -= 1
            raise _away()
        return count

    def _check_open(self) -> None:
        if self._epoch is None:
            raise UnavailableError("the sink is not open", remedy="it is opened again by itself")


def _away() -> UnavailableError:
    return UnavailableError("the broker is away", remedy="see that it is up")
