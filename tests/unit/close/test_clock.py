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
    assert not clock.observe([sample(0, 5_300, 1_000), sample(2_000, 5_010, 40), sample(3_000, 4_600, 900)]).jumped
    assert clock.now_us(10_000) == 15_010
    assert clock.uncertainty_us == 20


def test_a_worse_sample_that_agrees_changes_nothing():
    clock = DatabaseClock()
    clock.observe([sample(0, 5_000, 40)])
    assert not clock.observe([sample(1_000_000, 5_300, 2_000)]).jumped
    assert clock.now_us(0) == 5_000


def test_an_old_estimate_gives_way_to_one_as_good_as_its_age_makes_it():
    clock = DatabaseClock()
    clock.observe([sample(0, 5_000, 40)])
    assert not clock.observe([sample(6 * MEASURE_EVERY_US, 5_100, 200)]).jumped
    assert clock.now_us(0) == 5_100


@pytest.mark.parametrize("jump_us", [HOUR_US, -HOUR_US, 3_000])
def test_a_jump_replaces_the_estimate(jump_us):
    clock = DatabaseClock()
    clock.observe([sample(0, 5_000, 40)])
    assert clock.observe([sample(1_000_000, 5_000 + jump_us, 2_000)]).jumped
    assert clock.now_us(0) == 5_000 + jump_us


def test_measured_every_ten_seconds_and_when_doubted():
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


def test_a_slewed_clock_is_followed_and_has_not_jumped():
    """At 400 ppm, as while NTP brings a clock back: 4 ms in ten seconds."""
    clock = DatabaseClock()
    for turn in range(100):
        at_us = turn * MEASURE_EVERY_US
        reading = clock.observe([sample(at_us, at_us * 400 // 1_000_000, 40)])
        assert not reading.jumped
        assert clock.now_us(at_us) == at_us + at_us * 400 // 1_000_000
        if turn < 3:
            assert reading.drift is None
        else:
            assert reading.drift.ppm == pytest.approx(400, abs=0.1)
            assert reading.drift.uncertainty_ppm < 2


def test_drift_is_that_of_the_last_minutes():
    clock = DatabaseClock()
    for turn in range(200):
        at_us = turn * MEASURE_EVERY_US
        reading = clock.observe([sample(at_us, min(at_us, 50 * MEASURE_EVERY_US) * 100 // 1_000_000, 40)])
    assert reading.drift.ppm == pytest.approx(0, abs=0.01)


def test_after_a_jump_drift_is_learnt_anew():
    clock = DatabaseClock()
    for turn in range(10):
        clock.observe([sample(turn * MEASURE_EVERY_US, 0, 40)])
    assert clock.observe([sample(10 * MEASURE_EVERY_US, HOUR_US, 40)]).drift is None
    for turn in range(11, 20):
        reading = clock.observe([sample(turn * MEASURE_EVERY_US, HOUR_US, 40)])
    assert reading.drift.ppm == 0
