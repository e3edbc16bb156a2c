"""The agenda of a part: what is let in, and what goes when the part is another's."""

from __future__ import annotations

import pytest

from cdcwatch.close.clock import ClockSample, DatabaseClock
from cdcwatch.close.closer import Closer
from cdcwatch.close.outcome import Closed, CloseReport, Outcome, Unclosed
from cdcwatch.close.part import PartAgenda
from cdcwatch.deadline.schedule import Due, Schedule
from tests.fakes.table import FakeClock

NOW_US = 850_000_000_000_000


class Evens:
    """Even keys are ours, odd ones were."""

    is_empty = False

    def owns(self, key):
        return key % 2 == 0

    def has_lost(self, key):
        return key % 2 == 1


class All:
    is_empty = False

    def owns(self, key):
        return True

    def has_lost(self, key):
        return False


@pytest.fixture
def agenda():
    clock = FakeClock()
    closer = Closer(Schedule(window_end_us=NOW_US + 10**9), random=lambda: 0.5)
    agenda = PartAgenda(closer, DatabaseClock(), clock, All())
    agenda.observe([ClockSample(clock.us, NOW_US, clock.us)])
    return agenda


def dues(*keys, at_us=NOW_US):
    return [Due(key, at_us, 0) for key in keys]


def test_the_table_is_let_in_where_it_is_ours_and_what_is_told_wherever(agenda):
    agenda.take_over(Evens())
    assert agenda.load(dues(1, 2, 3, 4)) == NOW_US + 10**9
    agenda.apply([(5, NOW_US, 0)])
    assert {due.key for due in agenda.work_now(10)} == {2, 4, 5}


def test_evicted_are_those_that_wait_and_those_tried_again_but_not_what_the_sweep_found(agenda):
    agenda.load(dues(*range(1, 5000)))
    (refused,) = agenda.work_now(1)
    agenda.settle(CloseReport(unclosed=[Unclosed(refused, Outcome.FAILED, None)]))
    assert agenda.load_found(dues(10_001)) == 1
    agenda.take_over(Evens())
    assert agenda.evict(Evens().has_lost) == 2500
    assert len(agenda) == 2499 + 1
    assert agenda.facts().retrying == (refused.key % 2 == 0)


@pytest.mark.parametrize("way", ["settle", "give_back", "doubt", "broke"])
def test_what_was_in_flight_is_let_go_when_it_comes_back(agenda, way):
    agenda.load(dues(1, 2))
    batch = agenda.work_now(10)
    agenda.take_over(Evens())
    assert agenda.evict(Evens().has_lost) == 0
    if way == "settle":
        agenda.settle(CloseReport(unclosed=[Unclosed(due, Outcome.LOCKED, None) for due in batch]))
    elif way == "give_back":
        agenda.give_back(batch)
    else:
        agenda.doubt(batch, broke=way == "broke")
    assert len(agenda) == 1


def test_what_was_closed_counts_whoever_has_it_now(agenda):
    agenda.load(dues(1))
    agenda.work_now(10)
    agenda.take_over(Evens())
    settled = agenda.settle(CloseReport(closed=[Closed(1, NOW_US, 1, NOW_US + 5)]))
    assert settled.outcomes[Outcome.CLOSED] == 1


def test_a_page_read_before_the_part_was_lost_is_looked_at_again(agenda):
    class Handover(All):
        """Lost while the page is gone through."""

        def owns(self, key):
            if agenda.part is self:
                agenda.take_over(Evens())
            return True

    agenda.take_over(Handover())
    agenda.load(dues(1, 2, 3))
    assert [due.key for due in agenda.work_now(10)] == [2]
