"""The schedule against a naive model: a dict, sorted when asked."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cdcwatch.deadline.schedule import Due, Schedule, bucket_bits_for
from cdcwatch.instant import INFINITY_US, NEGATIVE_INFINITY_US

SECOND_US = 1_000_000
START_US = 850_000_000 * SECOND_US

# Few keys and few instants, so that keys come back to where they were; the extremes beside them.
keys = st.integers(-(2**63), -(2**63) + 3) | st.integers(0, 30) | st.integers(2**63 - 3, 2**63 - 1)
deadlines = st.one_of(
    st.integers(-6, 6).map(lambda step: START_US + step * SECOND_US // 2),
    st.integers(-(10**9), 10**9).map(lambda seconds: START_US + seconds * SECOND_US),
    st.sampled_from([NEGATIVE_INFINITY_US, INFINITY_US, INFINITY_US - 1, 0, -1, START_US - 1, START_US]),
    st.integers(NEGATIVE_INFINITY_US, INFINITY_US),
)
versions = st.sampled_from([0, 1, 2, -1, 2**31 - 1, 2**63 - 1, -(2**63)])


class ScheduleMachine(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.model: dict[int, tuple[int, int]] = {}

    @initialize(
        window_end_us=st.sampled_from([START_US + 2 * SECOND_US, INFINITY_US, START_US + 10**15]),
        max_entries=st.integers(1, 20),
        coarse_before_us=st.sampled_from([NEGATIVE_INFINITY_US, START_US, 0]),
        bucket_bits=st.sampled_from([20, 22, 40]),
    )
    def begin(self, window_end_us, max_entries, coarse_before_us, bucket_bits):
        self.max_entries = max_entries
        self.window_end_us = min(window_end_us, INFINITY_US - 1)
        self.schedule = Schedule(
            window_end_us=window_end_us,
            max_entries=max_entries,
            coarse_before_us=coarse_before_us,
            bucket_bits=bucket_bits,
        )

    def _put_in_model(self, key, deadline_us, version):
        if deadline_us > self.window_end_us:
            self.model.pop(key, None)
        else:
            self.model[key] = (deadline_us, version)
        if len(self.model) > self.max_entries:
            self._expect_overflow()

    def _expect_overflow(self):
        """Which of equal deadlines are dropped is the schedule's choice; that the latest are, is not."""
        kept = {key: self.schedule.get(key) for key in self.model if key in self.schedule}
        dropped = {key: value for key, value in self.model.items() if key not in kept}
        assert len(kept) <= self.max_entries
        assert dropped
        earliest_dropped_us = min(deadline_us for deadline_us, _ in dropped.values())
        assert all(deadline_us <= earliest_dropped_us for key, (deadline_us, _) in self.model.items() if key in kept)
        assert self.schedule.window_end_us == earliest_dropped_us - 1
        self.window_end_us = earliest_dropped_us - 1
        for key in dropped:
            del self.model[key]

    @rule(key=keys, deadline_us=deadlines, version=versions)
    def put(self, key, deadline_us, version):
        self.schedule.put(key, deadline_us, version)
        self._put_in_model(key, deadline_us, version)

    @rule(key=keys, deadline_us=deadlines, version=versions)
    def put_if_absent(self, key, deadline_us, version):
        known = key in self.model
        let_in = self.schedule.put_if_absent(key, deadline_us, version)
        assert let_in == (not known and deadline_us <= self.window_end_us)
        if not known:
            self._put_in_model(key, deadline_us, version)

    @rule(key=keys, first=deadlines, second=deadlines, times=st.integers(1, 40))
    def move_to_and_fro(self, key, first, second, times):
        for _ in range(times):
            for deadline_us in (first, second):
                self.schedule.put(key, deadline_us, 1)
                self._put_in_model(key, deadline_us, 1)

    @rule(key=keys)
    def discard(self, key):
        self.schedule.discard(key)
        self.model.pop(key, None)

    @rule()
    def clear(self):
        self.schedule.clear()
        self.model.clear()

    @rule(to_us=deadlines)
    def extend_window(self, to_us):
        assert self.schedule.extend_window(to_us) == self.window_end_us
        self.window_end_us = max(self.window_end_us, min(to_us, INFINITY_US - 1))

    @rule(now_us=deadlines, limit=st.integers(0, 12))
    def pop_due(self, now_us, limit):
        popped = self.schedule.pop_due(now_us, limit)
        expected = sorted(deadline_us for deadline_us, _ in self.model.values() if deadline_us <= now_us)[:limit]
        assert [due.deadline_us for due in popped] == expected
        for due in popped:
            assert self.model.pop(due.key) == (due.deadline_us, due.version)

    @rule(count=st.integers(0, 12))
    def nearest(self, count):
        seen = self.schedule.nearest(count)
        assert [due.deadline_us for due in seen] == sorted(deadline_us for deadline_us, _ in self.model.values())[
            :count
        ]
        assert len({due.key for due in seen}) == len(seen)
        assert all(self.model[due.key] == (due.deadline_us, due.version) for due in seen)

    @rule()
    def next_deadline(self):
        expected = min((deadline_us for deadline_us, _ in self.model.values()), default=None)
        assert self.schedule.next_deadline_us == expected

    @invariant()
    def same_entries(self):
        if not hasattr(self, "schedule"):
            return
        assert len(self.schedule) == len(self.model)
        assert self.schedule.window_end_us == self.window_end_us
        for key, (deadline_us, version) in self.model.items():
            assert key in self.schedule
            assert self.schedule.get(key) == Due(key, deadline_us, version)

    @invariant()
    def bounded_references(self):
        if hasattr(self, "schedule"):
            assert self.schedule.references <= 2 * len(self.model)
            assert len(self.schedule._numbers) <= 2 * len(self.schedule._buckets) + 64


TestSchedule = ScheduleMachine.TestCase
TestSchedule.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)


def test_text_keys_are_ordered_by_deadline_too():
    schedule = Schedule(window_end_us=INFINITY_US)
    for number, key in enumerate(("b", "a", '["x","1"]', "c")):
        schedule.put(key, START_US + number // 2, number)
    assert [due.version for due in schedule.pop_due(START_US, 10)] == [1, 0]
    assert schedule.next_deadline_us == START_US + 1


def test_bucket_width_follows_the_horizon():
    assert bucket_bits_for(3600 * SECOND_US) == 20
    a_year_us = 366 * 86_400 * SECOND_US
    assert 1000 < a_year_us >> bucket_bits_for(a_year_us) < 10_000


def test_an_overflow_pulls_the_window_back_before_the_earliest_it_dropped():
    schedule = Schedule(window_end_us=INFINITY_US, max_entries=32)
    for key in range(32):
        schedule.put(key, START_US + key * SECOND_US // 4, key)
    schedule.put(32, START_US, 32)
    kept = sorted(due.key for due in schedule.pop_due(INFINITY_US, 100))
    assert kept == [*range(27), 32]
    assert schedule.window_end_us == START_US + 27 * SECOND_US // 4 - 1


def test_references_that_went_stale_take_nobodys_place_among_the_nearest():
    schedule = Schedule(window_end_us=INFINITY_US, bucket_bits=40)
    for key in range(9):
        schedule.put(key, START_US + key, 0)
    assert schedule.next_deadline_us == START_US  # opens the bucket: from now on it is a heap
    for key in (1, 2):
        schedule.discard(key)
    schedule.put(3, START_US + 100, 0)
    assert [due.key for due in schedule.nearest(4)] == [0, 4, 5, 6]
    assert [due.key for due in schedule.pop_due(START_US + 6, 9)] == [0, 4, 5, 6]
