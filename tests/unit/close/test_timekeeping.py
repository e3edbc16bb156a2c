import pytest

from cdcwatch.close.clock import Drift, Reading
from cdcwatch.close.timekeeping import Timekeeping
from tests.fakes.table import FakeClock

CALM = Reading(0, 100, Drift(1.0, 2.0), jumped=False)


def lines(timekeeping, reading=CALM):
    return timekeeping.measured(reading)[1]


def test_calm_clocks_are_not_told_of():
    figures, told = Timekeeping(FakeClock()).measured(CALM)
    assert told == []
    assert (figures.offset_us, figures.uncertainty_us, figures.drift_ppm) == (0, 100, 1.0)
    assert (figures.jumped, figures.slept_us, figures.alarms) == (False, 0, frozenset())


@pytest.mark.parametrize(
    ("about", "over", "under", "says"),
    [
        ("offset", {"offset_us": 1_000_101}, {"offset_us": -1_000_100}, "+1.000 s from this machine's"),
        ("uncertainty", {"uncertainty_us": 50_001}, {"uncertainty_us": 50_000}, "± 50.0 ms"),
        ("drift", {"drift": Drift(-203.0, 2.0)}, {"drift": Drift(201.0, 2.0)}, "-203 ppm"),
    ],
)
def test_an_alarm_is_told_once_and_so_is_its_end(about, over, under, says):
    timekeeping = Timekeeping(FakeClock())
    assert timekeeping.measured(CALM._replace(**under))[0].alarms == frozenset()
    for told_once in (1, 0):
        figures, told = timekeeping.measured(CALM._replace(**over))
        assert figures.alarms == {about}
        assert len(told) == told_once
    assert says in lines(Timekeeping(FakeClock()), CALM._replace(**over))[0]
    assert "remedy" in lines(Timekeeping(FakeClock()), CALM._replace(**over))[0]
    assert lines(timekeeping) == ["the clocks are within their bounds again"]
    assert lines(timekeeping) == []


def test_bounds_are_as_configured():
    timekeeping = Timekeeping(FakeClock(), max_offset_us=10_000_000, max_uncertainty_us=50)
    assert timekeeping.measured(CALM._replace(offset_us=2_000_000))[0].alarms == {"uncertainty"}


def test_the_offset_is_the_one_from_the_wall_clock():
    clock = FakeClock()
    clock.wall_ahead_us = 5_000_000
    assert Timekeeping(clock).measured(CALM._replace(offset_us=3_000_000))[0].offset_us == -2_000_000


def test_a_sleep_is_told_of_once():
    clock = FakeClock()
    clock.slept_us = 7_000_000_000
    timekeeping = Timekeeping(clock)
    assert lines(timekeeping) == []
    clock.us += 90_000_000
    clock.slept_us += 90_000_000
    figures, told = timekeeping.measured(CALM)
    assert figures.slept_us == 90_000_000
    assert [line[:34] for line in told] == ["this machine slept for 90 s; what "]
    assert timekeeping.measured(CALM)[0].slept_us == 0


def test_either_clock_that_is_set_is_told_of():
    clock = FakeClock()
    timekeeping = Timekeeping(clock)
    clock.wall_ahead_us = -3_600_000_000
    (told, alarm) = lines(timekeeping)
    assert "this machine's clock was set by -3600.000 s; deadlines don't follow it" in told
    assert "+3600.000 s" in alarm
    assert lines(timekeeping, CALM._replace(jumped=True, offset_us=-3_600_000_000))[0] == (
        "the database's clock has jumped; deadlines follow it"
    )
