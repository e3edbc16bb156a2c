"""What becomes of the events of one partition, on a clock and stores that do as the test says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cdcwatch.consume import Event, Identity, Record, TryAgain, batch, decode_cloudevent, each
from cdcwatch.errors import UnavailableError
from tests.fakes.consume import Bench, Clock, FakeStore, ids, record

if TYPE_CHECKING:
    from collections.abc import Sequence


class Died(BaseException):
    """The process is gone: nothing after it runs."""


class Handler:
    """Remembers what it was given, and raises what it is told to for the ids in `failing`."""

    def __init__(self, **failing: list[BaseException]) -> None:
        self.handled: list[str] = []
        self.calls: list[list[str]] = []
        self.failing = {name.removeprefix("_"): errors for name, errors in failing.items()}

    def one(self, event: Event) -> None:
        self.many([event])

    def many(self, events: Sequence[Event]) -> None:
        self.calls.append(ids(events))
        for event in events:
            if self.failing.get(event.id):
                raise self.failing[event.id].pop(0)
        self.handled += ids(events)


@pytest.mark.parametrize("is_batch", [False, True])
def test_each_event_is_handled_once_in_order_whatever_is_repeated(is_batch: bool) -> None:
    handler = Handler()
    bench = Bench(batch(handler.many, size=4) if is_batch else each(handler.one, size=4))
    bench.hear(record(10, "a"), record(11, "b"), record(12, "a"), record(13, "c"), record(14, "b"), record(17, "a"))
    assert bench.run() == []
    assert handler.handled == ["a", "b", "c"]
    assert bench.lane.position == 18
    assert bench.counted == {"total": 6, "handled": 3, "duplicates": 3}
    assert bench.metrics.stats().duplicate_rate == 0.5
    assert handler.calls == ([["a", "b", "c"]] if is_batch else [["a"], ["b"], ["c"]])
    # One question for all of a batch, not one an event.
    assert bench.stores[0].asked.count("begin") == 3


def test_offsets_rise_only_over_what_is_settled() -> None:
    seen: list[int | None] = []
    bench = Bench(each(lambda _: seen.append(bench.lane.position)))
    bench.hear(record(5), record(6), record(7))
    bench.run()
    assert seen == [None, None, None], "a batch's offsets are given away once its front is settled"
    assert bench.lane.position == 8


@pytest.mark.parametrize("is_batch", [False, True])
def test_a_failed_handler_is_tried_again_and_the_poison_one_buried_so_that_the_next_goes_on(is_batch: bool) -> None:
    handler = Handler(b=[ValueError("secret")] * 10, c=[OSError(), OSError()])
    bench = Bench(batch(handler.many) if is_batch else each(handler.one))
    bench.hear(record(0, "a"), record(1, "b"), record(2, "c"), record(3, "d"))
    waits = bench.run()
    assert handler.handled == ["a", "c", "d"]
    assert waits == [1, 2, 1, 2], "b twice, then it is buried at once; c twice"
    assert bench.grave.letters == [(1, "ValueError", 3)]
    assert bench.lane.position == 4
    errors = 5 + is_batch  # the batch as a whole failed once
    assert bench.counted == {"total": 4, "handled": 3, "errors": errors, "dead_letters": 1}
    # It is not tried again when it is repeated, and doesn't become another dead letter.
    bench.hear(record(4, "b"))
    bench.run()
    assert bench.grave.letters == [(1, "ValueError", 3)]
    assert bench.counted["duplicates"] == 1


def test_attempts_of_another_process_count() -> None:
    handler = Handler(a=[ValueError()] * 9)
    bench = Bench(each(handler.one))
    bench.hear(record(0, "a"))
    assert bench.lane.step() == 1
    bench.lane.end()
    assert bench.run() == []
    assert bench.lane.position is None
    bench.another()
    bench.hear(record(0, "a"))
    assert bench.run() == [2]
    assert bench.grave.letters == [(0, "ValueError", 3)]


def test_what_the_handler_needs_is_away_for_long_and_nothing_becomes_a_dead_letter() -> None:
    handler = Handler(a=[TryAgain()] * 20)
    bench = Bench(each(handler.one))
    bench.hear(record(0, "a"), record(1, "b"))
    waits = bench.run()
    assert len(waits) == 20
    assert all(4 <= wait_s <= 8 for wait_s in waits[4:])
    assert handler.handled == ["a", "b"]
    assert bench.counted == {"total": 2, "handled": 2}


def test_a_dead_letter_is_durable_before_its_offset_is_given_away() -> None:
    bench = Bench(each(Handler(a=[ValueError()] * 3).one))
    bench.grave.is_away = True
    bench.hear(record(0, "a"), record(1, "b"))
    bench.run(steps=30)
    assert bench.lane.position is None
    assert bench.stores[0].known([Identity("/shop", "a")]) == set()
    bench.grave.is_away = False
    bench.run()
    assert bench.grave.letters == [(0, "ValueError", 3)]
    assert bench.lane.position == 2


# -- a store that is away ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_batch", [False, True])
def test_without_the_store_nothing_is_handled_and_what_was_handled_is_not_handled_again(is_batch: bool) -> None:
    handler = Handler()
    bench = Bench(batch(handler.many) if is_batch else each(handler.one))
    (store,) = bench.stores
    store.away = {"begin"}
    bench.hear(record(0, "a"), record(1, "b"))
    assert len(bench.run(steps=10)) == 10
    assert handler.handled == []
    assert bench.metrics.stats().away == ("memory",)
    store.away = {"complete"}
    bench.run(steps=10)
    assert handler.handled == (["a", "b"] if is_batch else ["a"])
    assert bench.lane.position is None
    store.away = set()
    bench.run()
    assert handler.handled == ["a", "b"]
    assert bench.counted == {"total": 2, "handled": 2}
    assert bench.metrics.stats().away == ()
    assert bench.metrics.stats().store_unavailable == 20


@pytest.mark.parametrize("method", ["fail", "release"])
def test_a_failure_that_can_not_be_noted_is_noted_later_and_counted_once(method: str) -> None:
    handler = Handler(a=[ValueError(), ValueError()])
    bench = Bench(each(handler.one))
    (store,) = bench.stores
    store.away = {method}
    bench.hear(record(0, "a"), record(1, "b"))
    bench.run(steps=5)
    assert handler.calls == [["a"]] or method == "release"
    store.away = set()
    bench.run()
    assert handler.handled == ["a", "b"]
    assert bench.grave.letters == []
    assert bench.counted == {"total": 2, "handled": 2, "errors": 2}


def test_caches_that_are_away_or_emptied_change_nothing(caplog: pytest.LogCaptureFixture) -> None:
    clock, handler = Clock(), Handler()
    cache, last = FakeStore(clock, name="cache"), FakeStore(clock, name="last", rank=3)
    bench = Bench(each(handler.one), cache, last, clock=clock)
    bench.hear(record(0, "a"))
    bench.run()
    last.asked.clear()
    bench.hear(record(1, "a"))
    bench.run()
    assert last.asked == [], "the cache knew"
    cache.away = {"all"}
    bench.hear(record(2, "a"), record(3, "b"))
    bench.run()
    assert handler.handled == ["a", "b"]
    assert [line.getMessage() for line in caplog.records if "away" in line.getMessage()] == [
        "the store cache is away; the next level is asked instead: away; wait"
    ]
    cache.away = set()
    cache.forget([Identity("/shop", "a"), Identity("/shop", "b")])
    bench.hear(record(4, "a"), record(5, "b"))
    bench.run()
    assert handler.handled == ["a", "b"]
    assert cache.known([Identity("/shop", "b")]), "filled again by what the last level said"


def test_a_cache_learns_nothing_before_the_last_level() -> None:
    clock = Clock()
    cache, last = FakeStore(clock, name="cache"), FakeStore(clock, name="last", rank=3)
    bench = Bench(each(Handler().one), cache, last, clock=clock)
    last.away = {"complete"}
    bench.hear(record(0, "a"))
    bench.run(steps=3)
    assert cache.known([Identity("/shop", "a")]) == set()
    last.away = set()
    bench.run()
    assert cache.known([Identity("/shop", "a")]) == {Identity("/shop", "a")}


# -- others ------------------------------------------------------------------------------------------------------------


def test_what_another_has_in_hand_is_waited_for_then_taken_over() -> None:
    handler = Handler()
    bench = Bench(each(handler.one))
    (store,) = bench.stores
    store.begin([Identity("/shop", "b")], "another", 5.0)
    bench.hear(record(0, "a"), record(1, "b"), record(2, "c"))
    waits = bench.run()
    assert sum(waits) == pytest.approx(5, abs=0.5)
    assert handler.handled == ["a", "b", "c"]
    assert bench.counted == {"total": 3, "handled": 3, "taken_over": 1}


def test_what_another_completes_meanwhile_is_a_repetition() -> None:
    handler = Handler()
    bench = Bench(each(handler.one))
    (store,) = bench.stores
    store.begin([Identity("/shop", "a")], "another", 60.0)
    bench.hear(record(0, "a"), record(1, "b"))
    bench.run(steps=3)
    assert handler.handled == []
    store.complete([Identity("/shop", "a")], "another")
    bench.run()
    assert handler.handled == ["b"]
    assert bench.counted == {"total": 2, "handled": 1, "duplicates": 1}


@pytest.mark.parametrize("is_batch", [False, True])
def test_an_event_that_kills_its_process_is_found_and_its_neighbours_are_handled(is_batch: bool) -> None:
    handler = Handler(d=[Died()] * 99)
    bench = Bench(batch(handler.many) if is_batch else each(handler.one))
    deaths, position = 0, 0
    while position < 6:
        bench.another()
        bench.hear(*[record(offset, "abcdef"[offset]) for offset in range(position, 6)])
        try:
            bench.run()
        except Died:
            deaths += 1
            assert deaths < 20
        bench.clock.now_s += 61
        position = bench.lane.position or position
    assert deaths == 3
    assert bench.grave.letters == [(3, "the process died", 3)]
    assert handler.handled == list("abcef")


def test_who_stood_still_for_a_lease_asks_before_it_goes_on() -> None:
    """The first handler takes too long, and another has taken the second event over meanwhile: it is not handled here."""
    handled: list[str] = []

    def handle(event: Event) -> None:
        handled.append(event.id)
        if event.id == "a":
            bench.clock.now_s += 100
            bench.stores[0].begin([Identity("/shop", "b")], "another", 60)
            bench.stores[0].complete([Identity("/shop", "b")], "another")

    bench = Bench(each(handle))
    bench.hear(record(0, "a"), record(1, "b"), record(2, "c"))
    bench.run()
    assert handled == ["a", "c"]
    assert bench.counted == {"total": 3, "handled": 2, "duplicates": 1}


def test_an_event_that_was_taken_over_while_it_was_handled_is_counted_as_lost() -> None:
    def handle(_: Event) -> None:
        bench.clock.now_s += 100
        assert bench.stores[0].begin([Identity("/shop", "a")], "another", 60)[0].is_takeover

    bench = Bench(each(handle))
    bench.hear(record(0, "a"))
    bench.run()
    assert bench.counted == {"total": 1, "handled": 1, "lost": 1}


def test_a_handler_can_look_whether_the_event_is_still_its_own() -> None:
    held: list[bool] = []

    def handle(event: Event) -> None:
        held.append(bench.lane.work.holds(event))
        bench.clock.now_s += 50
        bench.lane.work.renew()  # as the thread does that keeps the leases
        bench.clock.now_s += 50
        held.append(bench.lane.work.holds(event))
        bench.clock.now_s += 100
        bench.stores[0].begin([event.identity], "another", 60)
        held.append(bench.lane.work.holds(event))

    bench = Bench(each(handle))
    bench.hear(record(0, "a"))
    bench.run()
    assert held == [True, True, False]


def test_the_end_lets_the_event_in_hand_be_finished_and_gives_the_others_away() -> None:
    handler = Handler()

    def handle(event: Event) -> None:
        handler.one(event)
        bench.lane.end()

    bench = Bench(each(handle))
    bench.hear(record(0, "a"), record(1, "b"), record(2, "c"))
    bench.run()
    assert handler.handled == ["a"]
    assert bench.lane.position == 1
    claims = bench.stores[0].begin([Identity("/shop", "b"), Identity("/shop", "c")], "another", 60)
    assert [(claim.verdict.value, claim.attempt) for claim in claims] == [("ours", 1), ("ours", 1)]


def test_what_could_not_be_buried_is_another_s_at_the_end() -> None:
    bench = Bench(each(Handler().one))
    (store,) = bench.stores
    for _ in range(3):
        store.begin([Identity("/shop", "a")], "dead", 0)
        store.fail(Identity("/shop", "a"), "dead", "ValueError", is_given_up=False)
    bench.grave.is_away = True
    bench.hear(record(0, "a"))
    bench.run(steps=5)
    bench.lane.end()
    bench.run()
    (claim,) = store.begin([Identity("/shop", "a")], "another", 60)
    assert (claim.verdict.value, claim.attempt, claim.is_takeover) == ("ours", 4, False)


# -- no events ---------------------------------------------------------------------------------------------------------

MIXED = [record(0, "a"), Record("things", 0, 1, value=b"no event"), Record("things", 0, 2), record(3, "b", "else")]


@pytest.mark.parametrize(
    ("chosen", "letters", "handled"),
    [
        ({}, [1], ["a", "b"]),
        ({"unreadable": "skip", "tombstones": "dead_letter"}, [2], ["a", "b"]),
        ({"unreadable": "skip", "types": frozenset({"else"})}, [], ["b"]),
    ],
)
def test_what_is_no_event_is_passed_over_or_buried_as_the_caller_chooses(
    chosen: dict[str, object], letters: list[int], handled: list[str]
) -> None:
    handler = Handler()
    bench = Bench(batch(handler.many), **chosen)
    bench.hear(*MIXED)
    bench.run()
    assert handler.handled == handled
    assert [offset for offset, _, _ in bench.grave.letters] == letters
    assert bench.lane.position == 4
    assert bench.counted["total"] == len(handled)


def test_a_decoder_that_fails_makes_a_dead_letter_and_no_end() -> None:
    def decode(_: Record) -> Event:
        raise ZeroDivisionError

    bench = Bench(each(Handler().one), decode=decode)
    bench.hear(record(0))
    bench.run()
    assert bench.grave.letters == [(0, "the decoder failed: ZeroDivisionError", 0)]


def test_what_a_decoder_needs_is_waited_for_and_no_record_lost() -> None:
    away = [UnavailableError("no registry", remedy="wait")] * 5

    def decode(heard: Record) -> Event:
        if heard.offset == 1 and away:
            raise away.pop()
        return decode_cloudevent(heard)

    handler = Handler()
    bench = Bench(each(handler.one), decode=decode)
    bench.hear(record(0, "a"), record(1, "b"))
    assert len(bench.run()) == 5
    assert handler.handled == ["a", "b"]
    assert bench.grave.letters == []


def test_the_log_holds_nothing_of_an_event(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(batch(Handler(secret_id=[ValueError("secret")] * 9).many))
    bench.hear(record(0, "secret_id", word="secret"), record(1))
    bench.run()
    assert len(caplog.records) == 4
    assert "secret" not in caplog.text
