"""Events in Avro: the same contents as in JSON, whatever stands in a row; and their schemas, each readable with the others."""

from __future__ import annotations

import copy
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
from confluent_kafka import Producer
from fastavro import parse_schema, schemaless_reader, schemaless_writer
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from cdcwatch.deadline.rule import CANCELLED, EXPIRED, MOVED, SCHEDULED, Derived
from cdcwatch.decode.change import Row
from cdcwatch.handoff.kafka import avro
from cdcwatch.handoff.kafka.producers import _AvroProducer
from cdcwatch.handoff.kafka.values import Values
from cdcwatch.instant import INFINITY_US, NEGATIVE_INFINITY_US
from cdcwatch.settings import KafkaSettings
from cdcwatch.table import Column
from tests.avro import record_of, written
from tests.events import DEADLINES, ENDED, ROWS, STAMP, STAMP_OF_A_READ, TWO_COLUMNS, encoder_of, sample_events
from tests.fakes.table import WATCHED

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.deadline.event import Event

SCHEMAS = sorted((Path(avro.__file__).parents[2] / "schemas").glob("*.avsc"))
TEXTS = {path.name: path.read_text() for path in SCHEMAS}
AS_JSON = Values(KafkaSettings()).as_json
NUMBER = b"\0\0\0\0\7"


def _there_and_back(event: Event) -> dict[str, Any]:
    body, headers = avro.Encoder().encode(event.value)
    assert body == written(orjson.loads(event.value))
    sent = [(name, value.encode() if isinstance(value, str) else value) for name, value in headers]
    read = AS_JSON(NUMBER + body, lambda: sent)
    assert read is not None
    return dict(orjson.loads(read))


def _contents(value: dict[str, Any]) -> dict[str, Any]:
    """A version is a number, however its column's type has JSON write it."""
    version = value["data"].get("version")
    if version is not None:
        value["data"]["version"] = int(version)
    return value


def test_every_kind_of_event_has_the_same_contents_in_both_formats() -> None:
    for event in sample_events():
        assert _contents(_there_and_back(event)) == _contents(orjson.loads(event.value))
    first = next(sample_events())
    assert AS_JSON(NUMBER + avro.Encoder().encode(first.value)[0], list) != first.value, "nobody said which schema"


@given(st.integers(-(2**63), 2**63 - 1), ROWS, DEADLINES, ENDED, st.text(max_size=9))
def test_whatever_stands_in_a_row(key: int, row: Row, previous_us: int, ended: Row, reason: str) -> None:
    bigint = encoder_of(replace(WATCHED, version=Column("version", "bigint")))
    events = [
        bigint.change(key, derived, STAMP, 1)
        for derived in (
            Derived(SCHEDULED, row, None), Derived(MOVED, row, previous_us), Derived(EXPIRED, row, previous_us), Derived(CANCELLED, ended, previous_us, reason)
        )
    ]  # fmt: skip
    text = json.dumps([reason, str(key)], ensure_ascii=False, separators=(",", ":"))
    events.append(encoder_of(TWO_COLUMNS).snapshot(text, Derived(SCHEDULED, row, None), STAMP_OF_A_READ))
    for event in events:
        assert _contents(_there_and_back(event)) == _contents(orjson.loads(event.value))


@pytest.mark.parametrize(
    ("deadline_us", "text", "year"), [(NEGATIVE_INFINITY_US, "-infinity", 1), (INFINITY_US, "infinity", 9999)]
)
def test_readers_without_infinity_find_the_nearest_instant(deadline_us: int, text: str, year: int) -> None:
    """With the schema as the registry has it, logical types and all, which Python reads as datetimes."""
    event = encoder_of().change(7, Derived(CANCELLED, Row(deadline_us, "paid", 3), None, "paid"), STAMP, 1)
    body, _ = avro.Encoder().encode(event.value)
    told: Any = schemaless_reader(io.BytesIO(body), parse_schema(json.loads(avro.schema_text())), None)
    assert (told["deadline"].year, told["deadline_exact"], told["previous_deadline"]) == (year, text, None)


@pytest.mark.parametrize(("version", "told"), [(2**53 - 1, 2**53 - 1), (2**53, str(2**53)), (-(2**63), str(-(2**63)))])
def test_a_version_that_other_readers_would_lose_digits_of_is_a_text(version: int, told: int | str) -> None:
    bigint = encoder_of(replace(WATCHED, version=Column("version", "bigint")))
    event = bigint.change(7, Derived(SCHEDULED, Row(0, "pending", version), None), STAMP, 1)
    assert _there_and_back(event)["data"]["version"] == told


def test_headers_are_cloudevents_binary_mode() -> None:
    event = next(sample_events())
    _, headers = avro.Encoder().encode(event.value)
    value = orjson.loads(event.value)
    assert dict(headers) == {
        "content-type": b"application/avro",
        "ce_specversion": b"1.0",
        "ce_dataschema": b"urn:cdcwatch:deadline-event:1",
        **{f"ce_{name}": value[name] for name in ("id", "source", "type", "subject", "time")},
    }


@pytest.mark.parametrize("value", [None, b"", b'{"id":', b"\xff", b"\0", b"\0\0\0", NUMBER, NUMBER + b"\x80" * 40])
@pytest.mark.parametrize(
    "headers",
    [
        None,
        [],
        [("ce_dataschema", b"urn:cdcwatch:deadline-event:1")],
        [("ce_dataschema", b"urn:cdcwatch:deadline-event:\xc2\xb2")],
    ],
)
def test_what_is_no_event_is_left_as_it_is(value: bytes | None, headers: Any) -> None:
    assert AS_JSON(value, lambda: headers) == value


def test_a_cut_event_or_one_with_more_behind_it_is_left_as_it_is() -> None:
    body, headers = avro.Encoder().encode(next(sample_events()).value)
    sent = [(name, value.encode() if isinstance(value, str) else value) for name, value in headers]
    for value in (NUMBER + body[:-1], NUMBER + body[: len(body) // 2], NUMBER + body + b"\0"):
        assert AS_JSON(value, lambda: sent) == value


@pytest.mark.parametrize("is_avro", [True, False])
def test_the_producer_takes_what_librdkafkas_takes_by_name_and_by_position(*, is_avro: bool) -> None:
    nowhere = {"bootstrap.servers": "127.0.0.1:1", "log_level": 0}
    producer = _AvroProducer(nowhere, {"orders": 7}) if is_avro else Producer(nowhere)
    value, headers = next(sample_events()).value, {"content-type": b"application/json"}
    reported: list[tuple[str, bytes]] = []

    def reporter(name: str) -> Callable[[Any, Any], None]:
        return lambda _error, message: reported.append((name, message.value()))

    producer.produce("orders", value, b"1", 0, reporter("by position"), None, 0, headers)
    producer.produce("orders", value, b"1", 0, headers=headers, on_delivery=reporter("by name"))
    producer.produce("orders", value, b"1", 0, None, None, 0, headers)
    producer.produce("orders", value, b"1", 0, on_delivery=reporter("as it is"))
    producer.purge()
    producer.flush(5)
    sent = NUMBER + avro.Encoder().encode(value)[0] if is_avro else value
    assert reported == [("by position", sent), ("by name", sent), ("as it is", value)]


# -- the schemas ---------------------------------------------------------------------------------------------------------


def readable(written_with: Any, read_with: Any) -> bool:
    """Whether events of every kind that were written with the one can be read with the other."""
    written_with, read_with = parse_schema(copy.deepcopy(written_with)), parse_schema(copy.deepcopy(read_with))
    names = {field["name"] for field in written_with["fields"]}
    for event in sample_events():
        record = {name: value for name, value in record_of(orjson.loads(event.value)).items() if name in names}
        body = io.BytesIO()
        schemaless_writer(body, written_with, record)
        body.seek(0)
        try:
            schemaless_reader(body, written_with, read_with)
        except Exception:  # noqa: BLE001  whatever fastavro has to say
            return False
    return True


def test_the_newest_is_the_one_that_events_are_written_with() -> None:
    assert [path.name for path in SCHEMAS] == [f"deadline-event.v{n}.avsc" for n in range(1, avro.NEWEST + 1)]
    for text in TEXTS.values():
        assert all(field["doc"] for field in json.loads(text)["fields"])
        assert f"{json.loads(text)['namespace']}.{json.loads(text)['name']}" == avro.NAME


@pytest.mark.parametrize("older", TEXTS)
@pytest.mark.parametrize("newer", TEXTS)
def test_every_version_reads_every_other(older: str, newer: str) -> None:
    assert readable(json.loads(TEXTS[older]), json.loads(TEXTS[newer]))
    assert readable(json.loads(TEXTS[newer]), json.loads(TEXTS[older]))


def test_a_field_with_a_default_may_come_and_others_may_not() -> None:
    newest = json.loads(TEXTS[SCHEMAS[-1].name])

    def with_field(field: dict[str, Any]) -> dict[str, Any]:
        return {**newest, "fields": [*newest["fields"], field]}

    later = with_field({"name": "region", "type": ["null", "string"], "default": None})
    assert readable(newest, later)
    assert readable(later, newest)
    assert not readable(newest, with_field({"name": "region", "type": "string"}))
    assert not readable({**newest, "fields": newest["fields"][1:]}, newest)
    changed = [{**field, "type": "int"} if field["name"] == "commit_lsn" else field for field in newest["fields"]]
    assert not readable(newest, {**newest, "fields": changed})
