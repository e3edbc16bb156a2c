import pytest

from cdcwatch.handoff.watermark import Watermark


def test_a_mark_is_reached_when_everything_before_it_is_acknowledged():
    watermark = Watermark()
    first = watermark.hand_over(3)
    watermark.mark(100)
    second = watermark.hand_over(2)
    watermark.mark(200)
    assert (first, second, watermark.flush_lsn) == (range(3), range(3, 5), 0)
    watermark.acknowledge(range(2))
    assert (watermark.flush_lsn, watermark.low) == (0, 2)
    watermark.acknowledge(range(2, 3))
    assert (watermark.flush_lsn, watermark.is_idle) == (100, False)
    watermark.acknowledge(second)
    assert (watermark.flush_lsn, watermark.is_idle) == (200, True)


def test_the_prefix_counts_never_the_maximum():
    watermark = Watermark()
    for end_lsn in (100, 200, 300):
        watermark.hand_over(1)
        watermark.mark(end_lsn)
    watermark.acknowledge(range(2, 3))
    watermark.acknowledge(range(1, 2))
    assert (watermark.flush_lsn, watermark.low, watermark.is_idle) == (0, 0, False)
    watermark.acknowledge(range(1))
    assert (watermark.flush_lsn, watermark.low, watermark.is_idle) == (300, 3, True)


def test_events_of_a_transaction_without_its_end_confirm_nothing():
    watermark = Watermark()
    watermark.acknowledge(watermark.hand_over(5))
    assert watermark.flush_lsn == 0
    watermark.mark(100)
    assert watermark.flush_lsn == 100


def test_a_lower_mark_says_nothing():
    watermark = Watermark()
    watermark.mark(200)
    watermark.hand_over(1)
    watermark.mark(100)
    watermark.mark(200)
    assert (watermark.flush_lsn, watermark.marked_lsn) == (200, 200)
    watermark.acknowledge(range(1))
    assert watermark.flush_lsn == 200


def test_repeated_and_overlapping_acknowledgements_change_nothing():
    watermark = Watermark()
    watermark.hand_over(10)
    watermark.mark(100)
    for sequence in (range(4, 6), range(4, 6), range(3, 8), range(2), range(2), range(1), range(1, 4), range(3, 5)):
        watermark.acknowledge(sequence)
    assert (watermark.low, watermark.flush_lsn) == (8, 0)
    watermark.acknowledge(range(10))
    assert (watermark.low, watermark.flush_lsn) == (10, 100)


def test_nothing_to_acknowledge():
    watermark = Watermark()
    watermark.hand_over(2)
    watermark.acknowledge(range(1, 1))
    watermark.acknowledge(range(2, 2))
    watermark.acknowledge(range(1))
    assert watermark.low == 1


@pytest.mark.parametrize("sequence", [range(3), range(2, 3), range(-1, 1)])
def test_what_was_never_handed_over_is_refused(sequence):
    watermark = Watermark()
    watermark.hand_over(2)
    with pytest.raises(ValueError, match="never handed over"):
        watermark.acknowledge(sequence)
