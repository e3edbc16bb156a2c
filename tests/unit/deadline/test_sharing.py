"""Several tables in one derivation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from msgspec.structs import replace

from cdcwatch.deadline.event import EventEncoder
from cdcwatch.deadline.position import Position, SnapshotVisibility
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.deadline.sharing import SharedDerivation
from cdcwatch.decode.change import Begin, Change, Commit, Of, Row, Together, Truncate
from cdcwatch.decode.note import Closing
from tests.fakes.table import WATCHED

if TYPE_CHECKING:
    from cdcwatch.deadline.derivation import Portion
    from cdcwatch.decode.change import AnyMessage

OPEN, PAID = Row(1000, "pending", 1), Row(1000, "paid", 2)
ORDERS = replace(WATCHED, oid=1)
CARTS = replace(WATCHED, oid=2, name="carts", deletes=True)


def shared() -> SharedDerivation:
    tables = [
        (DeadlineRule(table), EventEncoder(table, system_identifier="7", database="shop", topic=table.name))
        for table in (ORDERS, CARTS)
    ]
    return SharedDerivation(tables, [table.oid for table in (ORDERS, CARTS)])


def of(table: int, kind: Any, key: int, new: Row | None = None, old: Row | None = None) -> Of:
    return Of(table, Change(kind, key, new, old))


def feed(stream: SharedDerivation, commit_lsn: int, *messages: AnyMessage, xid: int = 700) -> None:
    for message in (Begin(commit_lsn, 0, xid), *messages, Commit(commit_lsn, commit_lsn + 8)):
        stream.feed(message)


def told(portion: Portion) -> list[tuple[str, str, str]]:
    """Topic, ordinal and type of each event."""
    events = [(event.topic, orjson.loads(event.value)) for event in portion.events]
    return [(topic, event["id"].rpartition("-")[2], event["type"].partition(".")[2]) for topic, event in events]


def test_the_ordinal_counts_the_changes_of_all_tables() -> None:
    stream = shared()
    feed(
        stream,
        0x100,
        of(0, "insert", 1, OPEN),
        of(1, "insert", 1, OPEN),
        of(1, "insert", 2, PAID),
        of(0, "insert", 2, OPEN),
    )
    portion = stream.drain()
    assert told(portion) == [
        (ORDERS.name, "1", "scheduled"),
        (CARTS.name, "2", "scheduled"),
        (ORDERS.name, "4", "scheduled"),
    ]
    assert portion.updates == [(1, 1000, 1), (2, 1000, 1)]
    assert [one.updates for one in portion.further] == [[(1, 1000, 1), (2, None, 2)]]
    assert portion.position == Position(0x108, 0x100, 4)
    assert [*stream.drain().updates, *stream.drain().further[0].updates] == []


def test_a_delete_and_an_insert_of_another_table_are_no_move() -> None:
    stream = shared()
    feed(stream, 0x100, of(0, "delete", 1, None, OPEN), of(1, "insert", 1, OPEN))
    assert told(stream.drain()) == [(ORDERS.name, "1", "cancelled"), (CARTS.name, "2", "scheduled")]
    feed(stream, 0x200, of(1, "delete", 1, None, OPEN), of(1, "insert", 1, OPEN))
    assert told(stream.drain()) == []  # and of the same one they are


def test_tables_truncated_together_are_two_changes() -> None:
    stream = shared()
    feed(stream, 0x100, of(1, "insert", 1, OPEN), Together((Of(0, Truncate()), Of(1, Truncate()))))
    portion = stream.drain()
    assert told(portion)[1:] == [(ORDERS.name, "2", "cancelled"), (CARTS.name, "3", "cancelled")]
    assert (portion.truncated_at, portion.further[0].truncated_at) == ([0], [1])


def test_what_is_covered_is_not_told_again() -> None:
    stream = shared()
    changes = (of(0, "insert", 1, OPEN), of(1, "insert", 1, OPEN), of(0, "insert", 2, OPEN))
    stream.restart(Position(0x90, 0x100, 2))
    feed(stream, 0x100, *changes)
    assert told(stream.drain()) == [(ORDERS.name, "3", "scheduled")]


def test_of_a_read_of_one_table_the_others_are_told() -> None:
    stream = shared()
    visibility = SnapshotVisibility(710, 710, frozenset(), only_tables=frozenset({CARTS.oid}))
    stream.restart(Position(0x90), visibility)
    changes = (of(1, "insert", 1, OPEN), of(0, "insert", 1, OPEN), of(1, "insert", 2, OPEN), of(0, "insert", 2, OPEN))
    feed(stream, 0x100, *changes, xid=700)
    assert told(stream.drain()) == [(ORDERS.name, "2", "scheduled"), (ORDERS.name, "4", "scheduled")]
    feed(stream, 0x200, *changes, xid=720)  # which the read has not shown
    assert len(told(stream.drain())) == 4
    # And what is covered stays so, whatever was read.
    stream.restart(Position(0x108), visibility)
    feed(stream, 0x100, *changes, xid=700)
    assert told(stream.drain()) == []


def test_of_a_first_read_of_one_table_all_is_told_from_its_first_close_on() -> None:
    stream = shared()
    visibility = SnapshotVisibility(710, 710, frozenset(), to_first_close=True, only_tables=frozenset({ORDERS.oid}))
    stream.restart(Position(0x90), visibility)
    expired = Row(1000, "expired", 2)
    feed(stream, 0x100, of(0, "insert", 5, OPEN), of(1, "insert", 5, OPEN))
    feed(stream, 0x200, of(0, "update", 1, expired, OPEN), of(0, "insert", 2, OPEN))
    assert told(stream.drain()) == [
        (CARTS.name, "2", "scheduled"),
        (ORDERS.name, "1", "expired"),
        (ORDERS.name, "2", "scheduled"),
    ]
    assert stream.tells_all


def test_a_note_that_orders_are_closed_is_about_its_table_alone() -> None:
    stream = shared()
    feed(
        stream,
        0x100,
        Of(1, Closing(CARTS.oid, frozenset({1, 2}))),
        of(0, "delete", 1, None, OPEN),
        of(1, "delete", 1, None, OPEN),
        of(0, "delete", 2, None, OPEN),
        of(1, "delete", 2, None, OPEN),
    )
    assert [(topic, kind) for topic, _, kind in told(stream.drain())] == [
        (ORDERS.name, "cancelled"),
        (CARTS.name, "expired"),
        (ORDERS.name, "cancelled"),
        (CARTS.name, "expired"),
    ]
    feed(stream, 0x200, of(1, "delete", 1, None, OPEN))  # and about its transaction
    assert [kind for _, _, kind in told(stream.drain())] == ["cancelled"]
