import orjson
import pytest
from msgspec.structs import replace

from cdcwatch.deadline.event import CONTENT_TYPE, Event, EventEncoder, Stamp, for_partition
from cdcwatch.deadline.rule import CANCELLED, EXPIRED, MOVED, SCHEDULED, Derived
from cdcwatch.decode.change import Row
from cdcwatch.instant import INFINITY_US, NEGATIVE_INFINITY_US, parse_instant
from cdcwatch.table import Column
from tests.fakes.table import WATCHED

DUE_US = parse_instant("2026-11-30 10:15:00+00")
STAMP = Stamp.of(0x1A2B390, parse_instant("2026-11-30 10:00:00.000123+00"))
SCHEDULE = Derived(SCHEDULED, Row(DUE_US, "pending", 0), None)


def encoder(**changes):
    return EventEncoder(replace(WATCHED, **changes), system_identifier="7301234567890123456", database="shop")


def value(event):
    return orjson.loads(event.value)


def test_the_bytes_of_an_event():
    event = encoder().change(123, SCHEDULE, STAMP, 2)
    assert event == Event(
        b"123",
        b'{"specversion":"1.0","id":"0/1A2B390-2","source":"cdcwatch:7301234567890123456/shop/public.orders",'
        b'"type":"deadline.scheduled","subject":"123","time":"2026-11-30T10:00:00.000123Z",'
        b'"data":{"key":{"id":"123"},"deadline":"2026-11-30T10:15:00.000000Z","previous_deadline":null,'
        b'"status":"pending","version":0,"commit_lsn":"0/1A2B390","snapshot":false}}',
    )


def test_the_bytes_of_a_cancellation():
    event = encoder().change(-7, Derived(CANCELLED, Row(None, "paid", 4), DUE_US, "paid"), STAMP, 1)
    assert event.value.endswith(
        b'"data":{"key":{"id":"-7"},"deadline":null,"previous_deadline":"2026-11-30T10:15:00.000000Z",'
        b'"reason":"paid","status":"paid","version":4,"commit_lsn":"0/1A2B390","snapshot":false}}'
    )
    assert value(event)["type"] == "deadline.cancelled"


@pytest.mark.parametrize(
    ("derived", "expected"),
    [
        (
            Derived(MOVED, Row(DUE_US + 1, "pending", 5), DUE_US),
            {
                "deadline": "2026-11-30T10:15:00.000001Z",
                "previous_deadline": "2026-11-30T10:15:00.000000Z",
                "status": "pending",
                "version": 5,
            },
        ),
        (
            Derived(EXPIRED, Row(DUE_US, "expired", 6), None),
            {"deadline": "2026-11-30T10:15:00.000000Z", "previous_deadline": None, "status": "expired", "version": 6},
        ),
        (
            Derived(CANCELLED, None, None, "deleted"),
            {"deadline": None, "previous_deadline": None, "reason": "deleted", "status": None, "version": None},
        ),
        (
            Derived(CANCELLED, Row(INFINITY_US, None, None), NEGATIVE_INFINITY_US, "deadline_cleared"),
            {
                "deadline": "infinity",
                "previous_deadline": "-infinity",
                "reason": "deadline_cleared",
                "status": None,
                "version": None,
            },
        ),
        (
            Derived(SCHEDULED, Row(0, 'ge"wählt\\\n😀', 1), None),
            {
                "deadline": "2000-01-01T00:00:00.000000Z",
                "previous_deadline": None,
                "status": 'ge"wählt\\\n😀',
                "version": 1,
            },
        ),
    ],
)
def test_data(derived, expected):
    event = value(encoder().change(123, derived, STAMP, 2))
    assert event["type"] == derived.type
    assert event["data"] == {**expected, "key": {"id": "123"}, "commit_lsn": "0/1A2B390", "snapshot": False}


@pytest.mark.parametrize("number", [2**63 - 1, 2**53 + 1, 0, -(2**63)])
def test_64_bit_integers_are_texts(number):
    big = encoder(version=Column("version", "bigint"))
    event = big.change(number, Derived(SCHEDULED, Row(DUE_US, "pending", number), None), STAMP, 1)
    data = value(event)["data"]
    assert (event.key, data["key"], data["version"]) == (str(number).encode(), {"id": str(number)}, str(number))


def test_a_key_of_several_columns():
    table = encoder(key=(Column("shop", "uuid"), Column('the "no"', "numeric")))
    event = table.change('["0c7e","1.10"]', SCHEDULE, STAMP, 1)
    assert event.key == b'["0c7e","1.10"]'
    assert value(event)["subject"] == '["0c7e","1.10"]'
    assert value(event)["data"]["key"] == {"shop": "0c7e", 'the "no"': "1.10"}


@pytest.mark.parametrize("key", ['"', "\\", "é😀", "a\nb", "\x01", "", "null", '["x"]'])
def test_a_text_key_of_any_characters(key):
    event = encoder(key=(Column('"ç"', "text"),)).change(key, SCHEDULE, STAMP, 1)
    assert event.key == key.encode()
    assert value(event)["subject"] == key
    assert value(event)["data"]["key"] == {'"ç"': key}


def test_names_with_quotes_in_the_source():
    event = encoder(schema='My "Shop"', name="Ör\\der").change(1, SCHEDULE, STAMP, 1)
    assert value(event)["source"] == 'cdcwatch:7301234567890123456/shop/My "Shop".Ör\\der'


def test_a_snapshot_event():
    stamp = Stamp.of_snapshot(0x1A2B390, parse_instant("2026-11-30 10:00:00.000123+00"))
    event = value(encoder().snapshot(123, SCHEDULE, stamp))
    assert event["id"] == "snapshot-0/1A2B390-123"
    assert event["data"]["snapshot"] is True
    quoted = value(encoder(key=(Column("k", "text"),)).snapshot('a"b', SCHEDULE, stamp))
    assert quoted["id"] == 'snapshot-0/1A2B390-a"b'


def test_a_truncate_speaks_of_the_whole_table_with_an_id_for_each_partition():
    event = encoder().table_wide(Derived(CANCELLED, None, None, "truncated"), STAMP, 3)
    assert event.key is None
    assert (value(event)["subject"], value(event)["data"]["key"]) == ("*", None)
    copies = [orjson.loads(for_partition(event.value, partition)) for partition in range(12)]
    assert [copy.pop("id") for copy in copies] == [f"0/1A2B390-3-p{partition}" for partition in range(12)]
    original = value(event)
    del original["id"]
    assert all(copy == original for copy in copies)


def test_a_copy_for_a_partition_finds_the_id_whatever_the_names_are():
    event = encoder(schema='","source":', name='","source":"').table_wide(
        Derived(CANCELLED, None, None, "truncated"), STAMP, 3
    )
    copy = orjson.loads(for_partition(event.value, 2))
    assert (copy["id"], copy["source"]) == ("0/1A2B390-3-p2", value(event)["source"])


def test_the_content_type_is_the_cloud_events_one():
    assert CONTENT_TYPE == b"application/cloudevents+json; charset=UTF-8"
