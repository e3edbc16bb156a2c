import pytest
from msgspec.structs import replace

from cdcwatch.close.outcome import Action, CurrentRow, Outcome, classify, consequence
from cdcwatch.deadline.schedule import Due
from cdcwatch.instant import INFINITY_US
from cdcwatch.table import ClaimStatuses
from tests.fakes.table import WATCHED

DUE = Due(1, 1000, 5)
CLAIMING = replace(WATCHED, claim=ClaimStatuses("closing", "close_failed"))
BARE = replace(WATCHED, status=None, version=None, open=frozenset())


@pytest.mark.parametrize(
    ("row", "table", "outcome", "then"),
    [
        (None, WATCHED, Outcome.GONE, None),
        (CurrentRow("paid", 6, 1000, True), WATCHED, Outcome.PAID, None),
        (CurrentRow("expired", 6, 1000, True), WATCHED, Outcome.ALREADY_CLOSED, None),
        (CurrentRow("expired", 6, None, False), WATCHED, Outcome.ALREADY_CLOSED, None),
        (CurrentRow("pending", 5, None, False), WATCHED, Outcome.CLEARED, None),
        (CurrentRow("pending", 5, INFINITY_US, False), WATCHED, Outcome.CLEARED, None),
        (CurrentRow("pending", 5, 2000, False), WATCHED, Outcome.MOVED, (Action.REARM, Due(1, 2000, 5))),
        (CurrentRow("pending", 6, 1000, True), WATCHED, Outcome.MOVED, (Action.REARM, Due(1, 1000, 6))),
        (CurrentRow("pending", 5, 900, True), WATCHED, Outcome.MOVED, (Action.REARM, Due(1, 900, 5))),
        (CurrentRow("pending", 5, 1000, False), WATCHED, Outcome.NOT_DUE, (Action.REARM, DUE)),
        (CurrentRow("pending", 5, 1000, True), WATCHED, Outcome.LOCKED, (Action.RETRY, DUE)),
        (CurrentRow(None, 5, 1000, True), WATCHED, Outcome.PAID, None),
        (CurrentRow("closing", 6, 1000, True), CLAIMING, Outcome.CLAIMED, None),
        (CurrentRow("close_failed", 7, 1000, True), CLAIMING, Outcome.CLAIMED, None),
        (CurrentRow("expired", 7, 1000, True), CLAIMING, Outcome.ALREADY_CLOSED, None),
        (CurrentRow("closing", 6, 1000, True), WATCHED, Outcome.PAID, None),
        (CurrentRow(None, 5, 1000, True), BARE, Outcome.LOCKED, (Action.RETRY, DUE)),
        (CurrentRow(None, 5, None, False), BARE, Outcome.CLEARED, None),
    ],
)
def test_what_a_row_means(row, table, outcome, then):
    assert classify(DUE, row, table) is outcome
    assert consequence(outcome, DUE, row) == (then or (Action.NOTHING, DUE))


def test_a_failure_is_tried_again():
    assert consequence(Outcome.FAILED, DUE, None) == (Action.RETRY, DUE)
    assert consequence(Outcome.DEFERRED, DUE, None) == (Action.GIVE_BACK, DUE)
