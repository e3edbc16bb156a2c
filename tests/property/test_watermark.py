"""The watermark against a naive model: a set of acknowledged numbers and a list of marks."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cdcwatch.handoff.watermark import Watermark


class WatermarkMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.watermark = Watermark()
        self.handed_over = 0
        self.acknowledged: set[int] = set()
        self.marks: list[tuple[int, int]] = []  # numbers handed over before it, end LSN
        self.flushed = [0]

    @rule(count=st.integers(0, 6))
    def hand_over(self, count):
        assert self.watermark.hand_over(count) == range(self.handed_over, self.handed_over + count)
        self.handed_over += count

    @rule(step=st.integers(-3, 5))
    def mark(self, step):
        end_lsn = max(1, max((lsn for _, lsn in self.marks), default=0) + step)
        self.watermark.mark(end_lsn)
        if all(end_lsn > lsn for _, lsn in self.marks):
            self.marks.append((self.handed_over, end_lsn))

    @precondition(lambda self: self.handed_over)
    @rule(data=st.data(), length=st.integers(0, 8))
    def acknowledge(self, data, length):
        """In any order, repeated, overlapping; near the lowest missing number more often than elsewhere."""
        missing = next((n for n in range(self.handed_over) if n not in self.acknowledged), 0)
        start = data.draw(st.just(missing) | st.integers(0, self.handed_over - 1))
        sequence = range(start, min(start + length, self.handed_over))
        self.watermark.acknowledge(sequence)
        self.acknowledged |= set(sequence)

    @invariant()
    def the_contiguous_prefix(self):
        low = next((n for n in range(self.handed_over) if n not in self.acknowledged), self.handed_over)
        assert self.watermark.low == low
        assert self.watermark.is_idle == (low == self.handed_over)
        assert self.watermark.flush_lsn == max((lsn for before, lsn in self.marks if before <= low), default=0)
        assert self.watermark.marked_lsn == max((lsn for _, lsn in self.marks), default=0)

    @invariant()
    def never_backwards(self):
        self.flushed.append(self.watermark.flush_lsn)
        assert self.flushed[-1] >= self.flushed[-2]


TestWatermark = WatermarkMachine.TestCase
TestWatermark.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
