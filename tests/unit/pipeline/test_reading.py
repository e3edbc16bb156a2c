"""Whether the reader keeps up, by its slot."""

from __future__ import annotations

import pytest

from cdcwatch.pipeline.reading import LAG_S, Reading, ReadingWatch


class Clock:
    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def watch(clock):
    return ReadingWatch("", "orders", now_s=clock)


def test_one_that_keeps_up(watch, clock):
    for lsn in range(100, 1000, 100):
        clock.now_s += 0.5
        watch.note(Reading(True, lsn, lsn + 150))  # always a little behind what is being written
        assert not watch.lags


def test_nobody_reads_or_there_is_no_slot(watch):
    assert watch.lags
    watch.note(Reading(True, 100, 100))
    assert not watch.lags
    watch.note(Reading(False, 100, 100))
    assert watch.lags
    watch.note(None)
    assert watch.lags


def test_a_slot_that_is_not_there_is_told_once_until_it_was_there(watch, caplog):
    for found, told in ((None, 1), (None, 1), (Reading(False, 1, 1), 1), (None, 2), (None, 2)):
        watch.note(found)
        assert watch.lags
        assert (
            sum("has no slot orders" in one.message and "slot create" in one.message for one in caplog.records) == told
        )


def test_one_that_stands_still(watch, clock):
    watch.note(Reading(True, 100, 120))
    clock.now_s += LAG_S + 0.1
    watch.note(Reading(True, 100, 130))
    assert watch.lags
    clock.now_s += 0.5
    watch.note(Reading(True, 120, 140))
    assert not watch.lags


def test_when_a_position_was_told(watch, clock):
    watch.note(Reading(True, 100, 120))
    assert watch.told_s(101) is None
    clock.now_s = 60.0
    watch.note(Reading(True, 101, 120))
    assert watch.told_s(101) == 60.0
