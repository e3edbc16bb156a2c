"""Handling in the handler's transaction: effect and record commit together, so each effect happens exactly once."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

import psycopg

from cdcwatch.backoff import Backoff
from cdcwatch.consume.handling import HandlerError, TryAgain
from cdcwatch.consume.item import Item, Stage
from cdcwatch.consume.store import BusyError, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdcwatch.consume.course import Course
    from cdcwatch.consume.event import Event, Identity
    from cdcwatch.consume.handling import Connection
    from cdcwatch.consume.store import Claim

_BUSY_S: Final = 0.2
_COLLISIONS: Final = 10
"""Deadlocks and serialization failures (SQLSTATE 40…) of one event that are not counted as attempts."""


class _NoAttemptLeftError(Exception):
    """One of these events was tried as often as it may be."""

    def __init__(self, attempt: int) -> None:
        super().__init__(attempt)
        self.attempt = attempt


class TransactionalWork:
    """Of one lane. No lease: a transaction ends with its process."""

    def __init__(self, course: Course) -> None:
        self._course, self._levels, self._metrics = course, course.levels, course.metrics
        self._store = course.levels.transactional
        self._owner = uuid.uuid4().hex
        self._again = Backoff(first_s=course.first_pause_s, most_s=course.most_pause_s)
        self._inside: frozenset[Identity] = frozenset()
        self._alone_to = -1
        """Up to this offset each event has a transaction of its own: its batch failed."""
        self._suspects = course.handling.size if course.handling.is_batch else 1
        """So many new events may have ended the process that had this partition before. Each is handled alone, and its
        attempt counted before it begins: a transaction takes with it what it counts itself."""

    def run(self, items: Sequence[Item], is_ended: Callable[[], bool]) -> float:
        """As of Work."""
        wait_s = self._note_failed(items)
        if wait_s or is_ended():
            return wait_s
        waiting = [item for item in items if item.stage is Stage.WAITING]
        firsts = {item.identity: item for item in reversed(waiting)}
        # One question for all of them; those that are new are asked about once more, inside of the transaction.
        known = self._levels.known(list(firsts)[::-1])
        new = []
        for item in waiting:
            if item.identity in known:
                self._settle(item, "duplicates")
            elif firsts[item.identity] is item:
                new.append(item)
        while new:
            is_alone = not self._course.handling.is_batch or self._suspects or new[0].record.offset <= self._alone_to
            some, new = (new[:1], new[1:]) if is_alone else (new, [])
            if is_ended():
                break
            wait_s = self._count_suspect(some[0]) if self._suspects else 0.0
            if wait_s or some[0].stage is Stage.POISON:
                return wait_s
            wait_s = self._transact(some)
            if wait_s or any(item.stage is not Stage.SETTLED for item in some):
                return wait_s or self._note_failed(some)
        return 0.0

    def _note_failed(self, items: Sequence[Item]) -> float:
        wait_s = 0.0
        for item in items:
            if item.stage is Stage.FAILED:
                with self._levels.deciding():
                    self._store.fail_after_rollback(item.identity, self._owner, item.error)
                wait_s = self._course.failure_noted(item)
        return wait_s

    def _count_suspect(self, item: Item) -> float:
        """Its attempt, in a transaction of its own; POISON where it has none left."""
        try:
            with self._levels.deciding():
                claim = self._store.note_attempt(item.identity, self._owner)
        except BusyError:
            return _BUSY_S
        if claim.verdict is Verdict.BUSY:
            return _BUSY_S
        self._suspects -= 1
        self._metrics.count("taken_over", claim.is_takeover)
        self._course.has_no_attempt_left(item, claim.attempt)
        return 0.0

    def _transact(self, items: Sequence[Item]) -> float:
        """Settled together, or not at all; a wait where it is nobody's fault."""
        try:
            claims = self._committed(items)
        except BusyError:  # rolled back: whoever has it in hand is waited for
            return _BUSY_S
        except TryAgain:
            return self._again.next_s()
        except _NoAttemptLeftError as found:
            if len(items) > 1:
                self._alone_to = items[-1].record.offset
            else:
                self._course.has_no_attempt_left(items[0], found.attempt)
            return 0.0
        except HandlerError as failed:
            return self._failed(items, failed.error, is_broken=failed.is_broken)
        except psycopg.Error as error:  # what the COMMIT was refused for
            return self._failed(items, error, is_broken=False)
        self._again.reset()
        self._metrics.count("taken_over", sum(claim.is_takeover for claim in claims))
        # A dead letter may be forgotten and sent again: no cache must know it.
        self._levels.remember(
            [item.identity for item, claim in zip(items, claims, strict=True) if claim.verdict is not Verdict.GIVEN_UP]
        )
        for item, claim in zip(items, claims, strict=True):
            self._settle(item, "handled" if claim.verdict is Verdict.OURS else "duplicates")
        return 0.0

    def _committed(self, items: Sequence[Item]) -> list[Claim]:
        """Effects and records of one transaction; its claims once that is committed."""
        identities = [item.identity for item in items]
        try:
            with self._levels.deciding(), self._store.transaction(identities, self._owner) as (connection, claims):
                if any(claim.verdict is Verdict.BUSY for claim in claims):
                    raise BusyError
                most = max(claim.attempt for claim in claims)
                if most > self._course.tries:
                    raise _NoAttemptLeftError(most)
                ours = []
                for item, claim in zip(items, claims, strict=True):
                    if claim.verdict is Verdict.OURS and item.event is not None:
                        item.attempt = claim.attempt
                        ours.append(item.event)
                self._inside = frozenset(event.identity for event in ours)
                if ours:
                    self._call(ours, connection)
        finally:
            self._inside = frozenset()
        return claims

    def _call(self, events: Sequence[Event], connection: Connection) -> None:
        try:
            self._course.call(events, connection)
        except HandlerError as failed:
            failed.is_broken = connection.broken
            raise

    def _failed(self, items: Sequence[Item], error: Exception, *, is_broken: bool) -> float:
        # The server went, or another transaction was in the way: nobody's fault, but not for ever.
        is_collision = isinstance(error, psycopg.Error) and (error.sqlstate or "").startswith("40")
        if items[0].forgiven < (_COLLISIONS if is_collision else int(is_broken)):
            items[0].forgiven += 1
            return self._again.next_s()
        if len(items) > 1:
            self._course.note_batch_failure(items, error)
            self._alone_to = items[-1].record.offset
        else:
            self._course.note_failure(items[0], error)
        return 0.0

    def _settle(self, item: Item, count: str) -> None:
        item.stage = Stage.SETTLED
        self._metrics.count("total")
        self._metrics.count(count)

    def bury(self, item: Item) -> None:
        """As of Work."""
        with self._levels.deciding():
            self._store.fail(item.identity, self._owner, item.error, is_given_up=True)
        item.stage = Stage.SETTLED
        self._metrics.count("total")

    def let_go(self) -> None:
        """Nothing is in hand outside of a transaction."""

    def renew(self) -> None:
        """The same."""

    def holds(self, event: Event) -> bool:
        """While its transaction is open nobody else can have it."""
        return event.identity in self._inside
