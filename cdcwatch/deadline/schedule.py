"""The pending deadlines in memory, in order: what is due next, at a flat cost from a thousand to ten million orders.

One dict holds key -> (deadline, version) packed into one integer. The order is kept apart: each key also stands in the
bucket of its deadline, unordered until the bucket is the earliest, then a heap. Nothing is searched when an order is
paid or moved: its old reference goes stale and is skipped. No bucket ever holds more stale references than live ones.
"""

from __future__ import annotations

from array import array
from heapq import heapify, heappop, heappush, nsmallest
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from cdcwatch.instant import INFINITY_US, NEGATIVE_INFINITY_US

if TYPE_CHECKING:
    from collections.abc import Iterable, MutableSequence

    from cdcwatch.table import Key

_DEADLINE_BITS: Final = 64
_DEADLINE_MASK: Final = 2**_DEADLINE_BITS - 1
_SIGN: Final = 2 ** (_DEADLINE_BITS - 1)
# What lies before `coarse_before_us` comes in buckets of 71 minutes: years of overdue orders, one a second, would
# otherwise need a bucket each.
_COARSE_BITS: Final = 32
_FINEST_BITS: Final = 20
_BUCKETS_PER_HORIZON: Final = 4096
# An overflow drops this share at once, so that its cost spreads over as many puts.
_DROPPED_SHARE: Final = 8
_STALE_NUMBERS: Final = 64
_MOST_LOOKED_AT: Final = 4096
"""References, by somebody who only wants to see what is next."""


class Due(NamedTuple):
    """An order's deadline as it was last known."""

    key: Key
    deadline_us: int
    """Microseconds since 2000-01-01 UTC."""
    version: int
    """The row's version; 0 where the table has none."""


class _Bucket:
    """The keys of one span of time: unordered until opened, then a heap of (deadline, key)."""

    __slots__ = ("heap", "keys", "live")

    def __init__(self, keys: Iterable[Key]) -> None:
        self.keys = _packed_keys(keys)
        self.heap: list[tuple[int, Key]] | None = None
        self.live = 0


def _packed_keys(keys: Iterable[Key]) -> MutableSequence[Key]:
    """Integers as an array: Python's garbage collector walks every item of a list, for over a second at ten million."""
    listed = list(keys)
    if listed and isinstance(listed[0], int):
        return cast("MutableSequence[Key]", array("q", cast("list[int]", listed)))
    return listed


def bucket_bits_for(horizon_us: int) -> int:
    """The width of a bucket, as a power of two in microseconds, that cuts the horizon into some thousands of them."""
    return max(_FINEST_BITS, (horizon_us // _BUCKETS_PER_HORIZON).bit_length())


class Schedule:
    """Ordered pending deadlines, one live entry per key, none beyond `window_end_us` put in. Not thread-safe."""

    def __init__(
        self,
        *,
        window_end_us: int,
        max_entries: int = 5_000_000,
        coarse_before_us: int = NEGATIVE_INFINITY_US,
        bucket_bits: int = _FINEST_BITS,
    ) -> None:
        """`coarse_before_us`: about the time of start; it decides memory and speed, nothing else."""
        self._window_end_us = min(window_end_us, INFINITY_US - 1)
        self._max_entries = max_entries
        self._bits = bucket_bits
        coarse_bits = max(_COARSE_BITS, bucket_bits)
        self._coarse_bits = coarse_bits
        self._coarse_before_us = coarse_before_us >> coarse_bits << coarse_bits
        self._coarse_shift = (self._coarse_before_us >> bucket_bits) - (self._coarse_before_us >> coarse_bits)
        self._entries: dict[Key, int] = {}
        self._buckets: dict[int, _Bucket] = {}
        self._numbers: list[int] = []

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: Key) -> bool:
        return key in self._entries

    @property
    def window_end_us(self) -> int:
        """Deadlines after this are not held: they stay in the table until the window is extended over them."""
        return self._window_end_us

    @property
    def max_entries(self) -> int:
        """How many entries are held at most."""
        return self._max_entries

    @property
    def next_deadline_us(self) -> int | None:
        """The earliest deadline, exactly; None when nothing is pending."""
        first = self._first()
        return first[1][0][0] if first else None

    @property
    def references(self) -> int:
        """Keys stored in the order, stale ones included: at most twice the entries. Costs a pass over the buckets."""
        return sum(len(bucket.keys if bucket.heap is None else bucket.heap) for bucket in self._buckets.values())

    def get(self, key: Key) -> Due | None:
        """The key's entry."""
        packed = self._entries.get(key)
        return None if packed is None else Due(key, _deadline_us(packed), packed >> _DEADLINE_BITS)

    def extend_window(self, to_us: int) -> int:
        """Lets in deadlines through `to_us`, and gives the end of the window until now; never shrinks it."""
        before_us = self._window_end_us
        self._window_end_us = max(before_us, min(to_us, INFINITY_US - 1))
        return before_us

    def put(self, key: Key, deadline_us: int, version: int) -> None:
        """Sets the key's deadline. One beyond the window, `infinity` included, only removes what was known."""
        if deadline_us > self._window_end_us:
            self.discard(key)
            return
        before = self._entries.get(key)
        self._entries[key] = version << _DEADLINE_BITS | deadline_us & _DEADLINE_MASK
        number = self._number(deadline_us)
        if before is None:
            self._add(number, deadline_us, key)
            if len(self._entries) > self._max_entries:
                self._overflow()
            return
        before_us = _deadline_us(before)
        if before_us == deadline_us:
            return
        before_number = self._number(before_us)
        if before_number != number:
            self._add(number, deadline_us, key)
            self._let_go(before_number)
            return
        bucket = self._buckets[number]
        if bucket.heap is not None:
            heappush(bucket.heap, (deadline_us, key))
            self._tidy(number, bucket)

    def put_if_absent(self, key: Key, deadline_us: int, version: int) -> bool:
        """As `put`, unless the key is known: what came by the stream wins over what was read. Whether it was let in."""
        entries = self._entries
        if key in entries or deadline_us > self._window_end_us:
            return False
        entries[key] = version << _DEADLINE_BITS | deadline_us & _DEADLINE_MASK
        self._add(self._number(deadline_us), deadline_us, key)
        if len(entries) > self._max_entries:
            self._overflow()
        return True

    def discard(self, key: Key) -> None:
        """Forgets the key; nothing when it isn't known."""
        packed = self._entries.pop(key, None)
        if packed is not None:
            self._let_go(self._number(_deadline_us(packed)))

    def keys(self) -> list[Key]:
        """All that are pending, in no order."""
        return list(self._entries)

    def nearest(self, count: int) -> list[Due]:
        """The next `count`, the earliest first; nothing is taken out. Fewer where it would have to look at too many."""
        found: dict[Key, Due] = {}
        left = _MOST_LOOKED_AT
        self._first()  # opens it
        for number in nsmallest(_MOST_LOOKED_AT, self._buckets):
            bucket = self._buckets[number]
            left -= len(bucket.keys)
            if left <= 0 or len(found) >= count:
                break
            if bucket.heap is None:
                keys = self._live_keys(number, bucket)
                ordered = nsmallest(count, ((_deadline_us(self._entries[key]), key) for key in keys))
            else:
                ordered = _earliest(bucket.heap, count + len(bucket.heap) - bucket.live, left)
            for deadline_us, key in ordered:
                due = self.get(key)
                if due is not None and due.deadline_us == deadline_us:
                    found[key] = due
        return list(found.values())[:count]

    def clear(self) -> None:
        """Forgets every key; the window stays."""
        self._entries = {}
        self._buckets = {}
        self._numbers = []

    def pop_due(self, now_us: int, limit: int) -> list[Due]:
        """Takes out what is due at `now_us`, oldest first, at most `limit`."""
        due: list[Due] = []
        entries = self._entries
        while len(due) < limit:
            first = self._first()
            if first is None or first[1][0][0] > now_us:
                break
            number, heap = first
            bucket = self._buckets[number]
            while heap and heap[0][0] <= now_us and len(due) < limit:
                deadline_us, key = heappop(heap)
                packed = entries.get(key)
                if packed is not None and _deadline_us(packed) == deadline_us:
                    del entries[key]
                    bucket.live -= 1
                    due.append(Due(key, deadline_us, packed >> _DEADLINE_BITS))
            self._tidy(number, bucket)
        return due

    def _number(self, deadline_us: int) -> int:
        """The bucket of a deadline. Later deadlines never have lower numbers."""
        if deadline_us >= self._coarse_before_us:
            return deadline_us >> self._bits
        return (deadline_us >> self._coarse_bits) + self._coarse_shift

    def _add(self, number: int, deadline_us: int, key: Key) -> None:
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = _Bucket((key,))
            heappush(self._numbers, number)
        elif bucket.heap is None:
            bucket.keys.append(key)
        else:
            heappush(bucket.heap, (deadline_us, key))
        bucket.live += 1
        # A key that came back to this bucket stands in it twice, and again and again.
        self._tidy(number, bucket)

    def _let_go(self, number: int) -> None:
        """One entry of the bucket is live no more."""
        bucket = self._buckets[number]
        bucket.live -= 1
        self._tidy(number, bucket)

    def _tidy(self, number: int, bucket: _Bucket) -> None:
        """Keeps the stale references of a bucket no more than its live ones; empty buckets go."""
        if not bucket.live:
            del self._buckets[number]
            # The heap of numbers may hold some of buckets long gone; they are skipped when they come to the top.
            if len(self._numbers) > 2 * len(self._buckets) + _STALE_NUMBERS:
                self._renumber()
        elif len(bucket.keys if bucket.heap is None else bucket.heap) > 2 * bucket.live:
            keys = self._live_keys(number, bucket)
            if bucket.heap is None:
                bucket.keys = _packed_keys(keys)
            else:
                self._open(bucket, keys)

    def _live_keys(self, number: int, bucket: _Bucket) -> list[Key]:
        """The keys whose deadline is in this bucket, each once."""
        entries = self._entries
        stored: Iterable[Key] = bucket.keys if bucket.heap is None else (key for _, key in bucket.heap)
        return [
            key
            for key in dict.fromkeys(stored)
            if (packed := entries.get(key)) is not None and self._number(_deadline_us(packed)) == number
        ]

    def _open(self, bucket: _Bucket, keys: list[Key]) -> None:
        entries = self._entries
        heap = [(_deadline_us(entries[key]), key) for key in keys]
        # Keys of one table are all ints or all texts, so that ties compare.
        heapify(heap)
        bucket.heap = heap
        bucket.keys = []

    def _first(self) -> tuple[int, list[tuple[int, Key]]] | None:
        """The earliest bucket's number and heap, a live entry on its top."""
        while self._numbers:
            number = self._numbers[0]
            bucket = self._buckets.get(number)
            if bucket is None:
                heappop(self._numbers)
                continue
            if bucket.heap is None:
                self._open(bucket, self._live_keys(number, bucket))
            heap = bucket.heap
            while heap:
                packed = self._entries.get(heap[0][1])
                if packed is not None and _deadline_us(packed) == heap[0][0]:
                    return number, heap
                heappop(heap)
        return None

    def _overflow(self) -> None:
        """Drops the latest entries and pulls the window's end back before them: they are loaded again later."""
        surplus = len(self._entries) - self._max_entries + self._max_entries // _DROPPED_SHARE
        for number in sorted(self._buckets, reverse=True):
            bucket = self._buckets[number]
            keys = sorted(self._live_keys(number, bucket), key=lambda key: _deadline_us(self._entries[key]))
            dropped = keys[-surplus:]
            self._window_end_us = _deadline_us(self._entries[dropped[0]]) - 1
            for key in dropped:
                del self._entries[key]
            bucket.live -= len(dropped)
            surplus -= len(dropped)
            self._tidy(number, bucket)
            if not surplus:
                break
        self._renumber()

    def _renumber(self) -> None:
        self._numbers = list(self._buckets)
        heapify(self._numbers)


def _deadline_us(packed: int) -> int:
    """The low half of a packed entry, signed. The version stands above it, so that version 0 costs no memory."""
    low = packed & _DEADLINE_MASK
    return low if low < _SIGN else low - 2 * _SIGN


def _earliest(heap: list[tuple[int, Key]], count: int, most: int) -> list[tuple[int, Key]]:
    """The first `count` of a heap in order, at most `most`, without touching it."""
    found: list[tuple[int, Key]] = []
    candidates = [(heap[0], 0)] if heap else []
    while candidates and len(found) < min(count, most):
        entry, at = heappop(candidates)
        found.append(entry)
        for child in (2 * at + 1, 2 * at + 2):
            if child < len(heap):
                heappush(candidates, (heap[child], child))
    return found
