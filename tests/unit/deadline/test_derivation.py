import orjson
import pytest
from msgspec.structs import replace

from cdcwatch.deadline.derivation import Derivation
from cdcwatch.deadline.event import EventEncoder, Unpublished
from cdcwatch.deadline.position import Position, SnapshotVisibility
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.decode.change import Begin, Change, Commit, Row, Truncate, Unreadable
from cdcwatch.decode.note import CloseFailure
from cdcwatch.errors import DecodeError
from cdcwatch.table import ClaimStatuses
from tests.fakes.table import WATCHED

OPEN, LATER, PAID = Row(1000, "pending", 1), Row(2000, "pending", 2), Row(1000, "paid", 3)
UNREADABLE = Unreadable("column 'status' is not valid UTF-8", "wal2json", "70e9", is_truncated=True)


def derivation(encoder=None):
    return Derivation(DeadlineRule(WATCHED), encoder or EventEncoder(WATCHED, system_identifier="7", database="shop"))


def feed(derivation, *messages):
    for message in messages:
        derivation.feed(message)


def transaction(commit_lsn, *changes, xid=700):
    return [Begin(commit_lsn, 0, xid), *changes, Commit(commit_lsn, commit_lsn + 8)]


def told(portion):
    """Id, type and key of each event."""
    events = [orjson.loads(event.value) for event in portion.events]
    return [
        (event["id"], event.get("type", "dead letter").removeprefix("deadline."), event.get("subject"))
        for event in events
    ]


def insert(key, row=OPEN):
    return Change("insert", key, row, None)


def update(key, row, old=None, old_key=None):
    return Change("update", key, row, old, old_key)


def delete(key, old=None):
    return Change("delete", key, None, old)


def test_every_row_change_counts_one_ordinal_event_or_not():
    stream = derivation()
    feed(stream, *transaction(0x100, insert(1), insert(2, PAID), update(1, LATER, OPEN), delete(2, PAID), insert(3)))
    feed(stream, *transaction(0x200, insert(4)))
    portion = stream.drain()
    assert told(portion) == [
        ("0/100-1", "scheduled", "1"),
        ("0/100-3", "moved", "1"),
        ("0/100-5", "scheduled", "3"),
        ("0/200-1", "scheduled", "4"),
    ]
    assert portion.position == Position(0x208, 0x200, 1)
    assert (stream.change_count, stream.replayed_count) == (6, 0)
    assert portion.updates == [(1, 1000, 1), (2, None, 3), (1, 2000, 2), (2, None, 0), (3, 1000, 1), (4, 1000, 1)]


def test_the_heap_learns_of_versions_that_give_no_event():
    stream = derivation()
    feed(stream, *transaction(0x100, update(1, Row(1000, "pending", 9), OPEN)))
    portion = stream.drain()
    assert (portion.events, portion.updates) == ([], [(1, 1000, 9)])


def test_a_key_change_is_a_delete_and_an_insert():
    stream = derivation()
    feed(stream, *transaction(0x100, update(33, LATER, OPEN, old_key=3), update(44, PAID, PAID, old_key=4), insert(5)))
    portion = stream.drain()
    assert told(portion) == [
        ("0/100-1", "cancelled", "3"),
        ("0/100-2", "scheduled", "33"),
        ("0/100-5", "scheduled", "5"),
    ]
    assert portion.updates == [(3, None, 0), (33, 2000, 2), (4, None, 0), (44, None, 3), (5, 1000, 1)]


def test_a_close_that_failed_for_good_is_one_ordinal_and_a_record():
    stream = Derivation(DeadlineRule(WATCHED), EventEncoder(WATCHED, system_identifier="7", database="shop", slot="s"))
    messages = transaction(0x100, CloseFailure(WATCHED.oid, ("7",), 0, 3, 8, "SQLSTATE P0001 (RaiseException)"))
    feed(stream, *messages)
    portion = stream.drain()
    (letter,) = portion.events
    assert letter.id == b"0/100-1"
    assert orjson.loads(letter.value) == {
        "slot": "s",
        "commit_lsn": "0/100",
        "ordinal": 1,
        "id": "0/100-1",
        "about": "close",
        "reason": "the close failed 8 times: SQLSTATE P0001 (RaiseException)",
        "key": {"id": "7"},
        "deadline": "2000-01-01T00:00:00.000000Z",
        "version": 3,
        "attempts": 8,
    }
    assert (portion.updates, portion.position, stream.dead_letter_count) == ([], Position(0x108, 0x100, 1), 0)
    stream.restart(portion.position)
    feed(stream, *messages)
    assert stream.drain().events == []


def test_a_row_that_cannot_be_understood_is_one_ordinal_a_record_and_nothing_to_the_heap():
    stream = Derivation(DeadlineRule(WATCHED), EventEncoder(WATCHED, system_identifier="7", database="shop", slot="s"))
    messages = transaction(0x100, insert(1), UNREADABLE, insert(2), delete(3, OPEN), UNREADABLE)
    feed(stream, *messages)
    portion = stream.drain()
    first, dead, second, deleted, last = portion.events
    assert [orjson.loads(event.value)["id"] for event in portion.events] == [f"0/100-{n}" for n in range(1, 6)]
    assert [(first.key, second.key, deleted.key), (dead.key, last.key)] == [(b"1", b"2", b"3"), (None, None)]
    assert (dead.id, last.id) == (b"0/100-2", b"0/100-5")
    assert orjson.loads(dead.value) == {
        "slot": "s",
        "commit_lsn": "0/100",
        "ordinal": 2,
        "id": "0/100-2",
        "about": "row",
        "reason": "column 'status' is not valid UTF-8",
        "plugin": "wal2json",
        "input_hex": "70e9",
        "truncated": True,
    }
    assert portion.updates == [(1, 1000, 1), (2, 1000, 1), (3, None, 0)]
    assert portion.position == Position(0x108, 0x100, 5)
    assert (stream.change_count, stream.dead_letter_count) == (5, 2)
    assert stream.last_dead_letter == "0/100-5: column 'status' is not valid UTF-8"
    stream.restart(Position(0, 0x100, 2))
    feed(stream, *messages)
    assert [orjson.loads(event.value)["id"] for event in stream.drain().events] == ["0/100-3", "0/100-4", "0/100-5"]
    assert stream.dead_letter_count == 3


def test_a_key_change_of_an_unknown_row():
    stream = derivation()
    feed(stream, *transaction(0x100, update(33, PAID, None, old_key=3)))
    assert told(stream.drain()) == [("0/100-1", "cancelled", "3")]


def test_a_move_between_partitions_is_one_update_under_the_inserts_ordinal():
    stream = derivation()
    feed(stream, *transaction(0x100, delete(1, OPEN), insert(1, LATER), delete(2, OPEN), insert(2, OPEN), insert(3)))
    portion = stream.drain()
    assert told(portion) == [("0/100-2", "moved", "1"), ("0/100-5", "scheduled", "3")]
    assert portion.updates == [(1, 2000, 2), (2, 1000, 1), (3, 1000, 1)]


def test_a_move_of_an_unknown_row_gives_the_state_it_leaves():
    stream = derivation()
    feed(stream, *transaction(0x100, delete(1), insert(1, PAID)))
    assert told(stream.drain()) == [("0/100-2", "cancelled", "1")]


@pytest.mark.parametrize(
    "between",
    [[insert(2)], [delete(2, OPEN)], [update(2, LATER, OPEN)], [Truncate()], [UNREADABLE]],
    ids=["insert", "delete", "update", "truncate", "unreadable"],
)
def test_a_delete_and_a_later_insert_are_two(between):
    stream = derivation()
    feed(stream, *transaction(0x100, delete(1, OPEN), *between, insert(1)))
    ids = told(stream.drain())
    assert ids[0] == ("0/100-1", "cancelled", "1")
    assert ids[-1] == ("0/100-3", "scheduled", "1")


def test_a_delete_at_the_end_is_no_move_into_the_next_transaction():
    stream = derivation()
    feed(stream, *transaction(0x100, delete(1, OPEN)), *transaction(0x200, insert(1)))
    assert told(stream.drain()) == [("0/100-1", "cancelled", "1"), ("0/200-1", "scheduled", "1")]


def test_a_drain_in_the_middle_of_a_transaction():
    stream = derivation()
    feed(stream, *transaction(0x80), Begin(0x100, 0, 700), insert(1), insert(2, PAID))
    portion = stream.drain()
    assert told(portion) == [("0/100-1", "scheduled", "1")]
    assert portion.position == Position(0x88, 0x100, 2)
    assert stream.in_transaction
    assert not stream.has_undrained
    feed(stream, insert(3), Commit(0x100, 0x108))
    assert stream.has_undrained
    portion = stream.drain()
    assert told(portion) == [("0/100-3", "scheduled", "3")]
    assert portion.position == Position(0x108, 0x100, 3)
    assert not stream.in_transaction


def test_a_held_delete_is_not_behind_the_position():
    stream = derivation()
    feed(stream, Begin(0x100, 0, 700), insert(1), delete(1, OPEN))
    portion = stream.drain()
    assert told(portion) == [("0/100-1", "scheduled", "1")]
    assert portion.position == Position(0, 0x100, 1)
    assert portion.updates == [(1, 1000, 1)]
    again = derivation()
    again.restart(portion.position)
    feed(again, Begin(0x100, 0, 700), insert(1), delete(1, OPEN), insert(1, LATER), Commit(0x100, 0x108))
    feed(stream, insert(1, LATER), Commit(0x100, 0x108))
    assert told(again.drain()) == told(stream.drain()) == [("0/100-3", "moved", "1")]


def test_a_restart_skips_what_is_covered_and_keeps_the_ids():
    stream = derivation()
    stream.restart(Position(0x108, 0x200, 2))
    feed(stream, *transaction(0x100, insert(1)), *transaction(0x200, insert(2), insert(3), insert(4)))
    portion = stream.drain()
    assert told(portion) == [("0/200-3", "scheduled", "4")]
    assert stream.replayed_count == 3
    # The heap is told all the same: it may be empty.
    assert portion.updates == [(key, 1000, 1) for key in (1, 2, 3, 4)]


def test_a_commit_that_begins_where_the_covered_one_ends_is_news():
    stream = derivation()
    stream.restart(Position(0x108, 0x100, 1))
    feed(stream, *transaction(0x100, insert(1)), *transaction(0x108, insert(2)))
    assert told(stream.drain()) == [("0/108-1", "scheduled", "2")]


def test_a_restart_forgets_the_transaction_at_hand():
    stream = derivation()
    feed(stream, Begin(0x100, 0, 700), insert(1), delete(2, OPEN))
    position = stream.drain().position
    stream.restart(position)
    assert not stream.in_transaction
    feed(stream, *transaction(0x100, insert(1), delete(2, OPEN)))
    assert told(stream.drain()) == [("0/100-2", "cancelled", "2")]


def test_a_replay_never_moves_the_position_back():
    stream = derivation()
    stream.restart(Position(0x308, 0x300, 1))
    for commit_lsn in (0x100, 0x200, 0x300):
        feed(stream, *transaction(commit_lsn, insert(1)))
        assert stream.drain().position == Position(0x308, 0x300, 1)


def test_transactions_that_a_snapshot_shows_give_no_events():
    stream = derivation()
    stream.restart(Position(0x80), SnapshotVisibility(700, 705, frozenset({702})))
    for xid in (699, 701, 702, 705):
        feed(stream, *transaction(0x100 + xid, insert(xid), xid=xid))
    portion = stream.drain()
    assert [subject for _, _, subject in told(portion)] == ["702", "705"]
    assert [key for key, _, _ in portion.updates] == [699, 701, 702, 705]
    assert portion.position.end_lsn == 0x108 + 705


def test_a_restart_without_a_snapshot_forgets_it():
    stream = derivation()
    stream.restart(Position(), SnapshotVisibility(700, 705, frozenset()))
    stream.restart(Position())
    feed(stream, *transaction(0x100, insert(1), xid=701))
    assert told(stream.drain()) == [("0/100-1", "scheduled", "1")]


def test_a_truncate_stands_between_the_changes_before_and_after():
    stream = derivation()
    feed(
        stream,
        *transaction(0x100, insert(1), delete(2, OPEN), Truncate(), insert(3), Truncate(), Truncate(), insert(4)),
    )
    portion = stream.drain()
    assert told(portion) == [
        ("0/100-1", "scheduled", "1"),
        ("0/100-2", "cancelled", "2"),
        ("0/100-3", "cancelled", "*"),
        ("0/100-4", "scheduled", "3"),
        ("0/100-5", "cancelled", "*"),
        ("0/100-6", "cancelled", "*"),
        ("0/100-7", "scheduled", "4"),
    ]
    assert portion.updates == [(1, 1000, 1), (2, None, 0), (3, 1000, 1), (4, 1000, 1)]
    assert portion.truncated_at == [2, 3, 3]


def test_an_idle_position_moves_only_outside_a_transaction_and_forward():
    stream = derivation()
    stream.restart(Position(0x80, 0x70, 4))
    stream.idle_at(0x60)
    assert stream.position == Position(0x80, 0x70, 4)
    stream.idle_at(0x90)
    assert stream.position == Position(0x90, 0x70, 4)
    feed(stream, Begin(0x100, 0, 700), insert(1))
    stream.idle_at(0x200)
    assert stream.position == Position(0x90, 0x100, 1)
    feed(stream, Commit(0x100, 0x108))
    assert stream.position == Position(0x108, 0x100, 1)


def test_empty_transactions_move_the_position():
    stream = derivation()
    feed(stream, *transaction(0x100), *transaction(0x200))
    assert stream.drain() == ([], [], [], Position(0x208, 0x200, 0), ())


@pytest.mark.parametrize(
    "messages",
    [
        [insert(1)],
        [Commit(0x100, 0x108)],
        [Begin(0x100, 0, 1), Begin(0x200, 0, 2)],
        [Begin(0x100, 0, 1), Commit(0x200, 0x208)],
        [Begin(0x100, 0, 1), Commit(0x100, 0x108), Commit(0x100, 0x108)],
        [Begin(0x100, 0, 1), Commit(0x100, 0x108), delete(1)],
        [Truncate()],
    ],
)
def test_messages_that_cannot_follow_each_other(messages):
    with pytest.raises(DecodeError):
        feed(derivation(), *messages)


def test_unpublished_events_count():
    stream = derivation(Unpublished())
    feed(stream, *transaction(0x100, insert(1), insert(2, PAID), Truncate()))
    portion = stream.drain()
    assert len(portion.events) == 2
    assert portion.position == Position(0x108, 0x100, 3)


def test_a_claimed_order_leaves_the_schedule_and_no_event():
    table = replace(WATCHED, claim=ClaimStatuses("closing", "close_failed"))
    stream = Derivation(DeadlineRule(table), EventEncoder(table, system_identifier="7", database="shop"))
    claimed, closed = Row(1000, "closing", 2), Row(1000, "expired", 3)
    feed(stream, *transaction(0x100, insert(1), update(1, claimed, OPEN)))
    feed(stream, *transaction(0x200, update(1, closed, claimed)))
    feed(stream, *transaction(0x300, insert(2), update(2, claimed, OPEN), update(2, OPEN, claimed)))
    portion = stream.drain()
    assert told(portion) == [("0/100-1", "scheduled", "1"), ("0/200-1", "expired", "1"), ("0/300-1", "scheduled", "2")]
    assert portion.updates == [
        (1, 1000, 1), (1, None, 2), (1, None, 3), (2, 1000, 1), (2, None, 2), (2, 1000, 1),
    ]  # fmt: skip
