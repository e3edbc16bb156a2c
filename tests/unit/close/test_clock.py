import pytest

from cdcwatch.close.clock import MEASURE_EVERY_US, ClockSample, DatabaseClock, SystemClock

HOUR_US = 3_600_000_000


def sample(at_us, offset_us, round_trip_us):
    return ClockSample(at_us, at_us + round_trip_us // 2 + offset_us, at_us + round_trip_us)


def test_unknown_until_the_first_sample():
    clock = DatabaseClock()
    assert clock.needs_measuring(0)
    assert not clock.is_known
    with pytest.raises(ValueError, match="not read yet"):
        clock.now_us(0)


def test_the_shortest_round_trip_counts():
    clock = DatabaseClock()
    assert not clock.observe([sample(0, 5_300, 1_000), sample(2_000, 5_010, 40), sample(3_000, 4_600, 900)])
    assert clock.now_us(10_000) == 15_010
    assert clock.uncertainty_us == 20


def test_a_worse_sample_that_agrees_changes_nothing():
    clock = DatabaseClock()
    clock.observe([sample(0, 5_000, 40)])
    assert not clock.observe([sample(1_000_000, 5_300, 2_000)])
    assert clock.now_us(0) == 5_000


def test_an_old_estimate_gives_way_to_one_as_good_as_its_age_makes_it():
    clock = DatabaseClock()
    clock.observe([sample(0, 5_000, 40)])
    assert not clock.observe([sample(MEASURE_EVERY_US, 5_100, 200)])
    assert clock.now_us(0) == 5_100


@pytest.mark.parametrize("jump_us", [HOUR_US, -HOUR_US, 3_000])
def test_a_jump_replaces_the_estimate(jump_us):
    clock = DatabaseClock()
    clock.observe([sample(0, 5_000, 40)])
    assert clock.observe([sample(1_000_000, 5_000 + jump_us, 2_000)])
    assert clock.now_us(0) == 5_000 + jump_us


def test_measured_each_minute_and_when_doubted():
    clock = DatabaseClock()
    clock.observe([sample(0, 0, 40)])
    assert not clock.needs_measuring(40 + MEASURE_EVERY_US - 1)
    assert clock.needs_measuring(40 + MEASURE_EVERY_US)
    clock.observe([sample(100, 0, 40)])
    assert not clock.needs_measuring(200)
    clock.doubt()
    assert clock.needs_measuring(200)


def test_the_systems_clock_goes_forward():
    clock = SystemClock()
    assert clock.monotonic_us() <= clock.monotonic_us()
