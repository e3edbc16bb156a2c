"""The level in this process's memory: quick, bounded, gone with the process."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdcwatch.consume.store import Claim, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from cdcwatch.consume.event import Identity

_HOUR_S = 3600.0


@dataclass(slots=True)
class _Known:
    """Completed or given up."""

    until_s: float
    is_given_up: bool


@dataclass(slots=True)
class _Open:
    """In hand, or failed (no owner)."""

    owner: str
    lease_until_s: float
    attempt: int


class MemoryStore:
    """Completed events; the oldest are forgotten beyond `most_events` or after `keep_s`. `clock`: monotonic seconds.

    What is in hand is never forgotten for want of room.
    """

    name = "memory"
    rank = 1

    def __init__(
        self, *, most_events: int = 100_000, keep_s: float = _HOUR_S, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most_events, self._keep_s, self._clock = most_events, keep_s, clock
        self._known: OrderedDict[Identity, _Known] = OrderedDict()  # in the order of `until_s`
        self._open: dict[Identity, _Open] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """Of completed ones."""
        with self._lock:
            return len(self._known)

    def open(self, group: str) -> None:
        """As of Store; one store serves one group."""

    def close(self) -> None:
        """As of Store."""

    def known(self, identities: Sequence[Identity]) -> set[Identity]:
        """As of Store."""
        with self._lock:
            self._expire()
            return {identity for identity in identities if identity in self._known}

    def remember(self, identities: Collection[Identity]) -> None:
        """As of Store."""
        with self._lock:
            for identity in identities:
                self._settle(identity, is_given_up=False)

    def begin(self, identities: Sequence[Identity], owner: str, lease_s: float) -> list[Claim]:
        """As of Store."""
        with self._lock:
            self._expire()
            return [self._begin(identity, owner, lease_s) for identity in identities]

    def _begin(self, identity: Identity, owner: str, lease_s: float) -> Claim:
        known = self._known.get(identity)
        if known is not None:
            return Claim(Verdict.GIVEN_UP if known.is_given_up else Verdict.COMPLETED)
        now_s = self._clock()
        before = self._open.get(identity)
        if before is None:
            if len(self._open) >= self._most_events:
                self._drop_stale(now_s)
            before = self._open[identity] = _Open("", 0.0, 0)
        elif before.owner not in {"", owner} and before.lease_until_s > now_s:
            return Claim(Verdict.BUSY, wait_s=before.lease_until_s - now_s)
        is_takeover = before.owner not in {"", owner}
        before.attempt += before.owner != owner
        before.owner, before.lease_until_s = owner, now_s + lease_s
        return Claim(Verdict.OURS, before.attempt, is_takeover)

    def _drop_stale(self, now_s: float) -> None:
        """Failed ones, and those whose holder is silent: their partition went to another process long ago."""
        self._open = {known: held for known, held in self._open.items() if held.owner and held.lease_until_s > now_s}

    def complete(self, identities: Sequence[Identity], owner: str) -> set[Identity]:
        """As of Store."""
        with self._lock:
            others = {identity for identity in identities if not self._may(identity, owner)}
            for identity in identities:
                if identity not in others:
                    self._settle(identity, is_given_up=False)
            return others

    def _may(self, identity: Identity, owner: str) -> bool:
        held = self._open.get(identity)
        return held is None or held.owner in {"", owner}

    def fail(self, identity: Identity, owner: str, error: str, *, is_given_up: bool) -> None:  # noqa: ARG002
        """As of Store. The error is not kept: nobody could look at it."""
        with self._lock:
            if not self._may(identity, owner) or identity in self._known:
                return
            if is_given_up:
                self._settle(identity, is_given_up=True)
            elif (held := self._open.get(identity)) is not None:
                held.owner = ""

    def release(self, identities: Sequence[Identity], owner: str) -> None:
        """As of Store."""
        with self._lock:
            for identity in identities:
                held = self._open.get(identity)
                if held is None or held.owner != owner:
                    continue
                held.owner, held.attempt = "", held.attempt - 1
                if not held.attempt:
                    del self._open[identity]

    def renew(self, identities: Collection[Identity], owner: str, lease_s: float) -> set[Identity]:
        """As of Store."""
        with self._lock:
            until_s = self._clock() + lease_s
            lost = set()
            for identity in identities:
                held = self._open.get(identity)
                if held is None or held.owner != owner:
                    lost.add(identity)
                else:
                    held.lease_until_s = until_s
            return lost

    def forget(self, identities: Iterable[Identity]) -> int:
        """As of Store."""
        count = 0
        with self._lock:
            for identity in identities:
                found = self._known.pop(identity, None), self._open.pop(identity, None)
                count += found != (None, None)
        return count

    def purge(self, older_than_s: float) -> int:
        """As of Store; what is kept for `keep_s` is forgotten by itself."""
        with self._lock:
            return self._expire(self._keep_s - older_than_s)

    def _settle(self, identity: Identity, *, is_given_up: bool) -> None:
        self._open.pop(identity, None)
        self._known[identity] = _Known(self._clock() + self._keep_s, is_given_up)
        self._known.move_to_end(identity)
        while len(self._known) > self._most_events:
            self._known.popitem(last=False)

    def _expire(self, ahead_s: float = 0.0) -> int:
        over_s, count = self._clock() + ahead_s, 0
        while self._known:
            identity, known = next(iter(self._known.items()))
            if known.until_s > over_s:
                break
            del self._known[identity]
            count += 1
        return count
