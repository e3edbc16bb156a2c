"""Handling in the handler's transaction, on a database that is a list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdcwatch.consume import Event, MemoryStore, TryAgain, batch, each
from cdcwatch.errors import ConfigurationError
from tests.fakes.consume import Bench, FakeConnection, FakePostgres, FakeStore, Table, record

if TYPE_CHECKING:
    from collections.abc import Sequence


def bench_of(table: Table, failing: dict[str, list[Exception]], *, is_batch: bool = False, **course: Any) -> Bench:
    """The effect comes first, so that only a rollback takes it back."""

    def many(events: Sequence[Event], connection: Any) -> None:
        for event in events:
            connection.effects.append(event.id)
            if failing.get(event.id):
                raise failing[event.id].pop(0)

    def one(event: Event, connection: Any) -> None:
        many([event], connection)

    handling = batch(many, in_transaction=True) if is_batch else each(one, in_transaction=True)
    return Bench(handling, FakePostgres(table), **course)


@pytest.mark.parametrize("is_batch", [False, True])
def test_effect_and_record_come_together_and_the_poison_one_leaves_neither(is_batch: bool) -> None:
    table = Table()
    bench = bench_of(table, {"b": [ValueError()] * 9, "c": [TryAgain(), ValueError()]}, is_batch=is_batch)
    bench.hear(record(0, "a"), record(1, "b"), record(2, "a"), record(3, "c"), record(4, "d"))
    bench.run()
    assert table.effects == ["a", "c", "d"]
    assert [identity.id for identity in table.completed] == ["a", "b", "c", "d"]
    assert bench.grave.letters == [(1, "ValueError", 3)]
    assert bench.lane.position == 5
    assert bench.counted["duplicates"] == 1
    assert bench.counted["handled"] == 3


def test_one_question_for_a_batch_and_one_transaction_an_event() -> None:
    places: list[str] = []
    table = Table()
    bench = bench_of(table, {})
    bench.stores[0].reached = places.append
    bench.hear(*(record(offset) for offset in range(4)))
    bench.run()
    assert places == ["note", "noted", *["begin", "commit", "committed"] * 4], "the first after a start may be to blame"
    places.clear()
    bench.hear(record(5, "0"), record(6, "1"), record(7, "new"))
    bench.run()
    assert places == ["begin", "commit", "committed"]
    assert table.effects == ["0", "1", "2", "3", "new"]


def test_while_the_database_is_away_nothing_is_handled_and_no_attempt_counted() -> None:
    table = Table()
    bench = bench_of(table, {"a": [ValueError()]})
    bench.stores[0].is_away = True
    bench.hear(record(0, "a"))
    bench.run(steps=10)
    assert bench.counted == {}
    bench.stores[0].is_away = False
    bench.run()
    assert table.effects == ["a"]
    assert bench.counted == {"total": 1, "handled": 1, "errors": 1}


@pytest.mark.parametrize("error", [psycopg.errors.DeadlockDetected(), psycopg.errors.SerializationFailure()])
def test_what_the_database_wants_repeated_is_and_says_nothing_against_the_event(error: Exception) -> None:
    table = Table()
    bench = bench_of(table, {"a": [error] * 6}, tries=1)
    bench.hear(record(0, "a"))
    bench.run()
    assert table.effects == ["a"]
    assert bench.grave.letters == []
    assert bench.counted == {"total": 1, "handled": 1}


def test_a_connection_that_breaks_over_the_handler_is_forgiven_once() -> None:
    table = Table()
    bench = bench_of(table, {"a": [psycopg.OperationalError()] * 2}, tries=1)
    FakeConnection.broken = True
    try:
        bench.hear(record(0, "a"))
        bench.run()
    finally:
        FakeConnection.broken = False
    assert bench.grave.letters == [(0, "psycopg.OperationalError", 1)]
    assert bench.counted["errors"] == 1


class Died(BaseException):
    """The process is gone: nothing after it runs."""


@pytest.mark.parametrize("is_batch", [False, True])
def test_an_event_that_kills_its_process_is_counted_although_its_transaction_is_gone(is_batch: bool) -> None:
    table, deaths, position = Table(), 0, 0

    def many(events: Sequence[Event], connection: Any) -> None:
        connection.effects += [event.id for event in events]
        if any(event.id == "d" for event in events):
            raise Died

    def one(event: Event, connection: Any) -> None:
        many([event], connection)

    handling = batch(many, in_transaction=True) if is_batch else each(one, in_transaction=True)
    bench = Bench(handling, FakePostgres(table))
    while position < 6:
        bench.another()
        bench.hear(*[record(offset, "abcdef"[offset]) for offset in range(position, 6)])
        try:
            bench.run()
        except Died:
            deaths += 1
            assert deaths < 10
        position = bench.lane.position or position
    # Before the first death it was not suspected yet: each handles its first event so, a batch its first `size`.
    assert deaths == (3 if is_batch else 4)
    assert bench.grave.letters == [(3, "the process died", 3)]
    assert table.effects == list("abcef")


def test_caches_learn_only_what_is_committed() -> None:
    table = Table()
    bench = bench_of(table, {"a": [ValueError()] * 9})
    cache = FakeStore(bench.clock, name="cache")
    bench = Bench(bench.course.handling, cache, bench.stores[0], clock=bench.clock)
    bench.hear(record(0, "a"), record(1, "b"))
    bench.run()
    assert [identity.id for identity in cache._known] == ["b"]


def test_the_event_is_its_handlers_while_the_transaction_is_open() -> None:
    held: list[bool] = []
    events: list[Event] = []

    def handle(event: Event, _: Any) -> None:
        held.append(bench.lane.work.holds(event))
        events.append(event)

    bench = Bench(each(handle, in_transaction=True), FakePostgres(Table()))
    bench.hear(record(0, "a"))
    bench.run()
    assert held == [True]
    assert not bench.lane.work.holds(events[0])


def test_a_transaction_needs_a_database() -> None:
    with pytest.raises(ConfigurationError, match="PostgresStore as the last"):
        Bench(each(lambda _, __: None, in_transaction=True), MemoryStore())


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_dead_letter_that_is_forgotten_and_sent_again_is_known_to_no_cache(asked_first: bool) -> None:
    table = Table()
    failing: dict[str, list[Exception]] = {"a": [ValueError()] * 3}
    bench = bench_of(table, failing)
    cache, postgres = FakeStore(bench.clock, name="cache", rank=1), bench.stores[0]
    bench = Bench(bench.course.handling, cache, postgres, clock=bench.clock)
    bench.hear(record(0, "a"))
    bench.run()
    assert len(bench.grave.letters) == 1
    if not asked_first:  # as where it was given up between the question and the transaction
        postgres.known = lambda _: set()  # type: ignore[method-assign]
    bench.hear(record(1, "a"))  # sent again, too early
    bench.run()
    assert (table.effects, bench.counted["duplicates"]) == ([], 1)
    table.completed.clear()  # Store.forget, of the last one
    table.attempts.clear()
    bench.hear(record(2, "a"))
    bench.run()
    assert table.effects == ["a"]
