"""What of a record becomes an event, and what becomes none."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from cdcwatch.consume import DeadlineEvent, Event, NotAnEventError, Record, decode_cloudevent
from cdcwatch.deadline.event import CONTENT_TYPE, EventEncoder, Gap
from cdcwatch.deadline.rule import CANCELLED, SCHEDULED, Derived
from cdcwatch.instant import NEGATIVE_INFINITY_US, parse_instant
from tests.unit.test_preflight import WATCHED

NEEDED = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


def structured(value: Any, **headers: str) -> Record:
    data = value if isinstance(value, bytes) else json.dumps(value).encode()
    return Record("t", 0, 7, value=data, headers=tuple((name.replace("_", "-"), text.encode()) for name, text in headers.items()))  # fmt: skip


def binary(value: bytes | None, **headers: str) -> Record:
    given = {"ce_specversion": "1.0", "ce_id": "1", "ce_source": "/s", "ce_type": "t", **headers}
    return Record("t", 0, 7, value=value, headers=tuple((name.replace("content_type", "content-type"), text.encode()) for name, text in given.items()))  # fmt: skip


def test_structured_with_and_without_the_header_that_says_so() -> None:
    said = {
        **NEEDED, "subject": "s", "time": "2026-11-30T10:15:00.123456Z", "datacontenttype": "application/json",
        "dataschema": "/schema", "tenant": 7, "data": {"n": [1, None]},
    }  # fmt: skip
    for record in (structured(said), structured(said, content_type="application/cloudevents+json; charset=UTF-8")):
        event = decode_cloudevent(record)
        assert event == Event(
            id="1", source="/s", type="t", subject="s", time=datetime(2026, 11, 30, 10, 15, 0, 123456, UTC), data={"n": [1, None]},
            data_content_type="application/json", data_schema="/schema", extensions={"tenant": 7}, record=record,
        )  # fmt: skip
        assert event.identity == ("/s", "1")
    assert decode_cloudevent(structured({**NEEDED, "data_base64": "AP8="})).data == b"\x00\xff"
    assert decode_cloudevent(structured(NEEDED)).data is None


@pytest.mark.parametrize(
    ("value", "content_type", "data"),
    [
        (b'{"a":1}', "application/json", {"a": 1}),
        (b'{"a":1}', "application/vnd.shop+JSON; charset=utf-8", {"a": 1}),
        ("ü".encode(), "text/plain", "ü"),
        (b"\xff", "application/octet-stream", b"\xff"),
        (None, "application/json", None),
        (b"", "text/plain", ""),
    ],
)
def test_binary(value: bytes | None, content_type: str, data: Any) -> None:
    event = decode_cloudevent(binary(value, content_type=content_type, ce_subject="s", ce_tenant="7"))
    assert (event.data, event.subject, event.extensions, event.data_content_type) == (
        data,
        "s",
        {"tenant": "7"},
        content_type,
    )
    assert decode_cloudevent(binary(b"{}")).data == b"{}", "nothing says that it is JSON"


@pytest.mark.parametrize(
    "record",
    [
        Record("t", 0, 0),
        structured(b""),
        structured(b"no JSON"),
        structured(b"\xff"),
        structured([NEEDED]),
        structured({**NEEDED, "specversion": "0.3"}),
        structured({**NEEDED, "id": ""}),
        structured({**NEEDED, "id": 5}),
        structured({name: value for name, value in NEEDED.items() if name != "source"}),
        structured({**NEEDED, "subject": 1}),
        structured({**NEEDED, "time": "yesterday"}),
        structured({**NEEDED, "time": "2026-13-30T10:15:00Z"}),
        structured({**NEEDED, "data_base64": "?"}),
        structured([NEEDED], content_type="application/cloudevents-batch+json"),
        structured(NEEDED, content_type="application/cloudevents+avro"),
        binary(b"{", content_type="application/json"),
        binary(b"\xff", content_type="text/plain"),
        binary(b"{}", ce_specversion="2.0"),
        Record("t", 0, 0, value=b"{}", headers=(("ce_specversion", b"1.0"), ("ce_id", b"\xff"))),
    ],
)
def test_what_is_no_event_says_why_without_quoting_it(record: Record) -> None:
    with pytest.raises(NotAnEventError) as told:
        decode_cloudevent(record)
    assert "yesterday" not in str(told.value)


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-11-30t10:15:00z", datetime(2026, 11, 30, 10, 15, tzinfo=UTC)),
        ("2026-11-30T10:15:00.1-05:30", datetime(2026, 11, 30, 15, 45, 0, 100_000, UTC)),
        ("2026-11-30T10:15:00.123456789Z", datetime(2026, 11, 30, 10, 15, 0, 123456, UTC)),
        ("2016-12-31T23:59:60Z", datetime(2017, 1, 1, tzinfo=UTC)),
    ],
)
def test_times_as_rfc_3339_has_them(text: str, moment: datetime) -> None:
    assert decode_cloudevent(structured({**NEEDED, "time": text})).time == moment


# -- what cdcwatch publishes -------------------------------------------------------------------------------------------


def published(value: bytes) -> DeadlineEvent:
    """As the encoder makes it: the view follows what is really in the topic."""
    return DeadlineEvent.of(
        decode_cloudevent(Record("t", 0, 0, value=value, headers=(("content-type", CONTENT_TYPE),)))
    )


def test_the_typed_view_of_what_the_encoder_writes() -> None:
    encoder = EventEncoder(WATCHED, system_identifier="7", database="shop")
    us = parse_instant("2026-11-30 10:15:00.123456+00")
    stamp = encoder.stamp(0x1A2B390, us)
    live = published(encoder.change(5, Derived(SCHEDULED, (us, "pending", 3), us - 1, None), stamp, 2).value)
    assert live.deadline == live.event.time == datetime(2026, 11, 30, 10, 15, 0, 123456, UTC)
    assert live.deadline_us == 1_796_033_700_123_456
    assert live.previous_deadline_us == live.deadline_us - 1
    assert (live.key, live.status, live.version, live.snapshot, live.reason) == ({"id": "5"}, "pending", 3, False, None)
    assert (live.commit_lsn, live.event.id, live.event.subject) == ("0/1A2B390", "0/1A2B390-2", "5")
    gone = published(encoder.change(5, Derived(CANCELLED, None, None, "deleted"), stamp, 3).value)
    assert (gone.deadline_us, gone.deadline, gone.status, gone.version, gone.reason) == (
        None,
        None,
        None,
        None,
        "deleted",
    )
    for deadline_us in (NEGATIVE_INFINITY_US, parse_instant("12026-11-30 10:15:00+00")):
        far = published(encoder.change(5, Derived(SCHEDULED, (deadline_us, "pending", 3), None, None), stamp, 2).value)
        assert far.deadline is None
        assert far.deadline_us is not None
    assert published(encoder.change(5, Derived(SCHEDULED, (NEGATIVE_INFINITY_US, "p", 3), None, None), stamp, 2).value).deadline_us == NEGATIVE_INFINITY_US  # fmt: skip
    gap = published(encoder.gap(Gap("the slot is another", None, 7), 7, us).value)
    assert (gap.key, gap.reason, gap.snapshot) == (None, "the slot is another", True)
    text_version = Event("1", "/s", SCHEDULED, data={"version": "12345678901234567890"})
    assert DeadlineEvent.of(text_version).version == 12345678901234567890


@pytest.mark.parametrize(
    "event",
    [
        Event("1", "/s", "other", data={}),
        Event("1", "/s", SCHEDULED, data=None),
        Event("1", "/s", SCHEDULED, data={"deadline": "soon"}),
        Event("1", "/s", SCHEDULED, data={"key": "5"}),
        Event("1", "/s", SCHEDULED, data={"version": "x"}),
    ],
)
def test_no_deadline_event_is_told(event: Event) -> None:
    with pytest.raises(NotAnEventError):
        DeadlineEvent.of(event)
