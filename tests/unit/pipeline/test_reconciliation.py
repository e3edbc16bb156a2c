"""The table against the topic: only what differs is told, once, whatever breaks off in between."""

from contextlib import suppress

import orjson
import pytest
from msgspec.structs import replace

from cdcwatch.deadline.event import EventEncoder, Stamp
from cdcwatch.deadline.position import Position, SnapshotVisibility
from cdcwatch.deadline.rule import CANCELLED, SCHEDULED, Derived
from cdcwatch.decode.change import Row
from cdcwatch.errors import UnavailableError
from cdcwatch.handoff.progress import Origin, Progress, SnapshotMark
from cdcwatch.instant import INFINITY_US
from cdcwatch.pipeline.reconciliation import TableRead, publish_reconciled
from cdcwatch.table import Column
from tests.fakes.sink import FakeBroker, FakeSink
from tests.fakes.slot import FACTS
from tests.fakes.table import WATCHED

ORIGIN = Origin(FACTS.system_identifier, 1, FACTS.database, "orders", 16384, "public.orders")
BEFORE = Progress(ORIGIN, Position(0x800), additions=2)
START = FACTS.confirmed_flush_lsn
CLOSED = {"paid", "expired"}


class FakeRead:
    """Rows by key; what a read of the table shows."""

    def __init__(self, rows, lsn=0x5000, breaks_after=None):
        self.rows, self.time_us = rows, 0
        self.mark = SnapshotMark(lsn, SnapshotVisibility(1, 1, frozenset()))
        self._breaks_after = breaks_after

    @property
    def stamp(self):
        return Stamp.of_snapshot(self.mark.lsn, 0)

    def open_rows(self):
        for count, (key, row) in enumerate(self.rows.items()):
            if count == self._breaks_after:
                raise UnavailableError("PostgreSQL went away", remedy="")
            if row.status == "pending" and row.deadline_us not in {None, INFINITY_US}:
                yield key, row

    def rows_of(self, keys):
        return {key: self.rows[key] for key in keys if key in self.rows}


class World:
    def __init__(self, *, is_exact=True, table=WATCHED):
        self.broker, self.table = FakeBroker(), table
        self.is_exact = is_exact
        self.encoder = EventEncoder(table, system_identifier=FACTS.system_identifier, database=FACTS.database)

    def tell(self, *events):
        self.broker.write(events)

    def event(self, key, kind=SCHEDULED, deadline_us=5, encoder=None):
        derived = Derived(kind, Row(deadline_us, "pending", 0), None)
        return (encoder or self.encoder).change(key, derived, Stamp.of(0x700, 0), 1)

    def reconcile(self, rows, *, before=BEFORE, reason="lost", **read):
        sink = FakeSink(self.broker, "orders", is_transactional=self.is_exact)
        sink.open()
        known = len(self.broker.records)
        progress = publish_reconciled(
            sink,
            [TableRead(FakeRead(rows, **read), self.table, self.encoder)],
            facts=FACTS,
            origin=ORIGIN,
            before=before,
            reason=reason,
        )
        return progress, [orjson.loads(record.value) for record in self.broker.records[known:]]


def short(events):
    return {
        one["subject"]: (one["type"].removeprefix("deadline."), one["data"].get("reason"))
        for one in events
        if one["type"] != "stream.gap"
    }


def test_missing_ones_are_scheduled_vanished_ones_ended_equal_ones_left_alone():
    world = World()
    world.tell(*(world.event(key) for key in range(1, 8)))
    rows = {
        1: Row(5, "pending", 0),
        2: Row(6, "pending", 1),
        3: Row(5, "paid", 1),
        4: Row(5, "expired", 1),
        5: Row(None, "pending", 1),
        6: Row(INFINITY_US, "pending", 1),
        8: Row(9, "pending", 0),
        9: Row(5, "paid", 1),
    }
    progress, events = world.reconcile(rows)
    assert short(events) == {
        "2": ("moved", None),
        "3": ("cancelled", "paid"),
        "4": ("expired", None),
        "5": ("cancelled", "deadline_cleared"),
        "6": ("cancelled", "deadline_cleared"),
        "7": ("cancelled", "vanished"),
        "8": ("scheduled", None),
    }
    told = {one["subject"]: one for one in events}
    assert told["2"]["id"] == "snapshot-0/5000-2"
    assert told["2"]["data"]["previous_deadline"] == "2000-01-01T00:00:00.000005Z"
    assert all(one["data"]["snapshot"] is True for one in events)
    assert [one["type"] for one in events[:3]] == ["stream.gap"] * 3, "before all that follows from it"
    assert events[0]["data"] == {
        "key": None,
        "reason": "lost",
        "from_lsn": "0/800",
        "to_lsn": "0/1000",
        "commit_lsn": "0/5000",
        "snapshot": True,
    }
    assert progress == Progress(ORIGIN, Position(START), FakeRead({}).mark)
    assert world.reconcile(rows, before=progress, reason=None)[1] == [], "and now the topic says what the table says"


@pytest.mark.parametrize("is_exact", [True, False])
def test_what_breaks_off_is_told_once(is_exact):
    world = World(is_exact=is_exact)
    rows = {key: Row(5, "pending", 0) for key in range(20)}
    with suppress(UnavailableError):
        world.reconcile(rows, breaks_after=9)
    assert (world.broker.records == []) == is_exact
    rows[0] = Row(6, "pending", 1)
    world.reconcile(rows, lsn=0x6000)
    told = [orjson.loads(record.value) for record in world.broker.records]
    assert len({one["id"] for one in told}) == len(told)
    assert sum(one["type"] == "stream.gap" for one in told) == 3
    last = {one["subject"]: one["data"]["deadline"] for one in told if one["type"] != "stream.gap"}
    assert len(last) == 20
    assert last["0"] == "2000-01-01T00:00:00.000006Z"
    assert len(told) - 3 == 20 + (not is_exact), "but for the one that changed meanwhile"


def test_a_first_start_tells_all_and_no_gap():
    world = World()
    progress, events = world.reconcile({1: Row(5, "pending", 0)}, before=None, reason=None)
    assert short(events) == {"1": ("scheduled", None)}
    assert len(events) == 1
    assert progress.position == Position(START)


def test_without_a_record_earlier_events_are_a_gap_that_nobody_can_measure():
    world = World()
    world.tell(world.event(1), world.event(2), world.event(2, CANCELLED))
    _, events = world.reconcile({1: Row(5, "pending", 0)}, before=None, reason=None)
    assert short(events) == {}
    assert [one["data"]["from_lsn"] for one in events] == [None] * 3


def test_a_read_on_request_keeps_what_the_topic_has():
    world = World()
    progress, events = world.reconcile({1: Row(5, "pending", 0)}, before=replace(BEFORE, gap=None), reason=None)
    assert short(events) == {"1": ("scheduled", None)}
    assert (progress.position, progress.additions) == (BEFORE.position, 3)


def test_another_servers_orders_are_told_once_more_under_this_ones_source():
    world = World()
    before = EventEncoder(WATCHED, system_identifier="1", database=FACTS.database)
    world.tell(world.event(1, encoder=before), world.event(2, encoder=before))
    _, events = world.reconcile({1: Row(5, "pending", 0)})
    assert short(events) == {"1": ("scheduled", None), "2": ("cancelled", "vanished")}
    assert {one["source"] for one in events} == {world.encoder.source}
    assert world.reconcile({1: Row(5, "pending", 0)}, before=None, reason=None)[1][3:] == []


def test_the_table_was_renamed():
    world = World()
    before = EventEncoder(
        replace(WATCHED, name="holds"), system_identifier=FACTS.system_identifier, database=FACTS.database
    )
    world.tell(world.event(1, encoder=before))
    was = replace(BEFORE, origin=replace(ORIGIN, table_name="public.holds"))
    assert short(world.reconcile({}, before=was)[1]) == {"1": ("cancelled", "vanished")}


def test_keys_that_are_none_of_this_table_are_left_alone(caplog):
    table = replace(WATCHED, key=(Column("shop", "text"), Column("id", "bigint")))
    world = World(table=table)
    old = EventEncoder(WATCHED, system_identifier=FACTS.system_identifier, database=FACTS.database)
    world.tell(world.event(1, encoder=old), world.event('["a","1"]'), world.event('["a","2"]'))
    _, events = world.reconcile({'["a","1"]': Row(5, "pending", 0)})
    assert short(events) == {'["a","2"]': ("cancelled", "vanished")}
    assert "1 orders of the topic have keys of another form" in caplog.text
