"""Which LSN may be confirmed. Pure.

Invariant: `flush_lsn` is the greatest marked end LSN such that every event handed over before its mark, and so every
event of that transaction and of all before it, has been acknowledged by the sink. It is the contiguous prefix, never
the maximum of what was acknowledged; it never goes back.
"""

from __future__ import annotations

import heapq
from collections import deque


class Watermark:
    """Events get sequence numbers 0, 1, 2 … as they are handed over; acknowledgements may come in any order."""

    def __init__(self) -> None:
        self._next = 0
        self._low = 0  # everything below is acknowledged
        self._ahead: list[tuple[int, int]] = []  # acknowledged ranges above, as a heap
        self._marks: deque[tuple[int, int]] = deque()  # (sequence number that must be reached, end LSN)
        self._marked_lsn = 0
        self._flush_lsn = 0

    @property
    def flush_lsn(self) -> int:
        """What may be confirmed; 0 while nothing may."""
        return self._flush_lsn

    @property
    def marked_lsn(self) -> int:
        """The greatest end LSN handed over, durable or not."""
        return self._marked_lsn

    @property
    def low(self) -> int:
        """The lowest sequence number that is not acknowledged."""
        return self._low

    @property
    def is_idle(self) -> bool:
        """Whether all that was handed over is acknowledged."""
        return self._low == self._next

    def hand_over(self, count: int) -> range:
        """Sequence numbers for the next `count` events."""
        first = self._next
        self._next += count
        return range(first, self._next)

    def mark(self, end_lsn: int) -> None:
        """All that was handed over so far covers the stream through `end_lsn`. A lower one than before says nothing."""
        if end_lsn <= self._marked_lsn:
            return
        self._marked_lsn = end_lsn
        self._marks.append((self._next, end_lsn))
        self._advance()

    def acknowledge(self, sequence: range) -> None:
        """The sink has these for good. A repeated acknowledgement changes nothing; ValueError for unknown numbers."""
        if sequence.start < 0 or sequence.stop > self._next:
            raise ValueError("acknowledged what was never handed over")
        if sequence.start >= sequence.stop:
            return
        if sequence.start > self._low:
            heapq.heappush(self._ahead, (sequence.start, sequence.stop))
            return
        self._low = max(self._low, sequence.stop)
        while self._ahead and self._ahead[0][0] <= self._low:
            self._low = max(self._low, heapq.heappop(self._ahead)[1])
        self._advance()

    def retract(self) -> None:
        """All that is not below `low` is handed to the sink again, what it had acknowledged of it too."""
        self._ahead.clear()

    def _advance(self) -> None:
        while self._marks and self._marks[0][0] <= self._low:
            self._flush_lsn = self._marks.popleft()[1]
