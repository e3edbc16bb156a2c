"""A consumer's lane without Kafka: records, a dead-letter topic that may be away, stores that may be, a clock that waits."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from cdcwatch.consume import Claim, Event, MemoryStore, PostgresStore, Record, Verdict, decode_cloudevent
from cdcwatch.consume.course import Course
from cdcwatch.consume.lane import Lane
from cdcwatch.consume.leased import LeasedWork
from cdcwatch.consume.levels import Levels
from cdcwatch.consume.metrics import GroupMetrics
from cdcwatch.consume.transactional import TransactionalWork
from cdcwatch.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cdcwatch.consume import Identity
    from cdcwatch.consume.handling import Handling

AWAY = UnavailableError("away", remedy="wait")


def record(offset: int, name: str | None = None, kind: str = "thing.happened", **data: Any) -> Record:
    """An event of the id `name` (as the offset unless told)."""
    said = {"specversion": "1.0", "id": name or str(offset), "source": "/shop", "type": kind, "data": data}
    return Record("things", 0, offset, key=b"k", value=json.dumps(said).encode())


class Clock:
    """Seconds that pass when somebody says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


class FakeStore(MemoryStore):
    """One that is away while `away` names the method, and that tells what it was asked."""

    def __init__(self, clock: Clock, *, name: str = "memory", rank: int = 1) -> None:
        super().__init__(clock=clock, keep_s=1e9)
        self.name, self.rank = name, rank
        self.away: set[str] = set()
        self.asked: list[str] = []
        for method in ("known", "remember", "begin", "complete", "fail", "release", "renew"):
            setattr(self, method, self._seen(method, getattr(self, method)))

    def _seen(self, method: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*arguments: Any, **named: Any) -> Any:
            self.asked.append(method)
            if self.away & {method, "all"}:
                raise AWAY
            return call(*arguments, **named)

        return ask


class Table:
    """What is committed in a database: effects and records, together."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.completed: dict[Identity, str] = {}
        self.attempts: dict[Identity, int] = {}
        self.noted: set[tuple[Identity, str]] = set()


class FakeConnection:
    """Effects of a transaction that is open."""

    broken = False

    def __init__(self) -> None:
        self.effects: list[str] = []


class FakePostgres(PostgresStore):
    """Transactions on a Table; `reached` is called at every place where a process can die."""

    def __init__(self, table: Table, reached: Callable[[str], None] = lambda _: None) -> None:
        self.table, self.reached = table, reached
        self.is_away = False

    def open(self, group: str) -> None: ...

    def close(self) -> None: ...

    def known(self, identities: Sequence[Identity]) -> set[Identity]:
        self._answer()
        return {identity for identity in identities if identity in self.table.completed}

    def _answer(self) -> None:
        if self.is_away:
            raise AWAY

    @contextmanager
    def transaction(self, identities: Sequence[Identity], owner: str) -> Iterator[Any]:
        self._answer()
        self.reached("begin")
        verdicts = {"completed": Verdict.COMPLETED, "given up": Verdict.GIVEN_UP}
        claims = [
            Claim(verdicts[self.table.completed[identity]])
            if identity in self.table.completed
            else Claim(Verdict.OURS, self.table.attempts.get(identity, 0) + ((identity, owner) not in self.table.noted))
            for identity in identities
        ]
        connection = FakeConnection()
        yield connection, claims
        self.reached("commit")
        self._answer()
        self.table.effects += connection.effects
        for identity, claim in zip(identities, claims, strict=True):
            if claim.verdict is Verdict.OURS:
                self.table.completed[identity] = "completed"
        self.reached("committed")

    def note_attempt(self, identity: Identity, owner: str) -> Claim:
        self._answer()
        self.reached("note")
        if (identity, owner) not in self.table.noted:
            self.table.attempts[identity] = self.table.attempts.get(identity, 0) + 1
            self.table.noted.add((identity, owner))
        self.reached("noted")
        return Claim(Verdict.OURS, self.table.attempts[identity])

    def fail_after_rollback(self, identity: Identity, owner: str, error: str) -> None:
        self._answer()
        self.reached("fail")
        if (identity, owner) not in self.table.noted:
            self.table.attempts[identity] = self.table.attempts.get(identity, 0) + 1
        self.table.noted.discard((identity, owner))
        self.reached("failed")

    def fail(self, identity: Identity, owner: str, error: str, *, is_given_up: bool) -> None:
        self._answer()
        self.reached("give up")
        assert is_given_up
        self.table.completed[identity] = "given up"
        self.reached("given up")


class Grave:
    """The dead-letter topic."""

    def __init__(self) -> None:
        self.letters: list[tuple[int, str, int]] = []
        self.is_away = False
        self.reached: Callable[[str], None] = lambda _: None

    def send(self, dead: Record, error: str, attempts: int) -> None:
        if self.is_away:
            raise AWAY
        self.reached("dead letter")
        self.letters.append((dead.offset, error, attempts))
        self.reached("dead letter sent")


class Bench:
    """One lane, stepped by the test."""

    def __init__(self, handling: Handling, *stores: Any, clock: Clock | None = None, **course: Any) -> None:
        self.clock = clock or Clock()
        self.stores = stores or (FakeStore(self.clock),)
        self.grave = Grave()
        self.metrics = GroupMetrics("tests")
        given = {"tries": 3, "lease_s": 60.0, "first_pause_s": 1.0, "most_pause_s": 8.0, "decode": decode_cloudevent}
        self.course = Course(
            levels=Levels(self.stores, self.metrics), metrics=self.metrics, handling=handling, grave=self.grave,
            clock=self.clock, **{**given, **course},
        )  # fmt: skip
        self.lane = self.another()

    def another(self) -> Lane:
        """A lane as after the partition was given anew, or the process began again."""
        kind = TransactionalWork if self.course.handling.in_transaction else LeasedWork
        self.lane = Lane("things", 0, self.course, kind(self.course))
        return self.lane

    def hear(self, *records: Record) -> None:
        for heard in records:
            self.lane.offer(heard)

    def run(self, steps: int = 200) -> list[float]:
        """Until there is nothing to do, or so many steps; the waits, for which the clock went on."""
        waits = []
        for _ in range(steps):
            wait_s = self.lane.step()
            if wait_s is None:
                break
            if wait_s:
                waits.append(wait_s)
                self.clock.now_s += wait_s
        return waits

    @property
    def counted(self) -> dict[str, int]:
        """What is not 0."""
        stats = self.metrics.stats()
        names = ("total", "handled", "duplicates", "skipped", "errors", "dead_letters", "taken_over", "lost")
        return {name: value for name in names if (value := getattr(stats, name))}


def ids(events: Sequence[Event]) -> list[str]:
    return [event.id for event in events]
