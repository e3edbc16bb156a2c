"""When the reader is to give way to closes."""

from __future__ import annotations

import pytest

from cdcwatch.close.agenda import Agenda
from cdcwatch.close.clock import ClockSample, DatabaseClock
from cdcwatch.close.closer import Closer
from cdcwatch.deadline.schedule import Schedule
from cdcwatch.instant import INFINITY_US
from tests.fakes.table import FakeClock

DUE_US = 10_000_000


@pytest.fixture
def clock():
    return FakeClock(DUE_US)


@pytest.fixture
def agenda(clock):
    agenda = Agenda(Closer(Schedule(window_end_us=INFINITY_US - 1), random=lambda: 0.5), DatabaseClock(), clock)
    agenda.observe([ClockSample(clock.us, clock.us, clock.us)] * 5)
    return agenda


def test_more_than_a_batch_at_one_instant_presses_at_once(agenda, clock):
    agenda.apply([(key, DUE_US, 0) for key in range(5)])
    assert not agenda.presses()
    clock.us += 1_000
    assert len(agenda.work_now(2)) == 2
    assert agenda.presses()
    assert len(agenda.work_now(2)) == 2
    assert agenda.presses()
    assert len(agenda.work_now(2)) == 1
    assert not agenda.presses()


def test_a_few_that_wait_for_a_worker_press_after_30_ms_and_no_longer_than_2_s(agenda, clock):
    agenda.apply([(key, DUE_US, 0) for key in range(2)])
    clock.us += 29_999
    assert not agenda.presses()
    clock.us += 1
    assert agenda.presses()
    clock.us = DUE_US + 2_000_000
    assert not agenda.presses()
