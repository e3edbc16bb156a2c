"""Closes that delete: told from the application's own deletes by a note that their transaction begins with."""

import orjson
import pytest
from msgspec.structs import replace

from cdcwatch.deadline.derivation import Derivation
from cdcwatch.deadline.event import EventEncoder
from cdcwatch.deadline.position import Position, SnapshotVisibility
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.decode.change import Row, Truncate
from cdcwatch.decode.note import Closing
from cdcwatch.errors import DecodeError
from tests.fakes.table import WATCHED
from tests.unit.deadline.test_derivation import LATER, OPEN, PAID, delete, feed, insert, told, transaction, update

TABLE = replace(WATCHED, deletes=True)


def closing(*keys):
    return Closing(TABLE.oid, frozenset(keys))


@pytest.fixture
def stream():
    return Derivation(DeadlineRule(TABLE), EventEncoder(TABLE, system_identifier="7", database="shop"))


def test_of_one_transaction_the_noted_deletes_have_expired_and_no_others(stream):
    changes = transaction(0x100, closing(1, 2), delete(1, OPEN), delete(3, OPEN), delete(2, OPEN), insert(4))
    feed(stream, *changes, *transaction(0x200, delete(4, OPEN)))
    portion = stream.drain()
    assert told(portion) == [
        ("0/100-1", "expired", "1"),
        ("0/100-2", "cancelled", "3"),
        ("0/100-3", "expired", "2"),
        ("0/100-4", "scheduled", "4"),
        ("0/200-1", "cancelled", "4"),
    ]
    assert portion.updates[:3] == [(1, None, 0), (3, None, 0), (2, None, 0)]
    data = orjson.loads(portion.events[0].value)["data"]
    assert (data["deadline"], data["previous_deadline"]) == (None, "2000-01-01T00:00:00.001000Z")
    assert "reason" not in data
    assert (data["status"], data["version"]) == (None, None)


def test_a_note_is_no_ordinal_and_ends_with_its_transaction(stream):
    feed(stream, *transaction(0x100, insert(1), closing(1)), *transaction(0x200, delete(1, OPEN)))
    assert told(stream.drain()) == [("0/100-1", "scheduled", "1"), ("0/200-1", "cancelled", "1")]


def test_a_delete_before_the_note_is_the_applications(stream):
    feed(
        stream, *transaction(0x100, delete(1, OPEN), closing(1), insert(1), delete(1, OPEN), insert(1), delete(1, OPEN))
    )
    assert told(stream.drain()) == [
        ("0/100-1", "cancelled", "1"),
        ("0/100-2", "scheduled", "1"),
        ("0/100-3", "expired", "1"),
        ("0/100-4", "scheduled", "1"),
        ("0/100-5", "cancelled", "1"),
    ]


def test_an_order_that_comes_back_at_once_is_a_new_one_and_no_move(stream):
    feed(stream, *transaction(0x100, closing(1), delete(1, OPEN), insert(1, LATER)))
    portion = stream.drain()
    assert told(portion) == [("0/100-1", "expired", "1"), ("0/100-2", "scheduled", "1")]
    assert portion.updates == [(1, None, 0), (1, 2000, 2)]


def test_what_a_trigger_makes_of_it_instead_is_told_as_what_it_is(stream):
    feed(stream, *transaction(0x100, closing(1, 2), update(1, PAID, OPEN), update(22, OPEN, OPEN, old_key=2)))
    assert told(stream.drain()) == [
        ("0/100-1", "cancelled", "1"),
        ("0/100-2", "cancelled", "2"),
        ("0/100-3", "scheduled", "22"),
    ]


def test_an_order_that_was_dead_already_is_not_told_again(stream):
    feed(stream, *transaction(0x100, closing(1), delete(1, PAID)))
    assert told(stream.drain()) == []


def test_with_the_key_alone_in_the_identity(stream):
    feed(stream, *transaction(0x100, closing(1), delete(1), delete(2), Truncate()))
    portion = stream.drain()
    assert told(portion)[:2] == [("0/100-1", "expired", "1"), ("0/100-2", "cancelled", "2")]


def test_a_replay_tells_the_same_from_anywhere_in_it(stream):
    messages = transaction(0x100, insert(9), closing(1, 2), delete(1, OPEN), delete(2, OPEN))
    feed(stream, *messages[:4])
    stream.drain()
    stream.restart(Position(0, 0x100, 2))
    feed(stream, *messages)
    assert told(stream.drain()) == [("0/100-3", "expired", "2")]
    stream.restart(Position(0, 0x100, 1))
    feed(stream, *transaction(0x100, insert(9), delete(1, OPEN)))
    assert told(stream.drain()) == [("0/100-2", "cancelled", "1")], "nothing is left of the note of before"


def test_a_first_read_is_followed_from_the_first_close_on(stream):
    seen = SnapshotVisibility(700, 705, frozenset(), to_first_close=True)
    stream.restart(Position(0x80), seen)
    feed(stream, *transaction(0x100, insert(1), delete(2, OPEN), xid=700))
    feed(stream, *transaction(0x200, insert(3), closing(1, 5), delete(5, PAID), delete(1, OPEN), insert(4), xid=701))
    feed(stream, *transaction(0x300, delete(4, Row(1000, "pending", 1)), xid=702))
    assert told(stream.drain()) == [
        ("0/200-3", "expired", "1"),
        ("0/200-4", "scheduled", "4"),
        ("0/300-1", "cancelled", "4"),
    ]
    assert stream.tells_all


def test_a_note_outside_a_transaction(stream):
    with pytest.raises(DecodeError):
        feed(stream, closing(1))
