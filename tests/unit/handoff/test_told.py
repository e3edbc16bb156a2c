"""What a topic says of every order, from its records alone."""

import pytest

from cdcwatch.deadline.event import EventEncoder, Gap, Stamp, for_partition
from cdcwatch.deadline.rule import CANCELLED, EXPIRED, MOVED, SCHEDULED, Derived
from cdcwatch.decode.change import Row
from cdcwatch.handoff.murmur2 import partition_of
from cdcwatch.handoff.told import Said, Told
from tests.fakes.table import WATCHED

ENCODER = EventEncoder(WATCHED, system_identifier="7", database="shop")
OTHER_SERVER = EventEncoder(WATCHED, system_identifier="8", database="shop")
OTHER_DATABASE = EventEncoder(WATCHED, system_identifier="7", database="mail")
GAP = Gap("the slot was lost", 0x1000, 0x3000)


def told(partitions=3):
    return Told(ENCODER.source, ["shop/public.orders"], partitions=partitions, slot_lsn=0x1000)


def event(key, kind=SCHEDULED, deadline_us=5, encoder=ENCODER, stamp=None):
    row = Row(deadline_us, "pending", 0)
    return encoder.change(key, Derived(kind, row, None), stamp or Stamp.of(0x2000, 0), 1)


def fed(*events, into=None):
    into = told() if into is None else into
    for one in events:
        into.note(partition_of(one.key, into.partitions), one.key, one.value)
    return into


def left(found):
    return dict(found.left())


def test_the_last_word_on_an_order_counts():
    found = fed(event(1), event(1, MOVED, 6), event(2), event(2, CANCELLED), event(3), event(3, EXPIRED), event(4))
    assert left(found) == {b"1": 6, b"4": 5}
    assert found.take(b"1") == Said(6, is_ours=True)
    assert found.take(b"1") is None
    assert found.take(b"2") is None
    assert left(found) == {b"4": 5}


@pytest.mark.parametrize("us", [-(2**63), -211_813_488_000_000_000, -64_000_000_000_000_000, 252_455_616_000_000_000])
def test_deadlines_of_any_year(us):
    assert fed(event(1, SCHEDULED, us)).take(b"1") == Said(us, is_ours=True)


def test_a_truncate_takes_all_of_its_partition():
    found = fed(*(event(key) for key in range(20)))
    truncated = ENCODER.table_wide(Derived(CANCELLED, None, None, "truncated"), Stamp.of(0x2000, 0), 1)
    found.note(1, None, for_partition(truncated.value, 1))
    assert set(left(found)) == {b"%d" % key for key in range(20) if partition_of(b"%d" % key, 3) != 1}


def test_other_tables_and_what_is_no_event_count_for_nothing():
    found = fed(event(1), event(1, CANCELLED, encoder=OTHER_DATABASE), event(2, encoder=OTHER_DATABASE))
    for value in (b"no json", b"[]", b"{}", b'"text"', event(1).value.replace(b"2000-01-01", b"20-1-1")):
        found.note(partition_of(b"1", 3), b"1", value)
    assert left(found) == {b"1": 5}
    assert found.has_history
    found.note(partition_of(b"1", 3), b"1", b"")
    assert left(found) == {}, "a tombstone ends what is known"


def test_another_server_told_of_the_same_table():
    found = fed(event(1, encoder=OTHER_SERVER), event(2, encoder=OTHER_SERVER), event(2, MOVED, 6), event(3))
    fed(event(3, MOVED, 7, OTHER_SERVER), event(4, encoder=OTHER_SERVER), event(4, EXPIRED), into=found)
    assert found.take(b"1") == Said(5, is_ours=False)
    assert found.take(b"2") == Said(6, is_ours=True)
    assert left(found) == {b"3": 7}
    assert found.take(b"3") == Said(7, is_ours=False)


def test_a_first_read_that_broke_off_is_no_history():
    found = fed(event(1, stamp=Stamp.of_snapshot(0x1000, 0)))
    assert not found.has_history
    assert left(found) == {b"1": 5}
    assert fed(event(1, stamp=Stamp.of_snapshot(0xFFF, 0))).has_history, "that was of an earlier slot"
    assert fed(event(1)).has_history


def test_a_gap_that_every_partition_tells_of_is_known():
    found, record = told(), ENCODER.gap(GAP, 0x4000, 0)
    assert record.record_key == b"\0gap-0/4000"
    for partition in range(3):
        assert not found.has_gap(GAP)
        found.note(partition, record.record_key, for_partition(record.value, partition))
    assert found.has_gap(GAP)
    assert not found.has_gap(GAP._replace(reason="another"))
    assert left(found) == {}


def test_what_was_told_before_partitions_were_added():
    """Keys that moved: their new partition decides where it has told of them."""
    before = [event(key) for key in range(40)]
    found = told(partitions=5)
    for one in before:
        found.note(partition_of(one.key, 2), one.key, one.value)
    moved = {one.key for one in before if partition_of(one.key, 2) != partition_of(one.key, 5)}
    ended, later, silent = sorted(moved)[:3]
    now = [event(int(ended), CANCELLED), event(int(later), MOVED, 9)]
    fed(*now, into=found)
    assert found.strays() == moved
    for one in now:
        found.settle(one.key)
    assert found.take(ended) is None
    assert found.take(later) == Said(9, is_ours=True)
    assert found.take(silent) == Said(5, is_ours=True)
