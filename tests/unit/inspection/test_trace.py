"""Every event of the derivation is told with the change that gave it, and every change without one has its reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cdcwatch.deadline.derivation import Derivation
from cdcwatch.deadline.event import EventEncoder
from cdcwatch.deadline.position import Position, SnapshotVisibility
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.decode.change import Begin, Change, Commit, Row, Truncate, Unreadable
from cdcwatch.decode.note import Closing
from cdcwatch.inspection.skip import Skipped
from cdcwatch.inspection.trace import Traced, Tracer
from cdcwatch.instant import INFINITY_US
from cdcwatch.table import ClaimStatuses
from tests.fakes.table import WATCHED

if TYPE_CHECKING:
    from cdcwatch.decode.change import Message

RULE = DeadlineRule(WATCHED)
GARBLED = Unreadable("column 'status' is not valid UTF-8", "wal2json", "ff", is_truncated=False)
ENCODER = EventEncoder(WATCHED, system_identifier="1", database="shop")
OPEN, LATER, PAID, NEVER, NONE = (
    Row(10, "pending", 1), Row(20, "pending", 2), Row(10, "paid", 3), Row(INFINITY_US, "pending", 1), Row(None, "pending", 1),
)  # fmt: skip


def _traced(
    messages: list[Message],
    covered: Position = Position(),  # noqa: B008
    snapshot: SnapshotVisibility | None = None,
) -> list[Traced]:
    tracer = Tracer({"": RULE}, Derivation(RULE, ENCODER), covered, snapshot)
    return [traced for message in messages for traced in tracer.feed(message)]


def _transaction(*changes: Change | Truncate | Unreadable) -> list[Message]:
    return [Begin(100, 0, 7), *changes, Commit(100, 108)]


@pytest.mark.parametrize(
    ("change", "gives"),
    [
        (Change("insert", 1, OPEN, None), "deadline.scheduled"),
        (Change("insert", 1, PAID, None), "status paid is not open"),
        (Change("insert", 1, NEVER, None), "deadline infinity"),
        (Change("insert", 1, NONE, None), "no deadline"),
        (Change("update", 1, LATER, OPEN), "deadline.moved"),
        (Change("update", 1, PAID, OPEN), "deadline.cancelled"),
        (Change("update", 1, Row(10, "pending", 2), OPEN), "status and deadline unchanged"),
        (Change("update", 1, PAID, NEVER), "not live before or after: status paid is not open"),
        (Change("delete", 1, None, OPEN), "deadline.cancelled"),
        (Change("delete", 1, None, PAID), "it was not live: status paid is not open"),
        (Truncate(), "deadline.cancelled"),
    ],
)
def test_each_change_gives_its_event_or_its_reason(change: Change | Truncate, gives: str) -> None:
    (traced,) = _traced(_transaction(change))
    assert gives == (traced.event["type"] if traced.event else traced.why)
    assert (traced.event is None) == (traced.why is not None)


def test_a_claim_gives_no_event_and_says_why() -> None:
    rule = DeadlineRule(replace(WATCHED, claim=ClaimStatuses("closing", "close_failed")))
    tracer = Tracer({"": rule}, Derivation(rule, ENCODER), Position(), None)
    claimed = Row(10, "closing", 2)
    changes = [
        Change("update", 1, claimed, OPEN),
        Change("update", 1, OPEN, claimed),
        Change("update", 1, claimed, claimed),
    ]
    whys = [traced.why for message in _transaction(*changes) for traced in tracer.feed(message)]
    assert whys == [
        "claimed or taken back (pending to closing): its close is under way, the deadline told as live",
        "claimed or taken back (closing to pending): its close is under way, the deadline told as live",
        "status and deadline unchanged",
    ]


def test_a_delete_and_an_insert_of_the_same_key_are_one_update() -> None:
    first, second = _traced(_transaction(Change("delete", 1, None, OPEN), Change("insert", 1, LATER, None)))
    assert (first.kind, first.why) == ("delete", "one update with the insert after it")
    assert second.event is not None
    assert (second.kind, second.event["type"]) == ("update", "deadline.moved")


def test_a_row_that_cannot_be_understood_is_told_with_its_record() -> None:
    told = _traced(_transaction(Change("delete", 1, None, OPEN), GARBLED, Change("insert", 2, OPEN, None)))
    assert [(one.kind, one.key) for one in told] == [("delete", "1"), ("unreadable", "?"), ("insert", "2")]
    assert told[1].event is not None
    assert (told[1].event["id"], told[1].event["reason"]) == ("0/64-2", GARBLED.reason)
    counted = Skipped()
    for one in told:
        counted.count(one)
    assert counted.events == {"cancelled": 1, "dead letters": 1, "scheduled": 1}
    (again, _) = _traced(_transaction(GARBLED, GARBLED), Position(0, 100, 1))
    assert (again.event, again.why) == (None, "the topic has it already")


def test_a_changed_key_is_two_changes() -> None:
    first, second = _traced(_transaction(Change("update", 2, OPEN, OPEN, old_key=1)))
    assert [(one.kind, one.key, one.event["type"] if one.event else None) for one in (first, second)] == [
        ("delete", "1", "deadline.cancelled"), ("insert", "2", "deadline.scheduled"),
    ]  # fmt: skip


def test_what_the_topic_or_a_snapshot_has_is_not_given_again() -> None:
    messages = _transaction(Change("insert", 1, OPEN, None), Change("insert", 2, OPEN, None))
    assert [one.why for one in _traced(messages, Position(0, 100, 1))] == ["the topic has it already", None]
    assert [one.why for one in _traced(messages, Position(108))] == ["the topic has it already"] * 2
    seen = SnapshotVisibility(8, 8, frozenset())
    assert [one.why for one in _traced(messages, Position(), seen)] == ["a snapshot has shown it"] * 2


rows = st.sampled_from([OPEN, LATER, PAID, NEVER, NONE])
keys = st.integers(1, 3)
changes = st.one_of(
    st.builds(Change, st.just("insert"), keys, rows, st.none()),
    st.builds(Change, st.just("update"), keys, rows, st.none() | rows, st.none() | keys),
    st.builds(Change, st.just("delete"), keys, st.none(), st.none() | rows),
    st.builds(Closing, st.just(WATCHED.oid), st.frozensets(keys)),
    st.just(Truncate()),
    st.just(GARBLED),
)


@given(st.lists(st.lists(changes, max_size=8), max_size=5), st.integers(0, 5), st.integers(0, 8))
def test_nothing_is_lost_or_doubled_between_derivation_and_trace(
    transactions: list[list[Change | Closing | Truncate | Unreadable]], commit: int, ordinal: int
) -> None:
    covered = Position(0, commit * 10, ordinal)
    messages: list[Message] = []
    for place, transaction in enumerate(transactions):
        messages += [Begin(place * 10, 0, place), *transaction, Commit(place * 10, place * 10 + 5)]
    derivation = Derivation(RULE, ENCODER)
    derivation.restart(covered)
    for message in messages:
        derivation.feed(message)
    expected = [orjson.loads(event.value) for event in derivation.drain().events]
    traced = _traced(messages, covered)
    assert [one.event for one in traced if one.event is not None] == expected
    assert all((one.event is None) != (one.why is None) for one in traced)
    # Every change is told: a changed key as two.
    told = sum(
        2
        if isinstance(one, Change) and one.old_key is not None and one.kind == "update"
        else not isinstance(one, Closing)
        for transaction in transactions
        for one in transaction
    )
    assert len(traced) == told
