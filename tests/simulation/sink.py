"""The broker's ill will: what is queued arrives a little at a time, reports come late, in any order, some twice."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cdcwatch.errors import UnavailableError
from tests.fakes.sink import FakeBroker, FakeRecord, FakeSink
from tests.simulation.process import SLOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from random import Random

    from cdcwatch.deadline.event import Event
    from cdcwatch.handoff.progress import Progress
    from cdcwatch.handoff.sink import Batch


class Rules(Protocol):
    """What a mutation takes away."""

    random: Random
    checks_epoch: bool
    checks_delivery: bool


class _Waiting(NamedTuple):
    """A record in a producer's queue for one partition."""

    record: FakeRecord
    number: int
    """The event's watermark number."""


class SimSink(FakeSink):
    """Exactly once as FakeSink has it; at least once with a queue for each partition."""

    def __init__(self, broker: FakeBroker, rules: Rules, *, is_transactional: bool) -> None:
        super().__init__(broker, SLOT, is_transactional=is_transactional)
        self._rules = rules
        self._clear()

    def _clear(self) -> None:
        self._queues: list[deque[_Waiting]] = [deque() for _ in range(self._broker.partitions)]
        self._left: Counter[int] = Counter()
        self._batches: deque[Batch] = deque()
        self._reports: list[range] = []

    def publish(self, batches: Sequence[Batch]) -> None:
        if self.is_transactional:
            super().publish(batches)
            return
        self._check_open()
        for batch in batches:
            self._batches.append(batch)
            for number, event in zip(batch.sequence, batch.events, strict=False):
                for record in self._broker.records_of(event):
                    self._queues[record.partition].append(_Waiting(record, number))
                    self._left[number] += 1
        if not self._rules.checks_delivery:
            self._reports += [batch.sequence for batch in batches]

    def publish_snapshot(self, events: Iterable[Event], progress: Progress) -> int:
        broker = self._broker
        if self.is_transactional or not broker.cuts_before_commit:
            return super().publish_snapshot(events, progress)
        listed = list(events)
        broker.cuts_before_commit -= 1
        broker.require_up()
        broker.write(listed[: self._rules.random.randrange(len(listed) + 1)])
        raise UnavailableError("the broker broke off", remedy="none")

    def acknowledged(self) -> list[range]:
        if self.is_transactional:
            return super().acknowledged()
        self._check_open()
        if self._broker.is_up:
            self._deliver_some()
        chance = self._rules.random
        chance.shuffle(self._reports)
        count = chance.randrange(len(self._reports) + 1)
        told, self._reports = self._reports[:count], self._reports[count:]
        if told and chance.random() < 0.1:
            self._reports.append(told[0])
        return told

    def close(self) -> None:
        super().close()
        self._clear()

    def _deliver_some(self) -> None:
        broker, chance = self._broker, self._rules.random
        if broker.cuts_before_commit:
            broker.cuts_before_commit -= 1
            raise UnavailableError("a record was not delivered", remedy="none")
        for _ in range(chance.choice((0, 1, 5, 500))):
            waiting = [queue for queue in self._queues if queue]
            if not waiting:
                break
            record, number = chance.choice(waiting).popleft()
            broker.records.append(record)
            self._left[number] -= 1
            if not self._left[number]:
                self._report(range(number, number + 1))
        while self._batches and not any(self._left[number] for number in self._batches[0].sequence):
            batch = self._batches.popleft()
            broker.progress[self._slot] = batch.progress
            self._report(batch.sequence[-1:])

    def _report(self, numbers: range) -> None:
        if self._rules.checks_delivery:
            self._reports.append(numbers)

    def _commit(self, events: Sequence[Event], progress: Progress) -> int:
        if not self._rules.checks_epoch:
            self._epoch = self._broker.epochs[self._slot]
        return super()._commit(events, progress)
