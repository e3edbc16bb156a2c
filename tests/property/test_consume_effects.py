"""However often the process dies, and wherever: an effect in the handler's transaction happens exactly once, any other at least once."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cdcwatch.consume import Event, MemoryStore, batch, each
from tests.fakes.consume import Bench, Clock, FakePostgres, Table, record


class Died(BaseException):
    """The process is gone: nothing after it runs."""


class Fate:
    """Dies at the numbered places it passes."""

    def __init__(self, deaths: set[int]) -> None:
        self.passed, self.deaths, self.died = 0, deaths, 0

    def reached(self, _: str = "") -> None:
        self.passed += 1
        if self.passed in self.deaths:
            self.died += 1
            raise Died


TOPICS = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=25)
DEATHS = st.sets(st.integers(1, 60), max_size=20)


def live_through(bench: Bench, names: list[str], commit_every: int) -> None:
    """Runs again and again from the last committed offset, until all is settled."""
    committed = 0
    for _ in range(200):
        lane = bench.another()
        bench.hear(*(record(offset, names[offset]) for offset in range(committed, len(names))))
        try:
            while (wait_s := lane.step()) is not None:
                bench.clock.now_s += wait_s
                if lane.position is not None and lane.position - committed >= commit_every:
                    committed = lane.position
        except Died:
            bench.clock.now_s += 61  # what it had in hand is taken over
            continue
        if lane.position == len(names):
            return
    raise AssertionError("it never ended")


@given(names=TOPICS, deaths=DEATHS, is_batch=st.booleans(), size=st.integers(1, 6), commit_every=st.integers(1, 8),
       failing=st.dictionaries(st.sampled_from("abcdefgh"), st.integers(1, 5)))  # fmt: skip
def test_effects_in_the_handlers_transaction_happen_exactly_once(
    names: list[str], deaths: set[int], is_batch: bool, size: int, commit_every: int, failing: dict[str, int]
) -> None:
    fate, table, left = Fate(deaths), Table(), dict(failing)

    def many(events: list[Event], connection: Any) -> None:
        for event in events:
            connection.effects.append(event.id)
            fate.reached()
            if left.get(event.id):
                left[event.id] -= 1
                raise ValueError

    def one(event: Event, connection: Any) -> None:
        many([event], connection)

    handling = batch(many, in_transaction=True, size=size) if is_batch else each(one, in_transaction=True, size=size)
    bench = Bench(handling, MemoryStore(), FakePostgres(table, fate.reached))
    bench.grave.reached = fate.reached
    live_through(bench, names, commit_every)
    dead = {names[offset] for offset, _, _ in bench.grave.letters}
    assert sorted(table.effects) == sorted(set(names) - dead)
    assert all(failing.get(name, 0) + fate.died >= bench.course.tries for name in dead)


@given(names=TOPICS, deaths=DEATHS, is_batch=st.booleans(), size=st.integers(1, 6), commit_every=st.integers(1, 8))
def test_any_other_effect_happens_at_least_once_and_again_only_where_a_process_died_over_it(
    names: list[str], deaths: set[int], is_batch: bool, size: int, commit_every: int
) -> None:
    fate, clock, effects = Fate(deaths), Clock(), list[str]()

    def many(events: list[Event]) -> None:
        for event in events:
            fate.reached()
            effects.append(event.id)
            fate.reached()

    def one(event: Event) -> None:
        many([event])

    handling = batch(many, size=size) if is_batch else each(one, size=size)
    bench = Bench(handling, MemoryStore(clock=clock, keep_s=1e9), clock=clock, tries=100)
    live_through(bench, names, commit_every)
    assert set(effects) == set(names)
    assert len(effects) - len(set(names)) <= fate.died * (size if is_batch else 1)
    assert bench.grave.letters == []
