"""What a record tells a closer: our encoder's events as they come, and everything else without a crash."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

from cdcwatch.deadline.event import EventEncoder, Gap, Stamp
from cdcwatch.deadline.rule import CANCELLED, EXPIRED, MOVED, SCHEDULED, Derived
from cdcwatch.decode.change import Row
from cdcwatch.handoff.heard import Interpreter, Skipped, TableWide
from cdcwatch.instant import NEGATIVE_INFINITY_US
from cdcwatch.table import ClaimStatuses, Column
from tests.fakes.table import WATCHED

NOW_US = 850_000_000_123_456
STAMP = Stamp.of(0x1A2B390, NOW_US)
PENDING = Row(NOW_US, "pending", 7)


def told(derived, *, key=42, table=WATCHED, encoded_for=None):
    encoder = EventEncoder(encoded_for or table, system_identifier="7", database="shop")
    event = encoder.change(key, derived, STAMP, 1)
    return Interpreter(table, "shop").read(event.key, event.value)


def changed(**fields):
    """A scheduled event with other fields."""
    event = EventEncoder(WATCHED, system_identifier="7", database="shop").change(
        42, Derived(SCHEDULED, PENDING, None), STAMP, 1
    )
    return json.dumps({**json.loads(event.value), **fields}).encode()


@pytest.fixture
def interpreter():
    return Interpreter(WATCHED, "shop")


@pytest.mark.parametrize("kind", [SCHEDULED, MOVED])
def test_a_deadline(kind):
    assert told(Derived(kind, PENDING, None)) == (42, NOW_US, 7)
    assert told(Derived(kind, Row(NEGATIVE_INFINITY_US, "pending", 7), None)) == (42, NEGATIVE_INFINITY_US, 7)


def test_the_end_of_one():
    assert told(Derived(CANCELLED, Row(NOW_US, "paid", 8), None, "paid")) == (42, None, 0)
    assert told(Derived(CANCELLED, None, None, "deleted")) == (42, None, 0)
    assert told(Derived(EXPIRED, Row(NOW_US, "expired", 8), None)) == (42, None, 0)


def test_an_order_that_is_claimed_is_not_waited_for():
    table = replace(WATCHED, claim=ClaimStatuses("closing", "close_failed"))
    assert told(Derived(SCHEDULED, Row(NOW_US, "closing", 8), None), table=table) == (42, None, 0)


def test_tables_of_every_kind():
    text_key = replace(WATCHED, key=(Column("code", "text"),))
    assert told(Derived(SCHEDULED, PENDING, None), key="42", table=text_key) == ("42", NOW_US, 7)
    two = replace(WATCHED, key=(Column("shop", "text"), Column("id", "bigint")))
    assert told(Derived(SCHEDULED, PENDING, None), key='["é","7"]', table=two) == ('["é","7"]', NOW_US, 7)
    bigint = replace(WATCHED, version=Column("version", "bigint"))
    assert told(Derived(SCHEDULED, Row(NOW_US, "pending", 2**53 + 1), None), table=bigint) == (42, NOW_US, 2**53 + 1)
    bare = replace(WATCHED, version=None, status=None, open=frozenset())
    assert told(Derived(SCHEDULED, Row(NOW_US, None, None), None), table=bare) == (42, NOW_US, 0)


def test_what_is_about_the_whole_table(interpreter):
    encoder = EventEncoder(WATCHED, system_identifier="7", database="shop")
    truncated = encoder.table_wide(Derived(CANCELLED, None, None, "truncated"), STAMP, 1)
    assert interpreter.read(None, truncated.value) is TableWide.EMPTIED
    gap = encoder.gap(Gap("lost", None, 0x1A2B390), 0x1A2B390, NOW_US)
    assert interpreter.read(gap.record_key, gap.value) is TableWide.GAP


def test_another_server_tells_of_the_same_table_and_others_of_another(interpreter):
    assert interpreter.read(b"42", changed(source="cdcwatch:8/shop/public.orders")) == (42, NOW_US, 7)
    for source in ("cdcwatch:7/shop/public.carts", "cdcwatch:7/other/public.orders", "orders", ""):
        assert interpreter.read(b"42", changed(source=source)) is Skipped.FOREIGN


def test_what_a_later_version_may_tell(interpreter):
    assert interpreter.read(b"42", changed(type="deadline.postponed")) is Skipped.UNKNOWN_TYPE
    assert interpreter.read(b"42", changed(extra={"new": 1})) == (42, NOW_US, 7)


@pytest.mark.parametrize("value", [None, b""])
def test_a_tombstone(interpreter, value):
    assert interpreter.read(b"42", value) is Skipped.TOMBSTONE


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"42", b"\xff\xfe"),
        (b"42", b"no JSON"),
        (b"42", b"[]"),
        (b"42", b"1"),
        (b"42", b"{}"),
        (b"forty", changed()),
        (b"\xff", changed()),
        (None, changed()),
        (b"42", changed(source=7)),
        (b"42", changed(type=[])),
        (b"42", changed(data=None)),
        (b"42", changed(data=[])),
        (b"42", changed(data={"status": "pending"})),
        (b"42", changed(data={"status": [], "deadline": "2026-11-30T10:15:00.000000Z", "version": 1})),
        (b"42", changed(data={"status": "pending", "deadline": None, "version": 1})),
        (b"42", changed(data={"status": "pending", "deadline": "soon", "version": 1})),
        (b"42", changed(data={"status": "pending", "deadline": 7, "version": 1})),
        (b"42", changed(data={"status": "pending", "deadline": "2026-11-30T10:15:00.000000Z", "version": "x"})),
        (b"42", changed(data={"status": "pending", "deadline": "2026-11-30T10:15:00.000000Z", "version": 1e400})),
        (b"42", changed(data={"status": "pending", "deadline": "infinity", "version": 1})[:-1]),
    ],
)
def test_what_nobody_understands(interpreter, key, value):
    assert interpreter.read(key, value) is Skipped.MALFORMED
