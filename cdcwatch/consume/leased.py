"""Handling with a lease: taken in hand, handled, then recorded. A crash between the last two repeats the effect."""

from __future__ import annotations

import logging
import threading
import uuid
from typing import TYPE_CHECKING, Final

from cdcwatch.backoff import Backoff
from cdcwatch.consume.handling import HandlerError, TryAgain
from cdcwatch.consume.item import Item, Stage
from cdcwatch.consume.store import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cdcwatch.consume.course import Course
    from cdcwatch.consume.event import Event, Identity

_AGAIN_S: Final = 0.5
_SURE: Final = 0.6
"""Of a lease: for so long nobody is asked whether it still holds."""

_log = logging.getLogger(__name__)


class LeasedWork:
    """Of one lane. Its owner token is new with each, so that nobody takes what an earlier one left for its own."""

    def __init__(self, course: Course) -> None:
        self._course = course
        self._levels, self._metrics, self._handling = course.levels, course.metrics, course.handling
        self._owner = uuid.uuid4().hex
        self._held: set[Identity] = set()
        self._lock = threading.Lock()
        self._sure_until_s = 0.0
        self._again = Backoff(first_s=course.first_pause_s, most_s=course.most_pause_s)
        self._alone_to = -1
        """Up to this offset each is handled by itself: its batch failed, or a process died over it."""

    def run(self, items: Sequence[Item], is_ended: Callable[[], bool]) -> float:
        """As of Work."""
        wait_s = self._record(items)
        if wait_s or is_ended():
            return wait_s
        waiting = [item for item in items if item.stage is Stage.WAITING]
        ours, wait_s = self._take(waiting[:1] if waiting and waiting[0].record.offset <= self._alone_to else waiting)
        if not ours:
            return wait_s
        return max(wait_s, self._handle_batch(ours) if self._handling.is_batch else self._handle_each(ours, is_ended))

    # -- what is still to be recorded ----------------------------------------------------------------------------------

    def _record(self, items: Sequence[Item]) -> float:
        """Completes what is handled, notes what failed; the wait before the next attempt of the latter."""
        handled = [item for item in items if item.stage is Stage.HANDLED]
        if handled:
            others = self._levels.complete(_identities(handled), self._owner)
            if others:
                self._metrics.count("lost", len(others))
                _log.warning(
                    "%d events were taken over by another while they were handled here: perhaps handled twice",
                    len(others),
                    extra={"remedy": "a longer lease_s, or look why this process stood still"},
                )
            for item in handled:
                item.stage = Stage.SETTLED
            self._metrics.count("total", len(handled))
            self._metrics.count("handled", len(handled))
            self._drop(_identities(handled))
        wait_s = 0.0
        for item in [item for item in items if item.stage is Stage.FAILED]:
            self._levels.fail(item.identity, self._owner, item.error, is_given_up=False)
            self._drop([item.identity])
            wait_s = self._course.failure_noted(item)
        return wait_s

    # -- what is new ---------------------------------------------------------------------------------------------------

    def _take(self, items: list[Item]) -> tuple[list[Item], float]:
        """Those to be handled now, from the front, and how long to wait for the one behind them."""
        wanted = {item.identity: item for item in reversed(items)}  # the first of each
        claims = self._levels.begin(list(wanted)[::-1], self._owner, self._course.lease_s)
        self._note_held(identity for identity, claim in claims.items() if claim.verdict is Verdict.OURS)
        self._metrics.count("taken_over", sum(claim.is_takeover for claim in claims.values()))
        ours: list[Item] = []
        taken_over = [item.record.offset for item in items if claims[item.identity].is_takeover]
        # The one to blame for a crash is found, and its neighbours are not blamed.
        self._alone_to = max(self._alone_to, *taken_over, -1)
        wait_s, most = 0.0, 1 if taken_over else len(items)
        for item in items:
            claim = claims[item.identity]
            if wanted[item.identity] is not item:
                continue  # the second of its kind here: the store is asked again once the first is settled
            if claim.verdict is Verdict.BUSY:
                wait_s = min(max(claim.wait_s, 0.05), _AGAIN_S)
                break
            if claim.verdict is not Verdict.OURS:
                item.stage = Stage.SETTLED
                self._metrics.count("total")
                self._metrics.count("duplicates")
                continue
            if not ours and self._course.has_no_attempt_left(item, claim.attempt):
                self._release_but([item])
                return [], 0.0
            if claim.attempt > self._course.tries or len(ours) == most:
                break
            item.attempt = claim.attempt
            ours.append(item)
        self._release_but(ours)
        return ours, wait_s

    def _release_but(self, kept: Sequence[Item]) -> None:
        keep = set(_identities(kept))
        with self._lock:
            others = [identity for identity in self._held if identity not in keep]
        self._release(others)

    def _release(self, identities: list[Identity]) -> None:
        self._drop(identities)
        self._levels.release(identities, self._owner)

    # -- the handler ---------------------------------------------------------------------------------------------------

    def _handle_each(self, items: Sequence[Item], is_ended: Callable[[], bool]) -> float:
        for place, item in enumerate(items):
            if is_ended() or not self._is_sure(items[place:]):
                self._release(_identities(items[place:]))
                break
            wait_s = self._call([item])
            if item.stage is not Stage.HANDLED:
                self._release(_identities(items[place + 1 :]))
                return wait_s or self._record([item])
            self._record([item])
        return 0.0

    def _handle_batch(self, items: Sequence[Item]) -> float:
        if not items:
            return 0.0
        if not self._is_sure(items):
            self._release(_identities(items))
            return 0.0
        wait_s = self._call(items)
        if len(items) > 1 and not wait_s and items[0].stage is not Stage.HANDLED:
            self._alone_to = items[-1].record.offset
            self._release(_identities(items))
            return 0.0
        return wait_s or self._record(items)

    def _call(self, items: Sequence[Item]) -> float:
        """Sets the stages; a wait where the handler asks for one."""
        try:
            self._course.call([item.event for item in items if item.event is not None])
        except TryAgain:
            self._release(_identities(items))
            return self._again.next_s()
        except HandlerError as failed:
            if len(items) == 1:
                self._course.note_failure(items[0], failed.error)
            else:
                self._course.note_batch_failure(items, failed.error)
            return 0.0
        for item in items:
            item.stage = Stage.HANDLED
        self._again.reset()
        return 0.0

    def _is_sure(self, items: Sequence[Item]) -> bool:
        """Whether all of these are still ours, looked up where their leases may have run out meanwhile."""
        if self._course.clock() < self._sure_until_s:
            return True
        return not self._renew(_identities(items))

    # -- leases --------------------------------------------------------------------------------------------------------

    def bury(self, item: Item) -> None:
        """As of Work."""
        self._levels.fail(item.identity, self._owner, item.error, is_given_up=True)
        self._drop([item.identity])
        item.stage = Stage.SETTLED
        self._metrics.count("total")

    def let_go(self) -> None:
        """As of Work."""
        self._release_but([])

    def renew(self) -> None:
        """As of Work."""
        with self._lock:
            held = list(self._held)
        if held:
            self._renew(held)

    def holds(self, event: Event) -> bool:
        """As of Work."""
        return self._is_held(event.identity) and not self._renew([event.identity])

    def _renew(self, identities: list[Identity]) -> set[Identity]:
        began_s = self._course.clock()
        lost = self._levels.renew(identities, self._owner, self._course.lease_s)
        with self._lock:
            self._held -= lost
            if set(identities) >= self._held:
                self._sure_until_s = began_s + self._course.lease_s * _SURE
        return lost

    def _note_held(self, identities: Iterable[Identity]) -> None:
        with self._lock:
            self._held.update(identities)
            self._sure_until_s = self._course.clock() + self._course.lease_s * _SURE

    def _drop(self, identities: Iterable[Identity]) -> None:
        with self._lock:
            self._held.difference_update(identities)

    def _is_held(self, identity: Identity) -> bool:
        with self._lock:
            return identity in self._held


def _identities(items: Iterable[Item]) -> list[Identity]:
    return [item.identity for item in items]
