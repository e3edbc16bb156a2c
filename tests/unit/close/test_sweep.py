"""The sweep on fakes, one step at a time: every pause passes time and lets a worker have its turn."""

from __future__ import annotations

import pytest

from cdcwatch.close.agenda import Agenda, Work
from cdcwatch.close.clock import DatabaseClock
from cdcwatch.close.closer import Closer
from cdcwatch.close.replica import ReplicaFirst
from cdcwatch.close.shards import Member, Shard
from cdcwatch.close.sweep import HELD_US, STUCK_US, Sweep
from cdcwatch.deadline.schedule import Schedule
from cdcwatch.errors import UnavailableError
from cdcwatch.instant import INFINITY_US
from tests.fakes.table import FakeClock, FakeDatabase, FakeRow, FakeTable

SECOND_US = 1_000_000
GRACE_US = 5 * SECOND_US


class FakeRegister:
    """What the table of instances says; `position` is counted up at each asking."""

    id = "a"

    def __init__(self):
        self.members = [Member("a", 1.0)]
        self.asked = self.withdrawn = self.beats = 0
        self.is_up = True

    def connect(self):
        if not self.is_up:
            raise UnavailableError("away", remedy="none")

    def disconnect(self):
        pass

    def beat(self):
        self.beats += 1
        return self.members

    def withdraw(self):
        self.withdrawn += 1

    def position(self):
        self.asked += 1
        return self.asked


class SpiedTable(FakeTable):
    """Remembers how large its pages were."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.pages = []

    def overdue(self, **bounds):
        page = super().overdue(**bounds)
        self.pages.append((bounds["limit"], [one.due.key for one in page.orders]))
        return page


class World:
    def __init__(self, *, has_told=lambda _lsn: True, may_sweep=lambda: True, works=True, register=True, **options):
        self.clock = FakeClock()
        self.database = FakeDatabase()
        self.register = FakeRegister()
        self.closer = Closer(Schedule(window_end_us=INFINITY_US - 1), random=lambda: 0.5)
        self.agenda = Agenda(self.closer, DatabaseClock(), self.clock)
        self.table = FakeTable(self.database, self.clock)
        self.table.connect()
        self.measure()
        self.scan = SpiedTable(self.database, self.clock)
        self.counted, self.works, self.paused_us, self.is_stopping = 0, works, 0, False
        self.turn = lambda: None
        self.sweep = Sweep(
            self.agenda,
            self.scan,
            self.register if register else None,
            self.clock,
            **{"interval_s": 30, "grace_ms": 5000, "batch_rows": 10, "rows_per_s": 1000, **options},
            observer=self,
            may_sweep=may_sweep,
            has_told=has_told,
        )
        self.sweep._stopping = self

    def measure(self):
        self.agenda.observe(self.table.sample_clock(1))

    # the sweep's stop event
    def is_set(self):
        return self.is_stopping

    def wait(self, timeout_s):
        self.pass_time(round(timeout_s * 1e6))
        self.paused_us += round(timeout_s * 1e6)
        self.turn()
        work = self.agenda.work_now(4) if self.works else None
        if isinstance(work, list):
            self.agenda.settle(self.table.close(work))
        elif work is Work.MEASURE:
            self.measure()

    # its observer
    def recovered(self, count):
        self.counted += count

    def looked(self):
        pass

    def fell_back(self, reason):
        raise AssertionError(reason)

    def pass_time(self, us):
        self.clock.us += us
        self.database.now_us += us

    def put(self, key, ago_s, **row):
        self.database.rows[key] = FakeRow("pending", self.database.now_us - round(ago_s * 1e6), **row)

    def look(self):
        """Until the next look is over."""
        self.pass_time(30 * SECOND_US)
        self.sweep.step()

    def open(self):
        return sorted(key for key, row in self.database.rows.items() if row.status == "pending")


def test_it_closes_what_nobody_told_of_oldest_first_and_counts_it():
    world = World()
    for key in range(25):
        world.put(key, 100 - key)
    world.look()
    assert world.open() == []
    assert [key for key, _ in world.database.closes] == list(range(25))
    assert world.counted == 25
    world.look()
    assert world.counted == 25


def test_what_is_in_hand_or_younger_than_the_grace_is_no_find():
    world = World(works=False)
    world.look()
    world.put(1, 100)  # in the heap
    world.put(2, 100)  # in flight
    world.put(3, -28)  # 2 s due at the next look
    world.put(4, -100)
    world.agenda.apply([(2, world.database.rows[2].deadline_us, 0)])
    world.measure()
    assert [due.key for due in world.agenda.work_now(1)] == [2]
    world.agenda.apply([(1, world.database.rows[1].deadline_us, 0)])
    world.look()
    assert (len(world.agenda), world.agenda.untried, world.counted) == (1, 0, 0)


def test_an_order_in_the_heap_for_later_than_the_table_says_is_found():
    world = World()
    world.put(1, 100)
    world.agenda.apply([(1, world.database.now_us + 10**12, 0)])
    world.look()
    assert world.open() == []
    assert world.counted == 1


def test_the_stream_is_awaited_before_anything_counts_as_missed():
    world = World(has_told=lambda _lsn: world.told)
    world.told = False
    world.put(1, 100)

    def stream_tells():
        if not world.told:
            world.told = True
            world.agenda.apply([(1, world.database.rows[1].deadline_us, 0)])

    world.turn = stream_tells
    world.look()
    world.wait(0.1)
    assert world.open() == []
    assert world.counted == 0


def test_a_stream_that_tells_nothing_is_awaited_for_the_grace_only():
    world = World(has_told=lambda _lsn: False)
    world.put(1, 100)
    world.look()
    assert world.open() == []
    assert world.counted == 1
    assert GRACE_US <= world.paused_us < 2 * GRACE_US


def test_pages_are_bounded_and_ties_are_read_through():
    world = World(batch_rows=3)
    for key in range(20):
        world.put(key, 100)
    world.database.locked = set(range(5))
    world.look()
    assert world.open() == [0, 1, 2, 3, 4]
    # As long as a page and what is still open at the deadline it begins with.
    assert max(limit for limit, _ in world.scan.pages) <= 3 + 5
    world.database.locked = set()
    for _ in range(30):  # they are tried again by themselves
        world.wait(1)
    world.sweep.step()
    assert world.open() == []
    assert world.counted == 20


def test_a_backlog_is_closed_at_the_rate_in_bites_that_are_settled_one_by_one():
    world = World(batch_rows=1000, rows_per_s=100)
    for key in range(300):
        world.put(key, 100)
    waiting = []
    world.turn = lambda: waiting.append(world.agenda.untried)
    world.look()
    assert world.open() == []
    assert max(waiting) <= 100 / 20
    assert world.paused_us >= 2.9 * SECOND_US


def test_what_becomes_due_during_a_backlog_does_not_wait_for_its_end():
    world = World(batch_rows=20, rows_per_s=10, interval_s=2, has_told=None)
    for key in range(500):
        world.put(key, 100)
    world.put(1000, -1)
    world.put(1001, -9)
    world.sweep.step()
    order = [key for key, _ in world.database.closes]
    assert sorted(order) == [*range(500), 1000, 1001]
    assert order.index(1000) < 200
    assert order.index(1001) < 300
    late_us = dict(world.database.closes)[1001] - world.database.rows[1001].deadline_us
    assert late_us < GRACE_US + 6 * SECOND_US


def test_each_instance_takes_its_own_share_and_a_dead_ones_moves_at_once():
    world = World()
    world.register.members = [Member("a", 1.0), Member("b", 1.0)]
    for key in range(100):
        world.put(key, 100)
    world.look()
    theirs = [key for key in range(100) if not Shard("a", world.register.members).has(key)]
    assert world.open() == theirs != []
    world.register.members = [Member("a", 1.0)]
    world.pass_time(3 * SECOND_US)
    world.sweep.step()
    assert world.open() == []


def test_without_a_register_everything_is_ours():
    world = World()
    world.register.members = []
    world.put(1, 100)
    world.look()
    assert world.open() == []


def test_who_cannot_do_its_share_leaves_it_to_the_others():
    world = World(may_sweep=lambda: world.loaded)
    world.loaded = False
    world.put(1, 100)
    world.look()
    assert world.open() == [1]
    assert world.register.withdrawn == 1
    world.loaded = True
    world.look()
    assert world.open() == []
    # Its workers stand still.
    world.works = False
    world.put(2, 100)
    world.agenda.apply([(2, world.database.rows[2].deadline_us, 0)])
    world.pass_time(STUCK_US + SECOND_US)
    world.sweep.step()
    assert world.register.withdrawn == 2


def test_a_sweep_that_is_stopped_leaves_the_rest():
    world = World(batch_rows=5)
    for key in range(50):
        world.put(key, 100)

    def stop():
        world.is_stopping = len(world.database.closes) >= 10

    world.turn = stop
    world.look()
    assert 0 < len(world.open()) < 50


def test_finish_ends_when_nothing_is_overdue_but_what_is_refused_or_held():
    world = World(register=False, has_told=None, grace_ms=0)
    for key in range(30):
        world.put(key, 1)
    world.put(40, -100)
    world.database.poison, world.database.locked = {3, 4}, {7}
    assert world.sweep.finish() == 3
    assert world.open() == [3, 4, 7, 40]
    assert world.counted == 27
    assert world.agenda.found_but(HELD_US) == (0, 3)


def test_finish_says_when_the_database_is_away():
    world = World(register=False, has_told=None, grace_ms=0)
    world.put(1, 100)
    world.works = False

    def goes():
        world.database.is_up = False

    world.turn = goes
    with pytest.raises(UnavailableError):
        world.sweep.finish()


class FakeStandby:
    def __init__(self):
        self.answers = []
        self.is_up = True

    def connect(self):
        if not self.is_up:
            raise UnavailableError("away", remedy="none")

    def disconnect(self):
        pass

    def has_replayed(self, lsn):
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


def test_the_standby_is_read_as_long_as_it_keeps_up():
    clock, reasons = FakeClock(), []
    primary_rows, standby_rows = FakeDatabase(), FakeDatabase()
    primary_rows.rows = {1: FakeRow("pending", 0)}
    standby_rows.rows = {2: FakeRow("pending", 0), 3: FakeRow("pending", 0)}
    standby = FakeStandby()
    scan = ReplicaFirst(
        FakeTable(primary_rows, clock),
        FakeTable(standby_rows, clock),
        standby,
        clock,
        position=lambda: 7,
        max_delay_ms=500,
        fell_back=reasons.append,
        pause=lambda seconds: setattr(clock, "us", clock.us + round(seconds * 1e6)),
    )
    scan.connect()

    def keys(mark_us=None):
        page = scan.overdue(mark_us=mark_us, since_us=None, grace_us=0, limit=10)
        return [one.due.key for one in page.orders]

    standby.answers = [False, False, True]
    assert keys() == [2, 3]
    assert reasons == []
    standby.answers = [False]
    before_us = clock.us
    assert keys(mark_us=0) == [1]
    assert reasons == ["delay"]
    assert clock.us - before_us >= 500_000
    standby.answers = [True]
    assert keys(mark_us=0) == [1], "the primary to the end of the look"
    assert keys() == [2, 3]
    standby.answers = [None]
    assert keys() == [1]
    standby.is_up = False
    assert keys() == [1]
    assert reasons == ["delay", "not_a_standby", "away"]
    standby.is_up, standby.answers = True, [True]
    assert keys() == [2, 3]
