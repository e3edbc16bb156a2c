"""Agenda, workers and window on the fake table: real threads, a clock set by hand, no database."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from cdcwatch.close.agenda import Agenda, Work
from cdcwatch.close.clock import MEASURE_EVERY_US, ClockSample, DatabaseClock
from cdcwatch.close.closer import Closer
from cdcwatch.close.outcome import CloseReport, CurrentRow, Outcome, Unclosed
from cdcwatch.close.timekeeping import ClockFigures
from cdcwatch.close.window import Window, wants_extension
from cdcwatch.close.workers import NoObserver, Workers
from cdcwatch.deadline.schedule import Due, Schedule
from cdcwatch.errors import UnavailableError
from cdcwatch.instant import NEGATIVE_INFINITY_US
from tests.fakes.table import FakeClock, FakeDatabase, FakeRow, FakeTable
from tests.waiting import wait_until

SECOND_US = 1_000_000
HORIZON_US = 100 * SECOND_US


class World:
    """Everything on fakes; `window` and `workers` start when asked."""

    def __init__(self, *, max_entries=1000, concurrency=2, window_end_us=NEGATIVE_INFINITY_US):
        self.clock = FakeClock()
        self.database = FakeDatabase()
        schedule = Schedule(window_end_us=window_end_us, max_entries=max_entries)
        self.closer = Closer(schedule, random=lambda: 0.5)
        self.agenda = Agenda(self.closer, DatabaseClock(), self.clock)
        self.outcomes = Counter()
        self.measured = 0
        self.lost = 0
        self.given_up_orders = 0
        self.window = Window(self.agenda, self.make_table(), self.clock, horizon_us=HORIZON_US, max_entries=max_entries)
        self.workers = Workers(
            self.agenda, self.make_table, self.clock, concurrency=concurrency, batch_rows=10, observer=self
        )

    def make_table(self):
        return FakeTable(self.database, self.clock)

    def pass_time(self, us):
        self.clock.us += us
        self.database.now_us += us

    def wake(self):
        """As a change that matters to nobody but is the earliest."""
        self.agenda.apply([(-1, NEGATIVE_INFINITY_US, 0)])

    def batch_settled(self, outcomes, lateness_us, batch_us):
        self.outcomes.update(outcomes)

    def given_up(self, count):
        self.given_up_orders += count

    def clock_measured(self, figures):
        self.measured += 1

    def database_lost(self, error):
        self.lost += 1

    def measure(self):
        assert self.agenda.next_work(10) is Work.MEASURE
        self.agenda.observe([ClockSample(self.clock.us, self.database.now_us, self.clock.us)])


@pytest.fixture
def world():
    world = World()
    yield world
    assert world.workers.stop(20)
    assert world.window.stop(20)


def test_the_clock_is_measured_before_anything_is_closed(world):
    world.agenda.extend_window(world.database.now_us)
    world.agenda.apply([(1, world.database.now_us, 0)])
    assert world.agenda.next_work(10) is Work.MEASURE
    world.agenda.measuring_failed()
    world.measure()
    assert world.agenda.next_work(10) == [Due(1, world.database.now_us, 0)]


def test_the_clock_is_measured_each_minute_and_after_an_early_attempt(world):
    world.agenda.extend_window(world.database.now_us)
    world.measure()
    due = Due(1, world.database.now_us, 0)
    world.agenda.apply([tuple(due)])
    assert world.agenda.next_work(10) == [due]
    row = CurrentRow("pending", 0, due.deadline_us, False)
    world.agenda.settle(CloseReport(unclosed=[Unclosed(due, Outcome.NOT_DUE, row)]))
    world.measure()
    assert world.agenda.next_work(10) == [due]
    world.agenda.give_back([due])
    world.pass_time(MEASURE_EVERY_US)
    world.measure()
    assert world.agenda.next_work(10) == [due]


def test_one_measures_while_the_other_closes(world):
    world.agenda.extend_window(world.database.now_us)
    world.measure()
    world.agenda.apply([(1, world.database.now_us, 0)])
    world.pass_time(MEASURE_EVERY_US)
    assert world.agenda.next_work(10) is Work.MEASURE
    assert [due.key for due in world.agenda.next_work(10)] == [1]


def test_stop_ends_every_wait(world):
    world.measure()
    took = []
    waiters = [threading.Thread(target=lambda: took.append(world.agenda.next_work(10))) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    world.agenda.stop()
    for waiter in waiters:
        waiter.join(120)
    assert set(took) <= {Work.STOP, Work.REST}
    assert world.agenda.next_work(10) is Work.STOP


def test_only_an_earlier_deadline_wakes_the_leader(world, monkeypatch):
    now_us = world.database.now_us
    world.agenda.extend_window(now_us + HORIZON_US)
    world.measure()
    world.agenda.apply([(1, now_us + 50 * SECOND_US, 0)])
    woken = []
    notify = world.agenda._leader_wakes.notify
    monkeypatch.setattr(world.agenda._leader_wakes, "notify", lambda n=1: woken.append(True) or notify(n))
    world.agenda._leader_until_us = now_us + 50 * SECOND_US
    world.agenda.apply([(2, now_us + 60 * SECOND_US, 0), (3, None, 0)])
    assert woken == []
    world.agenda.apply([(4, now_us + 40 * SECOND_US, 0)])
    assert woken == [True]


def test_the_leader_hands_the_watch_on_when_it_leaves(world, monkeypatch):
    now_us = world.database.now_us
    world.agenda.extend_window(now_us + HORIZON_US)
    world.measure()
    world.agenda.apply([(1, now_us + 1, 0)])
    woken = []
    monkeypatch.setattr(world.agenda._follower_wakes, "notify", lambda n=1: woken.append(n))
    assert world.agenda.next_work(10) is Work.REST
    assert woken == [1]


def test_overdue_is_told(world):
    assert world.agenda.facts().overdue_us == 0
    world.agenda.extend_window(world.database.now_us)
    world.measure()
    world.agenda.apply([(1, world.database.now_us - 7, 0)])
    facts = world.agenda.facts()
    assert (facts.overdue_us, facts.pending, facts.retrying) == (7, 1, 0)
    world.agenda.clear()
    assert world.agenda.facts().next_deadline_us is None


def test_workers_close_what_is_due_and_wait_for_the_rest(world):
    now_us = world.database.now_us
    for key in range(25):
        world.database.rows[key] = FakeRow("pending", now_us - key)
    world.database.rows[99] = FakeRow("pending", now_us + SECOND_US)
    world.window.start()
    world.workers.start()
    wait_until(lambda: len(world.database.closes) == 25, 20, "the overdue are closed")
    assert len(world.agenda) == 1
    world.pass_time(SECOND_US)
    world.wake()
    wait_until(lambda: world.database.rows[99].status == "expired", 20, "the last one is closed")
    assert Counter(key for key, _ in world.database.closes).most_common(1)[0][1] == 1


def test_an_hour_s_jump_of_the_database_closes_nothing_early(world):
    deadline_us = world.database.now_us + SECOND_US
    world.database.rows[1] = FakeRow("pending", deadline_us)
    world.window.start()
    world.workers.start()
    assert world.window.ready.wait(120)
    wait_until(lambda: world.measured, 20, "the clock is measured")
    world.clock.us += 3600 * SECOND_US
    world.wake()
    wait_until(lambda: world.outcomes[Outcome.NOT_DUE] or world.measured > 1, 20, "found early, or measured first")
    assert world.database.closes == []
    world.database.now_us = deadline_us
    world.agenda._database_clock.doubt()
    world.wake()
    wait_until(lambda: world.database.closes, 20, "closed")
    assert world.database.closes == [(1, deadline_us)]


def test_the_orders_are_kept_while_the_database_is_away(world):
    world.agenda.extend_window(world.database.now_us)
    world.workers.start()
    wait_until(lambda: world.measured, 20, "the clock is measured")
    world.database.is_up = False
    for key in range(5):
        world.database.rows[key] = FakeRow("pending", world.database.now_us)
    world.agenda.apply([(key, world.database.now_us, 0) for key in range(5)])
    wait_until(lambda: world.workers.health().last_error, 20, "an error is told")
    wait_until(lambda: len(world.agenda) == 5, 20, "the orders are back")
    world.database.is_up = True
    wait_until(lambda: len(world.database.closes) == 5, 20, "closed after all")
    wait_until(lambda: world.workers.health().connected == 2, 20, "connected again")


def test_a_close_whose_answer_was_lost_is_not_done_twice(world):
    world.agenda.extend_window(world.database.now_us)
    world.database.rows[1] = FakeRow("pending", world.database.now_us)
    world.database.cuts_after_close = 1
    world.agenda.apply([(1, world.database.now_us, 0)])
    world.workers.start()
    wait_until(lambda: world.outcomes[Outcome.FOUND_CLOSED] == 1, 20, "found to be our own close")
    assert len(world.database.closes) == 1
    assert len(world.agenda) == 0


def test_an_order_that_breaks_every_connection_is_told_on_a_new_one_and_the_others_are_closed(world, caplog):
    world.closer._attempts = 2
    world.agenda.extend_window(world.database.now_us)
    for key in range(10):
        world.database.rows[key] = FakeRow("pending", world.database.now_us)
    world.database.breaking.add(7)
    world.agenda.apply([(key, world.database.now_us, 0) for key in range(10)])
    world.workers.start()
    wait_until(lambda: world.pass_time(SECOND_US // 10) or world.database.given_up, 60, "given up")
    assert [(key, error) for key, _, error in world.database.given_up] == [(7, "the connection broke")]
    wait_until(lambda: len(world.database.closes) == 9, 20, "the others are closed")
    wait_until(lambda: world.given_up_orders == 1, 20, "counted")
    assert len(world.agenda) == 1
    assert "a close worker failed" not in caplog.text


def test_a_mistake_of_ours_ends_no_worker(world, monkeypatch, caplog):
    world.agenda.extend_window(world.database.now_us)
    close = FakeTable.close
    mistakes = [ValueError("x")]
    monkeypatch.setattr(
        FakeTable,
        "close",
        lambda self, batch: (_ for _ in ()).throw(mistakes.pop()) if mistakes else close(self, batch),
    )
    world.database.rows[1] = FakeRow("pending", world.database.now_us)
    world.agenda.apply([(1, world.database.now_us, 0)])
    world.workers.start()
    wait_until(lambda: world.database.closes, 20, "closed at the second attempt")
    wait_until(lambda: "a close worker failed: ValueError" in caplog.text, 20, "the mistake is logged")


def test_stopping_finishes_the_batch_in_flight(world, monkeypatch):
    world.agenda.extend_window(world.database.now_us)
    begun, go_on = threading.Event(), threading.Event()
    close = FakeTable.close

    def slow(self, batch):
        begun.set()
        assert go_on.wait(120)
        return close(self, batch)

    monkeypatch.setattr(FakeTable, "close", slow)
    world.database.rows[1] = FakeRow("pending", world.database.now_us)
    world.agenda.apply([(1, world.database.now_us, 0)])
    world.workers.start()
    assert begun.wait(120)
    assert world.workers.stop(0) is False
    go_on.set()
    assert world.workers.stop(20)
    assert len(world.database.closes) == 1
    assert world.workers.health().connected == 0


# The window, a step at a time.


def test_the_window_loads_the_overdue_and_the_horizon(world):
    now_us = world.database.now_us
    for key, deadline_us in enumerate((NEGATIVE_INFINITY_US, now_us - 10**15, now_us, now_us + HORIZON_US)):
        world.database.rows[key] = FakeRow("pending", deadline_us)
    world.database.rows[9] = FakeRow("pending", now_us + HORIZON_US + 1)
    world.window.step()
    assert world.window.ready.is_set()
    assert len(world.agenda) == 4
    assert world.agenda.facts().window_end_us == now_us + HORIZON_US


def test_the_window_moves_on_with_the_clock(world):
    now_us = world.database.now_us
    world.database.rows[1] = FakeRow("pending", now_us + HORIZON_US + SECOND_US)
    world.window.step()
    world.measure()
    world.pass_time(HORIZON_US // 4)
    world.window.step()
    assert len(world.agenda) == 0
    world.pass_time(1)
    world.window.step()
    assert len(world.agenda) == 1
    assert world.agenda.facts().window_end_us == world.database.now_us + HORIZON_US


def test_the_window_is_open_to_the_stream_before_it_is_read(world, monkeypatch):
    """An order that comes by the stream while the new range is being read is not lost."""
    now_us = world.database.now_us
    read = FakeTable.open_deadlines

    def reading(self, after_us, through_us):
        chunks = list(read(self, after_us, through_us))
        # Committed and streamed after the read's snapshot.
        world.database.rows[7] = FakeRow("pending", now_us + 5, 3)
        world.agenda.apply([(7, now_us + 5, 3)])
        return iter(chunks)

    monkeypatch.setattr(FakeTable, "open_deadlines", reading)
    world.window.step()
    assert world.closer.schedule.get(7) == Due(7, now_us + 5, 3)


def test_a_read_that_breaks_off_goes_on_where_it_was(world, monkeypatch):
    now_us = world.database.now_us
    for key in range(20):
        world.database.rows[key] = FakeRow("pending", now_us + key // 2)
    load = world.agenda.load
    loads = []

    def loading(chunk):
        loads.append(len(chunk))
        if len(loads) == 3:
            world.database.is_up = False
        return load(chunk)

    monkeypatch.setattr(world.agenda, "load", loading)
    with pytest.raises(UnavailableError):
        world.window.step()
    assert not world.window.ready.is_set()
    world.database.is_up = True
    world.window._table.disconnect()
    world.window.step()
    assert world.window.ready.is_set()
    assert len(world.agenda) == 20
    assert sum(loads) < 27


def test_a_window_without_room_is_read_on_when_there_is_some():
    world = World(max_entries=16)
    now_us = world.database.now_us
    for key in range(40):
        world.database.rows[key] = FakeRow("pending", now_us + key)
    world.window.step()
    assert world.window.ready.is_set()
    world.measure()
    closed = []
    table = world.make_table()
    table.connect()
    while len(closed) < 40:
        assert len(world.agenda) <= 16
        world.pass_time(1)
        while isinstance(work := world.agenda.next_work(3), list):
            report = table.close(work)
            world.agenda.settle(report)
            closed += [one.key for one in report.closed]
            if world.closer.delay_us(world.database.now_us, world.clock.us) != 0:
                break
        world.window.step()
    assert closed == list(range(40))


def test_a_full_window_is_not_read_over_and_over():
    room = {"now_us": 0, "window_end_us": 10, "horizon_us": 100, "max_entries": 100}
    assert wants_extension(**room, pending=75)
    assert not wants_extension(**room, pending=76)
    assert not wants_extension(**{**room, "window_end_us": 75}, pending=0)
    assert wants_extension(**{**room, "window_end_us": 74}, pending=0)


def test_a_reload_reads_everything_in_the_window_again(world):
    world.window.step()
    world.database.rows[1] = FakeRow("pending", world.database.now_us)
    world.window.step()
    assert len(world.agenda) == 0
    world.window.reload()
    world.window.step()
    assert len(world.agenda) == 1


def test_the_window_s_thread_outlives_an_outage(world):
    world.database.is_up = False
    world.window.start()
    wait_until(lambda: world.window.last_error, 20, "an error is told")
    world.database.is_up = True
    assert world.window.ready.wait(120)
    wait_until(lambda: not world.window.last_error, 20, "no error any more")


def test_no_observer_takes_everything():
    observer = NoObserver()
    observer.batch_settled({}, [], 0)
    observer.clock_measured(ClockFigures(0, 0, None, False, 0, frozenset()))
    observer.database_lost(UnavailableError("x", remedy="y"))


def test_a_read_of_local_times_that_broke_off_is_taken_up_before_what_may_be_out_of_order(monkeypatch):
    """Where clocks are put back a page may end with a later deadline than the next one begins with."""
    world = World()
    asked = []

    def open_deadlines(self, after_us, _through_us):
        asked.append(after_us)
        yield [Due("late", world.database.now_us + 100, 0)]
        if len(asked) == 1:
            raise UnavailableError("cut", remedy="none")
        yield [Due("early", world.database.now_us + 60, 0)]

    monkeypatch.setattr(FakeTable, "disorder_us", 50)
    monkeypatch.setattr(FakeTable, "open_deadlines", open_deadlines)
    with pytest.raises(UnavailableError):
        world.window.step()
    world.window.step()
    assert asked == [None, world.database.now_us + 49]
    assert len(world.agenda) == 2
