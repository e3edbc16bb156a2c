"""The levels together: the last decides, those above it are caches of what it has completed.

A cache that is away is passed over. The last level is never: without it nobody knows whether an event is new, so the
caller waits. A cache is written after the last level only; it can say "completed" too late, never too early.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cdcwatch.consume.postgres import PostgresStore
from cdcwatch.consume.store import Claim, Verdict
from cdcwatch.errors import CdcwatchError, ConfigurationError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from cdcwatch.consume.event import Identity
    from cdcwatch.consume.metrics import GroupMetrics
    from cdcwatch.consume.store import Store

_WAITED_FOR: Final = "handling waits for it"
_log = logging.getLogger(__name__)


class Levels:
    """One to three stores as one."""

    def __init__(self, stores: Sequence[Store], metrics: GroupMetrics) -> None:
        """ConfigurationError without a store, with two of a kind, or in another order: memory, Redis, PostgreSQL."""
        if not stores:
            raise ConfigurationError("a consumer without a store handles repetitions", remedy="stores=[MemoryStore()]")
        if any(above.rank >= below.rank for above, below in pairwise(stores)):
            raise ConfigurationError(
                "the stores are not in rising order",
                remedy="the quickest first, the most durable last: memory, Redis, PostgreSQL",
            )
        *self._caches, self.last = stores
        self._metrics = metrics
        self._away: set[str] = set()
        self._lock = threading.Lock()
        for store in stores:
            metrics.level_is_up(store.name, is_up=True)

    @property
    def transactional(self) -> PostgresStore:
        """The last level, where it keeps its record in the handler's transaction; ConfigurationError for another."""
        if isinstance(self.last, PostgresStore):
            return self.last
        raise ConfigurationError(
            "a handler in a transaction needs a PostgresStore as the last store",
            remedy="stores=[…, PostgresStore(dsn)]",
        )

    def open(self, group: str) -> None:
        """As of Store, but that those that are away are told of, and may come later."""
        for cache in self._caches:
            with self._passing_over(cache):
                cache.open(group)
        try:
            self.last.open(group)
        except UnavailableError as error:
            self._is_away(self.last, error, _WAITED_FOR)

    def close(self) -> None:
        """As of Store."""
        for store in (*self._caches, self.last):
            store.close()

    def cached(self, identities: Sequence[Identity]) -> set[Identity]:
        """Those that a cache knows to be completed or given up."""
        known: set[Identity] = set()
        for cache in self._caches:
            rest = [identity for identity in identities if identity not in known]
            if not rest:
                break
            with self._passing_over(cache):
                known |= cache.known(rest)
        return known

    def known(self, identities: Sequence[Identity]) -> set[Identity]:
        """The same of all levels. UnavailableError without the last, if it had to be asked."""
        known = self.cached(identities)
        rest = [identity for identity in identities if identity not in known]
        if rest:
            with self.deciding():
                known |= self.last.known(rest)  # not for the caches: dead letters are among them, and may be forgotten
        return known

    def begin(self, identities: Sequence[Identity], owner: str, lease_s: float) -> dict[Identity, Claim]:
        """As of Store: one question to the last level, about those that no cache knows."""
        claims = dict.fromkeys(self.cached(identities), Claim(Verdict.COMPLETED))
        rest = [identity for identity in identities if identity not in claims]
        if rest:
            with self.deciding():
                found = dict(zip(rest, self.last.begin(rest, owner, lease_s), strict=True))
            self.remember([identity for identity, claim in found.items() if claim.verdict is Verdict.COMPLETED])
            claims |= found
        return claims

    def complete(self, identities: Sequence[Identity], owner: str) -> set[Identity]:
        """As of Store."""
        with self.deciding():
            others = self.last.complete(identities, owner)
        self.remember([identity for identity in identities if identity not in others])
        return others

    def fail(self, identity: Identity, owner: str, error: str, *, is_given_up: bool) -> None:
        """As of Store."""
        with self.deciding():
            self.last.fail(identity, owner, error, is_given_up=is_given_up)

    def release(self, identities: Sequence[Identity], owner: str) -> None:
        """As of Store."""
        if identities:
            with self.deciding():
                self.last.release(identities, owner)

    def renew(self, identities: Collection[Identity], owner: str, lease_s: float) -> set[Identity]:
        """As of Store."""
        with self.deciding():
            return self.last.renew(identities, owner, lease_s)

    def remember(self, identities: Collection[Identity]) -> None:
        """The last level has these as completed: the caches may know."""
        if identities:
            for cache in self._caches:
                with self._passing_over(cache):
                    cache.remember(identities)

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """A question to the last level: told once when it is away, and the error goes on to the caller, who waits."""
        try:
            yield
        except CdcwatchError as error:
            self._is_away(self.last, error, _WAITED_FOR)
            raise
        else:
            self._is_back(self.last)

    @contextmanager
    def _passing_over(self, cache: Store) -> Iterator[None]:
        try:
            yield
        except CdcwatchError as error:
            self._is_away(cache, error, "the next level is asked instead")
        else:
            self._is_back(cache)

    def _is_away(self, store: Store, error: CdcwatchError, therefore: str) -> None:
        self._metrics.level_failed(store.name)
        with self._lock:
            is_new = store.name not in self._away
            self._away.add(store.name)
        if is_new:
            self._metrics.level_is_up(store.name, is_up=False)
            what = "is away" if isinstance(error, UnavailableError) else "refuses"
            told = {"reason": str(error), "remedy": error.remedy}
            _log.warning("the store %s %s; %s: %s; %s", store.name, what, therefore, error, error.remedy, extra=told)

    def _is_back(self, store: Store) -> None:
        if store.name not in self._away:  # without the lock: the usual case
            return
        with self._lock:
            self._away.discard(store.name)
        self._metrics.level_is_up(store.name, is_up=True)
        _log.info("the store %s is back", store.name)
