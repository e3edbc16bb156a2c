"""What a change means, as a table of the old and the new row."""

import pytest
from msgspec.structs import replace

from cdcwatch.deadline.rule import (
    CANCELLED,
    EXPIRED,
    MOVED,
    REASON_CLEARED,
    REASON_DELETED,
    REASON_TRUNCATED,
    SCHEDULED,
    DeadlineRule,
    Derived,
)
from cdcwatch.decode.change import Row
from cdcwatch.instant import INFINITY_US, NEGATIVE_INFINITY_US
from cdcwatch.table import ClaimStatuses
from tests.fakes.table import WATCHED

RULE = DeadlineRule(WATCHED)
TWO_OPEN = DeadlineRule(replace(WATCHED, open=frozenset({"pending", "reserved"})))
BARE = DeadlineRule(replace(WATCHED, status=None, version=None, open=frozenset()))


def row(deadline_us=1000, status="pending", version=3):
    return Row(deadline_us, status, version)


OPEN, LATER = row(), row(2000)
UNSET, NEVER = row(None), row(INFINITY_US)
PAID, CLOSED, NO_STATUS = row(status="paid"), row(status="expired"), row(status=None)


def updated(rule, old, new):
    return rule.updated(old, new, rule.live_us(new))


@pytest.mark.parametrize(
    ("at_hand", "live_us"),
    [
        (OPEN, 1000),
        (row(0), 0),
        (row(NEGATIVE_INFINITY_US), NEGATIVE_INFINITY_US),
        (UNSET, None),
        (NEVER, None),
        (PAID, None),
        (CLOSED, None),
        (NO_STATUS, None),
        (row(status="Pending"), None),
    ],
)
def test_which_deadlines_are_live(at_hand, live_us):
    assert RULE.live_us(at_hand) == live_us


@pytest.mark.parametrize(
    ("new", "derived"),
    [
        (OPEN, Derived(SCHEDULED, OPEN, None)),
        (row(NEGATIVE_INFINITY_US), Derived(SCHEDULED, row(NEGATIVE_INFINITY_US), None)),
        (UNSET, None),
        (NEVER, None),
        (PAID, None),
        (CLOSED, None),
    ],
)
def test_an_insert(new, derived):
    assert RULE.inserted(new, RULE.live_us(new)) == derived


@pytest.mark.parametrize(
    ("old", "new", "derived"),
    [
        (OPEN, OPEN, None),
        (OPEN, row(version=4), None),  # another column's update
        (OPEN, LATER, Derived(MOVED, LATER, 1000)),
        (LATER, OPEN, Derived(MOVED, OPEN, 2000)),
        (OPEN, PAID, Derived(CANCELLED, PAID, 1000, "paid")),
        (OPEN, row(2000, "paid"), Derived(CANCELLED, row(2000, "paid"), 1000, "paid")),
        (OPEN, CLOSED, Derived(EXPIRED, CLOSED, 1000)),
        (OPEN, row(None, "expired"), Derived(EXPIRED, row(None, "expired"), 1000)),
        (OPEN, NO_STATUS, Derived(CANCELLED, NO_STATUS, 1000, "status_cleared")),
        (OPEN, UNSET, Derived(CANCELLED, UNSET, 1000, REASON_CLEARED)),
        (OPEN, NEVER, Derived(CANCELLED, NEVER, 1000, REASON_CLEARED)),
        (UNSET, OPEN, Derived(SCHEDULED, OPEN, None)),
        (NEVER, OPEN, Derived(SCHEDULED, OPEN, None)),
        (PAID, OPEN, Derived(SCHEDULED, OPEN, None)),
        (CLOSED, LATER, Derived(SCHEDULED, LATER, None)),
        (PAID, CLOSED, None),
        (PAID, row(2000, "paid"), None),
        (UNSET, PAID, None),
        (UNSET, CLOSED, None),
        (NEVER, UNSET, None),
        (row(0), row(1), Derived(MOVED, row(1), 0)),
        (row(NEGATIVE_INFINITY_US), OPEN, Derived(MOVED, OPEN, NEGATIVE_INFINITY_US)),
    ],
)
def test_an_update_of_a_known_row(old, new, derived):
    assert updated(RULE, old, new) == derived


@pytest.mark.parametrize(
    ("new", "derived"),
    [
        (OPEN, Derived(SCHEDULED, OPEN, None)),
        (PAID, Derived(CANCELLED, PAID, None, "paid")),
        (CLOSED, Derived(EXPIRED, CLOSED, None)),
        (UNSET, Derived(CANCELLED, UNSET, None, REASON_CLEARED)),
        (NEVER, Derived(CANCELLED, NEVER, None, REASON_CLEARED)),
        (NO_STATUS, Derived(CANCELLED, NO_STATUS, None, "status_cleared")),
    ],
)
def test_an_update_of_an_unknown_row_gives_the_state_it_leaves(new, derived):
    assert updated(RULE, None, new) == derived


def test_one_open_status_to_another_changes_nothing():
    reserved = row(status="reserved")
    assert updated(TWO_OPEN, OPEN, reserved) is None
    assert updated(TWO_OPEN, OPEN, row(2000, "reserved")) == Derived(MOVED, row(2000, "reserved"), 1000)
    assert updated(TWO_OPEN, reserved, row(None, "reserved")).reason == REASON_CLEARED


@pytest.mark.parametrize(
    ("old", "derived"),
    [
        (None, Derived(CANCELLED, None, None, REASON_DELETED)),
        (OPEN, Derived(CANCELLED, None, 1000, REASON_DELETED)),
        (row(0), Derived(CANCELLED, None, 0, REASON_DELETED)),
        (PAID, None),
        (CLOSED, None),
        (UNSET, None),
        (NEVER, None),
    ],
)
def test_a_delete(old, derived):
    assert RULE.deleted(old) == derived


def test_a_truncate():
    assert RULE.truncated() == Derived(CANCELLED, None, None, REASON_TRUNCATED)


def test_without_a_status_every_row_with_a_deadline_is_open():
    bare, unset, later = Row(1000, None, None), Row(None, None, None), Row(2000, None, None)
    assert BARE.live_us(bare) == 1000
    assert BARE.inserted(bare, 1000) == Derived(SCHEDULED, bare, None)
    assert updated(BARE, bare, later) == Derived(MOVED, later, 1000)
    assert updated(BARE, bare, unset) == Derived(CANCELLED, unset, 1000, REASON_CLEARED)
    assert updated(BARE, None, unset) == Derived(CANCELLED, unset, None, REASON_CLEARED)
    assert BARE.deleted(bare) == Derived(CANCELLED, None, 1000, REASON_DELETED)


def test_orders_that_never_come_are_counted_once_each():
    rule = DeadlineRule(WATCHED)
    paid = Row(INFINITY_US, "paid", 0)
    for old, new in [(UNSET, NEVER), (NEVER, OPEN), (NEVER, NEVER), (OPEN, paid), (None, NEVER)]:
        rule.updated(old, new, rule.live_us(new))
    rule.deleted(NEVER)
    assert rule.never_due_count == 3


CLAIMING = DeadlineRule(replace(WATCHED, claim=ClaimStatuses("closing", "close_failed")))
CLAIMED, GIVEN_UP = row(status="closing", version=4), row(status="close_failed", version=5)


@pytest.mark.parametrize(
    ("old", "new", "derived"),
    [
        (OPEN, CLAIMED, None),
        (CLAIMED, OPEN, None),
        (CLAIMED, CLOSED, Derived(EXPIRED, CLOSED, 1000)),
        (CLAIMED, GIVEN_UP, Derived(CANCELLED, GIVEN_UP, 1000, "close_failed")),
        (CLAIMED, PAID, Derived(CANCELLED, PAID, 1000, "paid")),
        (CLAIMED, row(2000, status="closing"), Derived(MOVED, row(2000, status="closing"), 1000)),
        (GIVEN_UP, OPEN, Derived(SCHEDULED, OPEN, None)),
        (OPEN, CLOSED, Derived(EXPIRED, CLOSED, 1000)),
        (None, CLAIMED, Derived(SCHEDULED, CLAIMED, None)),
        (None, CLOSED, Derived(EXPIRED, CLOSED, None)),
        (None, GIVEN_UP, Derived(CANCELLED, GIVEN_UP, None, "close_failed")),
    ],
)
def test_a_claimed_order_is_told_as_live_until_its_close_has_ended(old, new, derived):
    assert updated(CLAIMING, old, new) == derived


def test_a_read_of_the_table_takes_a_claimed_order_for_open():
    assert CLAIMING.inserted(CLAIMED, CLAIMING.live_us(CLAIMED)) == Derived(SCHEDULED, CLAIMED, None)
    assert CLAIMING.restated(1000, CLAIMED) is None
    assert CLAIMING.vanished(1000, CLOSED) == Derived(EXPIRED, CLOSED, 1000)
    assert CLAIMING.deleted(CLAIMED) == Derived(CANCELLED, None, 1000, REASON_DELETED)


def test_without_claims_that_status_is_like_any_other():
    assert updated(RULE, OPEN, CLAIMED) == Derived(CANCELLED, CLAIMED, 1000, "closing")


def test_a_row_that_a_close_deletes_has_expired_unless_it_was_dead_before():
    assert RULE.closed(OPEN) == Derived(EXPIRED, None, 1000)
    assert RULE.closed(None) == Derived(EXPIRED, None, None)
    assert RULE.closed(PAID) is None
    assert BARE.closed(row(status=None)) == Derived(EXPIRED, None, 1000)


def test_where_closes_delete_a_deadline_that_is_cleared_is_nobodys_close():
    cleared = Derived(CANCELLED, None, 1000, REASON_CLEARED)
    deleting = DeadlineRule(replace(WATCHED, status=None, version=None, open=frozenset(), deletes=True))
    assert BARE.is_close(cleared)
    assert not deleting.is_close(cleared)
    assert deleting.is_close(Derived(EXPIRED, None, 1000))
