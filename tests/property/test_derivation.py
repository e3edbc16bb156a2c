"""Any stream, broken off anywhere and begun again anywhere before, gives the events it gives in one go."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from cdcwatch.deadline.derivation import Derivation
from cdcwatch.deadline.event import EventEncoder
from cdcwatch.deadline.position import Position, SnapshotVisibility
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.decode.change import Begin, Change, Commit, Row, Truncate, Unreadable
from cdcwatch.decode.note import Closing
from tests.fakes.table import WATCHED

rows = st.builds(
    Row,
    deadline_us=st.sampled_from([None, 1000, 2000]),
    status=st.sampled_from(["pending", "pending", "paid", "expired"]),
    version=st.integers(0, 2),
)
# What a client does to a row of the table; which key, and what becomes of it.
deeds = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "delete", "move", "rename", "truncate", "garble", "note"]),
        st.integers(0, 2),
        rows,
    ),
    max_size=6,
)
histories = st.lists(deeds, min_size=1, max_size=5)


def streamed(history, *, old_rows):
    """The messages of a stream in which every change is one that a table allows."""
    table, messages = {}, []
    for number, transaction in enumerate(history):
        commit_lsn = 0x100 * (number + 1)
        messages.append(Begin(commit_lsn, number, 700 + number))
        for deed, key, row in transaction:
            messages += _changes(table, deed, key, row, old_rows=old_rows)
        messages.append(Commit(commit_lsn, commit_lsn + 8))
    return messages


def _changes(table, deed, key, row, *, old_rows):  # noqa: PLR0911  a deed each
    old = table.get(key) if old_rows else None
    if deed == "garble":
        return [Unreadable("garbled", "wal2json", "ff", is_truncated=False)]
    if deed == "note":  # a close that deletes; what it deletes then, or doesn't
        return [Closing(WATCHED.oid, frozenset({key, (key + 1) % 3}))]
    if deed == "truncate":
        table.clear()
        return [Truncate()]
    if key not in table:
        table[key] = row
        return [Change("insert", key, row, None)]
    if deed == "delete":
        del table[key]
        return [Change("delete", key, None, old)]
    if deed == "rename":
        other = next(name for name in range(10) if name not in table)
        table[other] = row
        del table[key]
        return [Change("update", other, row, old, key)]
    table[key] = row
    if deed == "move":  # between partitions
        return [Change("delete", key, None, old), Change("insert", key, row, None)]
    return [Change("update", key, row, old)]


def derivation():
    return Derivation(DeadlineRule(WATCHED), EventEncoder(WATCHED, system_identifier="7", database="shop"))


def fed(stream, messages, heap, drains=frozenset()):
    """The events of it; `drains`: after which messages, beside the last, what has come is taken."""
    events = []
    for place, message in enumerate(messages):
        stream.feed(message)
        if place in drains:
            events += _taken(stream, heap)
    return events + _taken(stream, heap)


def _taken(stream, heap):
    portion = stream.drain()
    for place, (key, live_us, version) in enumerate(portion.updates):
        if place in portion.truncated_at:
            heap.clear()
        heap[key] = (live_us, version)
    if len(portion.updates) in portion.truncated_at:
        heap.clear()
    return portion.events


def alive(heap):
    return {key: entry for key, entry in heap.items() if entry[0] is not None}


drains = st.frozensets(st.integers(0, 60), max_size=10)


@given(history=histories, old_rows=st.booleans(), drains=drains, data=st.data())
@settings(max_examples=300, deadline=None)
def test_a_replay_gives_exactly_what_is_missing(history, old_rows, drains, data):
    messages = streamed(history, old_rows=old_rows)
    heap_in_one_go = {}
    in_one_go = fed(derivation(), messages, heap_in_one_go)

    break_at = data.draw(st.integers(0, len(messages)), "broken off after so many messages")
    broken, heap = derivation(), {}
    events = fed(broken, messages[:break_at], heap, drains)
    position = broken.position

    # The server begins at any transaction, but none after the one that was broken off.
    begins = [place for place, message in enumerate(messages[: break_at + 1]) if isinstance(message, Begin)]
    begin_at = data.draw(st.sampled_from(begins or [0]), "begun again at")
    anew = data.draw(st.booleans(), "by a new process")
    again = derivation() if anew else broken
    again.restart(position)
    if anew:
        heap = {}
        fed(derivation(), messages[:begin_at], heap)  # what the new process loaded of the table
    events += fed(again, messages[begin_at:], heap, drains)

    assert events == in_one_go
    assert len({event.value.partition(b'","source"')[0] for event in events}) == len(events)
    assert alive(heap) == alive(heap_in_one_go)
    assert again.position == Position(messages[-1].end_lsn, messages[-1].commit_lsn, again.position.ordinal)


@given(history=histories, old_rows=st.booleans(), shown=st.frozensets(st.integers(0, 4)))
@settings(max_examples=100, deadline=None)
def test_what_a_snapshot_shows_is_left_out_and_nothing_else(history, old_rows, shown):
    messages = streamed(history, old_rows=old_rows)
    everything, heap = fed(derivation(), messages, {}), {}
    stream = derivation()
    stream.restart(Position(), SnapshotVisibility(700, 705, frozenset(range(700, 705)) - {700 + at for at in shown}))
    left = fed(stream, messages, heap)
    left_out = tuple(f'"id":"0/{0x100 * (at + 1):X}-'.encode() for at in shown)
    assert left == [event for event in everything if not any(begin in event.value for begin in left_out)]
    complete = {}
    fed(derivation(), messages, complete)
    assert heap == complete
