"""The demo's comparison can fail: it notices what is missing, twice there, early, moved, or otherwise not as it was."""

from __future__ import annotations

import json

import pytest

from cdcwatch.deadline.rule import CANCELLED, EXPIRED, MOVED, SCHEDULED
from cdcwatch.demo.order import OrderEvent, State, Step
from cdcwatch.demo.tally import Tally
from cdcwatch.instant import format_instant
from cdcwatch.lsn import format_lsn

DEADLINE_US = 800_000_000_000_000
LATER_US = DEADLINE_US + 5_000_000


def record(
    order_id: int, kind: str, lsn: int, *, deadline_us: int | None = DEADLINE_US, status: str | None = "pending",
    version: int | None = 0, reason: str | None = None, time_us: int = DEADLINE_US + 2000,
) -> bytes:  # fmt: skip
    return json.dumps(
        {
            "id": f"{format_lsn(lsn)}-1",
            "type": kind,
            "subject": str(order_id),
            "time": format_instant(time_us),
            "data": {
                "deadline": None if deadline_us is None else format_instant(deadline_us),
                "status": status,
                "version": version,
                **({"reason": reason} if reason else {}),
            },
        }
    ).encode()


class Shop:
    """Four orders: 1 expires, 2 is moved and paid, 3 is deleted, 4 waits. `records` is a faithful topic."""

    def __init__(self) -> None:
        self.tally = Tally()
        for order_id in (1, 2, 3, 4):
            self.tally.did(order_id, Step(SCHEDULED, DEADLINE_US, 0))
        self.tally.did(2, Step(MOVED, LATER_US, 1))
        self.tally.did(2, Step(CANCELLED, LATER_US, 2, "paid"))
        self.tally.did(3, Step(CANCELLED, None, None, "deleted"))
        self.records = [record(order_id, SCHEDULED, 100 + order_id) for order_id in (1, 2, 3, 4)]
        self.records += [
            record(2, MOVED, 110, deadline_us=LATER_US, version=1),
            record(2, CANCELLED, 120, deadline_us=LATER_US, status="paid", version=2, reason="paid"),
            record(3, CANCELLED, 130, deadline_us=None, status=None, version=None, reason="deleted"),
            record(1, EXPIRED, 140, status="expired", version=1),
        ]
        self.rows = {
            1: State("expired", 1, DEADLINE_US),
            2: State("paid", 2, LATER_US),
            4: State("pending", 0, DEADLINE_US),
        }

    def differing(self) -> set[str]:
        """What doesn't agree, with the topic and the table as they are now."""
        for value in self.records:
            self.tally.told(OrderEvent.read(value, partition=0))
        comparisons, problems = self.tally.compare(self.rows.items())
        differing = {one.what for one in comparisons if not one.agrees}
        assert bool(problems) <= bool(differing)
        return differing


@pytest.fixture
def shop() -> Shop:
    return Shop()


EACH_ONCE = "orders whose events are not each change once, in order"
LAST_EVENT = "rows that differ from their last event"
DUPLICATES = "duplicates in the topic"
ORDER = "events out of order within their key"


def test_a_faithful_topic_agrees_and_ended_orders_are_let_go(shop: Shop) -> None:
    assert shop.differing() == set()
    assert shop.tally.open_count == 1


def test_it_makes_no_difference_which_book_is_first(shop: Shop) -> None:
    late = Tally()
    first, shop.tally = shop.tally, late
    for value in shop.records:
        late.told(OrderEvent.read(value, partition=0))
    for order_id, account in first._accounts.items():
        for step in account.done:
            late.did(order_id, step)
    shop.records = []
    assert shop.differing() == set()


@pytest.mark.parametrize("place", range(8))
def test_any_missing_event_is_noticed(shop: Shop, place: int) -> None:
    del shop.records[place]
    assert EACH_ONCE in shop.differing()


@pytest.mark.parametrize("place", range(8))
@pytest.mark.parametrize("at_once", [True, False])
def test_any_duplicate_is_noticed(shop: Shop, place: int, at_once: bool) -> None:
    shop.records.insert(place if at_once else 8, shop.records[place])
    assert DUPLICATES in shop.differing()


def test_an_early_close_is_noticed(shop: Shop) -> None:
    shop.records[-1] = record(1, EXPIRED, 140, status="expired", version=1, time_us=DEADLINE_US - 1)
    assert "closes committed before their deadline" in shop.differing()


def test_events_in_the_wrong_order_are_noticed(shop: Shop) -> None:
    shop.records[4:6] = reversed(shop.records[4:6])
    assert {ORDER, EACH_ONCE} <= shop.differing()


def test_a_key_in_two_partitions_is_noticed(shop: Shop) -> None:
    last = shop.records.pop()
    shop.tally.told(OrderEvent.read(shop.records.pop(0), partition=0))
    shop.tally.told(OrderEvent.read(last, partition=1))
    assert ORDER in shop.differing()


def test_an_event_of_what_never_was_is_noticed(shop: Shop) -> None:
    shop.records.append(record(9, SCHEDULED, 150))
    assert EACH_ONCE in shop.differing()


def test_an_event_after_the_end_is_noticed(shop: Shop) -> None:
    shop.records.append(record(1, CANCELLED, 150, status="paid", version=2, reason="paid"))
    assert "differences in all" in shop.differing()


def test_an_order_closed_in_the_topic_alone_is_noticed(shop: Shop) -> None:
    shop.rows[1] = State("pending", 0, DEADLINE_US)
    assert LAST_EVENT in shop.differing()


def test_an_order_closed_in_the_table_alone_is_noticed(shop: Shop) -> None:
    shop.rows[4] = State("expired", 1, DEADLINE_US)
    assert {LAST_EVENT, EACH_ONCE} <= shop.differing()


def test_another_deadline_or_version_is_noticed(shop: Shop) -> None:
    shop.rows[2] = State("paid", 2, LATER_US + 1)
    shop.rows[4] = State("pending", 1, DEADLINE_US)
    assert LAST_EVENT in shop.differing()


def test_another_deadline_in_the_topic_is_noticed(shop: Shop) -> None:
    shop.records[4] = record(2, MOVED, 110, deadline_us=LATER_US + 1, version=1)
    assert EACH_ONCE in shop.differing()


def test_a_row_that_should_be_gone_is_noticed(shop: Shop) -> None:
    shop.rows[3] = State("pending", 0, DEADLINE_US)
    assert LAST_EVENT in shop.differing()


def test_a_row_that_is_lost_is_noticed(shop: Shop) -> None:
    del shop.rows[4]
    assert "orders left: the shop's and the table's" in shop.differing()


def test_a_record_that_is_no_event_is_noticed(shop: Shop) -> None:
    shop.tally.unreadable("partition 0, offset 7")
    assert "differences in all" in shop.differing()
