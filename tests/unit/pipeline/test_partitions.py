"""Partitions that come and leave: what the heap, the decoders and the topic hear of it."""

from __future__ import annotations

from contextlib import contextmanager
from threading import Thread

import pytest
from msgspec.structs import replace

from cdcwatch.deadline.event import Event
from cdcwatch.decode.leaves import Leaves
from cdcwatch.errors import UnavailableError
from cdcwatch.pipeline import partitions as module
from cdcwatch.pipeline.arrivals import Arrivals
from cdcwatch.pipeline.partitions import Partitions
from cdcwatch.table import Attachment, Leaf
from tests.fakes.table import WATCHED
from tests.waiting import wait_until

LOW, HIGH, NEW = (Leaf(oid, "public", name, oid, "751") for oid, name in ((1, "low"), (2, "high"), (3, "new")))
READ_LSN = 0x500


def events(*keys):
    return [Event(key, b"{}") for key in keys]


def taken(arrivals, position_lsn=READ_LSN):
    return arrivals.take(position_lsn)


class World:
    """The parts of a service, and a reader that takes what waits once it stands at `position_lsn`."""

    def __init__(self, *, rows=(b"7", b"8"), known=(1, 2), table=(LOW, HIGH)):
        self.arrivals = Arrivals(lambda: None)
        self.table = replace(WATCHED, leaves=table)
        self.leaves = Leaves(self.table)
        self.rows, self.position_lsn, self.handed_over = rows, READ_LSN, []
        self.reloads, self.reads = [], []
        self.partitions = Partitions(
            self.table,
            leaves=self.leaves,
            arrivals=self.arrivals,
            read=self.read,
            reload=self.reloads.append,
            passed=lambda lsn: self.position_lsn >= lsn,
            current_lsn=lambda: READ_LSN,
            named=lambda oids: [leaf for leaf in (LOW, HIGH, NEW) if leaf.oid in oids],
        )
        self.partitions.begin(known and tuple(Attachment(oid, "751") for oid in known))

    @contextmanager
    def read(self, oids):
        self.reads.append(set(oids))
        yield READ_LSN, iter(events(*self.rows))

    def look(self, *leaves):
        """One look of the warden, while the reader goes round."""
        died = []

        def look():
            try:
                self.partitions.look(replace(self.table, leaves=leaves))
            except UnavailableError as error:
                died.append(error)

        looking = Thread(target=look)
        looking.start()

        def is_done():
            found = self.arrivals.take(self.position_lsn)
            if found is not None:
                self.handed_over.append([event.key for event in found])
            return not looking.is_alive()

        wait_until(is_done, 20, "the look")
        if died:
            raise died[0]

    @property
    def known(self):
        return tuple(one.oid for one in self.arrivals.known)

    @property
    def told(self):
        return [key for chunk in self.handed_over for key in chunk]


def test_what_comes_is_read_once_and_then_known():
    world = World()
    world.look(LOW, HIGH, NEW)
    assert (world.reads, world.told, world.reloads) == ([{3}], [b"7", b"8"], [False])
    assert world.known == (1, 2, 3)
    assert world.leaves.has("public", "new")
    world.look(LOW, HIGH, NEW)
    assert (len(world.reads), len(world.reloads)) == (1, 1)


def test_what_the_stream_told_since_the_look_before_is_not_told_again():
    world = World()
    world.arrivals.note(events(b"8"))
    world.look(LOW, HIGH)
    world.look(LOW, HIGH)
    world.arrivals.note(events(b"7"))
    world.look(LOW, HIGH)
    world.look(LOW, HIGH, NEW)
    assert world.told == [b"8"], "7 was told after a look at which the partition was not there; 8 long before"


def test_nothing_is_read_while_the_stream_is_behind(monkeypatch):
    monkeypatch.setattr(module, "_CATCH_UP_S", 0.05)
    world = World()
    world.position_lsn = READ_LSN - 1
    world.look(LOW, HIGH, NEW)
    assert (world.reads, world.known) == ([], (1, 2))
    assert world.reloads == [False], "the heap needs no stream"
    world.position_lsn = READ_LSN
    world.look(LOW, HIGH, NEW)
    assert (world.told, world.known) == ([b"7", b"8"], (1, 2, 3))


def test_a_read_that_breaks_off_is_done_again_whole(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_EVENTS", 1)
    monkeypatch.setattr(module, "_PATIENCE_S", 0.2)
    world = World()
    given = world.arrivals.give

    def give(chunk, **more):
        return [event.key for event in chunk] != [b"8"] and given(chunk, **more)

    monkeypatch.setattr(world.arrivals, "give", give)
    with pytest.raises(UnavailableError):
        world.look(LOW, HIGH, NEW)
    assert (world.told, world.known) == ([b"7"], (1, 2))
    monkeypatch.setattr(world.arrivals, "give", given)
    world.look(LOW, HIGH, NEW)
    assert (world.told, world.known) == ([b"7", b"7", b"8"], (1, 2, 3))


def test_what_leaves_empties_the_heap_and_is_ours_until_the_stream_has_passed_the_place():
    world = World()
    world.position_lsn = READ_LSN - 1
    world.look(LOW)
    assert (world.reloads, world.known) == ([True], (1,))
    assert world.leaves.has("public", "high")
    world.position_lsn = READ_LSN
    world.look(LOW)
    assert not world.leaves.has("public", "high")


def test_another_filenode_is_a_truncate_or_looks_like_one():
    world = World()
    world.look(LOW, HIGH._replace(filenode=99))
    world.look(LOW, HIGH._replace(filenode=99))
    assert (world.reloads, world.reads) == ([True], [])


def test_what_left_while_nobody_looked_is_ours_in_what_the_slot_still_holds():
    world = World(known=(1, 2), table=(LOW,))
    assert world.leaves.has("public", "high")
    world.look(LOW)
    assert not world.leaves.has("public", "high")
    assert world.known == (1,)


def test_without_a_record_the_topic_knows_what_there_is():
    assert World(known=None).known == (1, 2)


AGAIN = HIGH._replace(stamp="760")


def test_what_was_detached_and_attached_again_has_left_and_come():
    world = World()
    world.arrivals.note(events(b"8"))
    world.look(LOW, AGAIN)
    assert (world.reloads, world.reads) == ([True], [])
    assert Attachment(2, "751") in world.arrivals.known, "a start before it is read reads it"
    world.arrivals.note(events(b"7"))
    world.look(LOW, AGAIN)
    assert (world.reads, world.told) == ([{2}], [b"8"]), "8 was told before, of a time that is over; 7 since then"
    assert world.arrivals.known == (LOW.attachment, AGAIN.attachment)
    world.look(LOW, AGAIN)
    assert (len(world.reads), len(world.reloads)) == (1, 1)


def test_what_was_away_while_nobody_looked_is_read_after_what_the_slot_still_holds():
    world = World(table=(LOW, AGAIN))
    world.arrivals.note(events(b"8"))
    for _ in range(3):
        world.look(LOW, AGAIN)
    assert (world.reads, world.told, world.reloads) == ([{2}], [b"7", b"8"], [])


def test_a_record_without_stamps_takes_the_partitions_as_they_are():
    world = World()
    world.arrivals.known = (Attachment(1), Attachment(2))
    world.look(LOW, AGAIN._replace(stamp="751"))
    assert (world.reads, world.arrivals.known) == ([], (LOW.attachment, HIGH.attachment))


def test_what_the_stream_tells_of_another_table_holds_back_no_order_of_this_one():
    arrivals = Arrivals(lambda: None, "ours")
    arrivals.note([Event(b"7", b"{}", "theirs"), Event(b"8", b"{}", "ours")])
    offered = [Event(key, b"{}", "ours") for key in (b"7", b"8")]
    giver = Thread(target=arrivals.give, args=(offered,), kwargs={"after_lsn": 1, "timeout_s": 60})
    giver.start()
    wait_until(lambda: arrivals.waits, 20, "offered")
    assert [event.key for event in arrivals.take(1) or ()] == [b"7"]
    giver.join()
