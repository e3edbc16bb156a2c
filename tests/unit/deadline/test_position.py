import pytest

from cdcwatch.deadline.position import Position, SnapshotVisibility

MODULUS = 2**32


@pytest.mark.parametrize(
    ("commit_lsn", "ordinal", "covered"),
    [
        (10, 1, True),
        (99, 10**6, True),  # committed before everything that is complete
        (100, 1, False),  # the end LSN is where the next commit record may stand
        (150, 4, True),
        (150, 5, True),
        (150, 6, False),
        (149, 1, False),
        (151, 1, False),
    ],
)
def test_what_a_position_within_a_transaction_covers(commit_lsn, ordinal, covered):
    assert Position(end_lsn=100, commit_lsn=150, ordinal=5).covers(commit_lsn, ordinal) == covered


def test_a_complete_transaction_is_covered_whole():
    position = Position(end_lsn=200, commit_lsn=150, ordinal=5)
    assert position.covers(150, 6)
    assert not position.covers(200, 1)


def test_nothing_is_covered_at_first():
    assert not Position().covers(1, 1)


def test_positions_are_ordered_as_the_stream_passes_them():
    passed = [Position(), Position(0, 50, 1), Position(60, 50, 1), Position(60, 90, 1), Position(60, 90, 2)]
    passed += [Position(100, 90, 2), Position(120, 90, 2), Position(120, 130, 1)]
    assert sorted(passed) == passed


VISIBILITY = SnapshotVisibility(xmin=100, xmax=110, in_progress=frozenset({100, 104}))


@pytest.mark.parametrize(
    ("xid", "seen"),
    [
        (3, True),
        (99, True),
        (100, False),
        (101, True),
        (104, False),
        (109, True),
        (110, False),
        (111, False),
        (2**31, False),
    ],
)
def test_what_a_snapshot_shows(xid, seen):
    assert VISIBILITY.sees(xid) == seen


@pytest.mark.parametrize("epoch", [1, 7, 2**31])
def test_only_the_lower_32_bits_of_an_id_come_with_the_stream(epoch):
    shift = epoch * MODULUS
    visibility = SnapshotVisibility(100 + shift, 110 + shift, frozenset({100 + shift, 104 + shift}))
    seen = [xid for xid in range(95, 115) if visibility.sees(xid)]
    assert seen == [95, 96, 97, 98, 99, 101, 102, 103, 105, 106, 107, 108, 109]
    assert visibility.sees(MODULUS - 1)  # of the epoch before


def test_a_snapshot_across_the_wrap_around():
    visibility = SnapshotVisibility(MODULUS - 4, MODULUS + 6, frozenset({MODULUS - 4, MODULUS + 3}))
    assert visibility.sees(MODULUS - 5)
    assert not visibility.sees(MODULUS - 4)
    assert visibility.sees(MODULUS - 1)
    assert not visibility.sees(3)
    assert visibility.sees(5)
    assert not visibility.sees(6)
    assert not visibility.sees(1000)
