"""What was tried and awaits another attempt, in monotonic time, and how long the pauses are. Pure."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cdcwatch.close.outcome import Outcome
    from cdcwatch.deadline.schedule import Due
    from cdcwatch.table import Key

_SECOND_US: Final = 1_000_000
_STALE_ENTRIES: Final = 64
_MOST_DOUBLINGS: Final = 20


class Backoff(NamedTuple):
    """Exponential, with jitter: many orders refused at once don't come back at once."""

    first_us: int
    longest_us: int

    def delay_us(self, attempts: int, random: float) -> int:
        """The pause after so many attempts, at least 1; `random` is in [0, 1)."""
        full_us: int = min(self.longest_us, self.first_us << min(attempts - 1, _MOST_DOUBLINGS))
        return int(full_us * (0.25 + 0.75 * random))


# A payer holds a row for milliseconds; what a trigger refuses, it refuses again.
LOCKED_BACKOFF: Final = Backoff(4_000, 2 * _SECOND_US)
FAILED_BACKOFF: Final = Backoff(_SECOND_US, 300 * _SECOND_US)
GIVEN_UP_BACKOFF: Final = Backoff(3600 * _SECOND_US, 3600 * _SECOND_US)
"""After a dead letter: somebody may have mended what refuses it, and nothing would tell us."""


class Retry(NamedTuple):
    """An order that was tried."""

    due: Due
    outcome: Outcome | None
    """None: the connection broke before the answer, and the order may be closed."""
    attempts: int
    """That came to this outcome, one after the other."""
    at_us: int | None
    """Monotonic; None while it is being tried."""
    since_us: int
    """Monotonic, of the first of them."""
    doubts: int = 0
    """How often the connection broke over it and whatever shared its batch."""
    breaks: int = 0
    """How often over it alone."""
    company: int = 0
    """The largest batch it may be part of; 0: any."""
    is_tables_fault: bool = False
    """`failed` for what seems to be the table's or the role's fault."""


class Retries:
    """By key, in flight or not. Not thread-safe."""

    def __init__(self) -> None:
        self._known: dict[Key, Retry] = {}
        self._heap: list[tuple[int, Key]] = []  # may hold stale entries, as many as live ones

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, key: Key) -> bool:
        return key in self._known

    def __iter__(self) -> Iterator[Retry]:
        return iter(self._known.values())

    def keys(self) -> Iterable[Key]:
        """In no order."""
        return self._known.keys()

    def get(self, key: Key) -> Retry | None:
        """What is known of the order."""
        return self._known.get(key)

    def put(self, retry: Retry) -> None:
        """Sets when and how it is tried again."""
        self._known[retry.due.key] = retry
        if retry.at_us is not None:
            heappush(self._heap, (retry.at_us, retry.due.key))
        if len(self._heap) > 2 * len(self._known) + _STALE_ENTRIES:
            self._heap = [(known.at_us, key) for key, known in self._known.items() if known.at_us is not None]
            heapify(self._heap)

    def discard(self, key: Key) -> Retry | None:
        """Forgets the order, and gives what was known of it."""
        return self._known.pop(key, None)

    def clear(self) -> None:
        """Forgets all."""
        self._known = {}
        self._heap = []

    @property
    def next_us(self) -> int | None:
        """When the next attempt is due; None: there is none to come."""
        heap = self._heap
        while heap:
            at_us, key = heap[0]
            known = self._known.get(key)
            if known is not None and known.at_us == at_us:
                return at_us
            heappop(heap)
        return None

    def take(self, monotonic_us: int, limit: int) -> list[Due]:
        """The attempts that are due, at most `limit`, and no more together than the smallest company among them."""
        batch: list[Due] = []
        while len(batch) < limit:
            at_us = self.next_us
            if at_us is None or at_us > monotonic_us:
                break
            company = self._known[self._heap[0][1]].company or limit
            if len(batch) >= company:
                break
            limit = min(limit, company)
            _, key = heappop(self._heap)
            # It stays known while in flight, for its number of attempts and for the word of the stream.
            taken = self._known[key]._replace(at_us=None)
            self._known[key] = taken
            batch.append(taken.due)
        return batch
