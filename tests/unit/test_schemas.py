"""docs/schemas: every record that the encoder makes keeps its schema, and what is no record of ours doesn't."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator

from cdcwatch import __version__
from cdcwatch.deadline.event import Event, EventEncoder, Gap, Stamp, for_partition
from cdcwatch.deadline.rule import CANCELLED, EVENT_TYPES, EXPIRED, MOVED, SCHEDULED, Derived
from cdcwatch.decode.change import Row, Unreadable
from cdcwatch.decode.note import CloseFailure
from cdcwatch.instant import INFINITY_US, NEGATIVE_INFINITY_US, parse_instant
from cdcwatch.settings import Settings
from cdcwatch.table import Column
from tests.fakes.table import WATCHED

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMAS = Path(__file__).parents[2] / "docs/schemas"
EVENTS = Draft7Validator(json.loads((SCHEMAS / "deadline-event.schema.json").read_text()))
LETTERS = Draft7Validator(json.loads((SCHEMAS / "dead-letter.schema.json").read_text()))
ASYNCAPI: dict[str, Any] = yaml.safe_load((SCHEMAS / "asyncapi.yaml").read_text())
DUE_US = parse_instant("2026-11-30 10:15:00+00")
STAMP = Stamp.of(0x1A2B390, DUE_US)
OF_A_READ = Stamp.of_snapshot(0xFFFFFFFF1A2B390, DUE_US)
TWO_COLUMNS = replace(
    WATCHED, key=(Column("shop", "text"), Column("id", "bigint")), version=Column("version", "bigint")
)
# The calendar of PostgreSQL's timestamps.
INSTANTS = st.integers(-211_813_488_000_000_000, 9_223_371_331_199_999_999)
DEADLINES = st.one_of(INSTANTS, st.just(NEGATIVE_INFINITY_US))
ROWS = st.builds(Row, DEADLINES, st.text(max_size=12) | st.none(), st.integers(-(2**63), 2**63 - 1) | st.none())
ENDED = st.builds(Row, INSTANTS | st.sampled_from([INFINITY_US, None]), st.text(max_size=12), st.none())


def _encoder(table: Any = WATCHED) -> EventEncoder:
    return EventEncoder(table, system_identifier="7301234567890123456", database="shop", slot="cdcwatch_orders")


def _events() -> Iterator[Event]:
    """One of every kind."""
    row = Row(DUE_US, "pending", 0)
    for encoder, key in ((_encoder(), 7), (_encoder(TWO_COLUMNS), '["eu","7"]')):
        yield encoder.change(key, Derived(SCHEDULED, row, None), STAMP, 1)
        yield encoder.change(key, Derived(MOVED, row, DUE_US - 1), STAMP, 2)
        yield encoder.change(key, Derived(CANCELLED, Row(DUE_US, "paid", 3), DUE_US, "paid"), STAMP, 3)
        yield encoder.change(key, Derived(CANCELLED, None, None, "deleted"), STAMP, 4)
        yield encoder.change(key, Derived(EXPIRED, Row(DUE_US, "expired", 1), None), STAMP, 5)
        yield encoder.change(key, Derived(EXPIRED, None, DUE_US), STAMP, 6)
        yield encoder.snapshot(key, Derived(SCHEDULED, row, None), OF_A_READ)
        truncated = encoder.table_wide(Derived(CANCELLED, None, None, "truncated"), STAMP, 7)
        yield truncated
        yield truncated._replace(value=for_partition(truncated.value, 11))
        for from_lsn in (None, 0x1A00000):
            gap = encoder.gap(Gap("the slot was made anew", from_lsn, 0x1A2B000), 0x1A2B390, DUE_US)
            yield Event(None, for_partition(gap.value, 2))


def test_every_kind_of_event_keeps_the_schema_and_has_no_key_that_it_lacks() -> None:
    kinds = set()
    for event in _events():
        value = orjson.loads(event.value)
        EVENTS.validate(value)
        assert set(value) == set(EVENTS.schema["properties"])
        named = EVENTS.schema["definitions"]["gap" if value["type"] == "stream.gap" else "change"]["properties"]
        assert set(value["data"]) <= set(named)
        kinds.add(value["type"])
    assert kinds == set(EVENTS.schema["properties"]["type"]["enum"]) == {*EVENT_TYPES, "stream.gap"}


@given(st.integers(-(2**63), 2**63 - 1), ROWS, DEADLINES, ENDED, st.text(max_size=9))
def test_whatever_stands_in_a_row(key: int, row: Row, previous_us: int, ended: Row, reason: str) -> None:
    for encoder in (_encoder(), _encoder(replace(WATCHED, version=Column("version", "bigint")))):
        for derived in (
            Derived(SCHEDULED, row, None), Derived(MOVED, row, previous_us), Derived(EXPIRED, row, previous_us), Derived(CANCELLED, ended, previous_us, reason)
        ):  # fmt: skip
            EVENTS.validate(orjson.loads(encoder.change(key, derived, STAMP, 1).value))
    text = json.dumps([reason, str(key)], ensure_ascii=False, separators=(",", ":"))
    EVENTS.validate(orjson.loads(_encoder(TWO_COLUMNS).snapshot(text, Derived(SCHEDULED, row, None), OF_A_READ).value))


def test_dead_letters_keep_theirs() -> None:
    letters = [
        _encoder().dead_letter(
            Unreadable("column 'status' is not valid UTF-8", "wal2json", "7b22", is_truncated=False), 1, 2
        ),
        _encoder(TWO_COLUMNS).close_failure(
            CloseFailure(1, ("eu", "7"), NEGATIVE_INFINITY_US, 2**60, 8, "SQLSTATE P0001"), 1, 2
        ),
    ]
    known = set(LETTERS.schema["properties"])
    for letter, branch in zip(letters, ("then", "else"), strict=True):
        value = orjson.loads(letter.value)
        LETTERS.validate(value)
        assert set(value) == known | set(LETTERS.schema[branch]["properties"])
        assert not EVENTS.is_valid(value)


@pytest.mark.parametrize(
    "path", ["id", "source", "type", "subject", "time", "data.key", "data.deadline", "data.commit_lsn", "data.snapshot"]
)
def test_what_is_missing_or_of_another_kind_is_told(path: str) -> None:
    event = next(_events())
    for wrong in (None, 4.5, "", []):
        value = copy.deepcopy(orjson.loads(event.value))
        *above, key = path.split(".")
        place = value[above[0]] if above else value
        if wrong is None:
            del place[key]
        else:
            place[key] = wrong
        if (path, wrong) != ("subject", ""):
            assert not EVENTS.is_valid(value), (path, wrong)


def test_a_live_deadline_and_a_reason_are_not_optional() -> None:
    for event in _events():
        value = orjson.loads(event.value)
        if value["type"] in {SCHEDULED, MOVED}:
            value["data"]["deadline"] = "infinity"
        elif value["type"] == CANCELLED:
            del value["data"]["reason"]
        elif value["type"] == EXPIRED:
            value["data"]["reason"] = "paid"
        else:
            del value["data"]["to_lsn"]
        assert not EVENTS.is_valid(value)


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        yield from (node["$ref"],) if "$ref" in node else ()
        for below in node.values():
            yield from _references(below)
    elif isinstance(node, list):
        for below in node:
            yield from _references(below)


def test_asyncapi_is_whole_and_names_what_the_defaults_are() -> None:
    assert ASYNCAPI["asyncapi"] == "3.0.0"
    assert ASYNCAPI["info"]["version"] == __version__
    references = list(_references(ASYNCAPI))
    assert len(references) == 8
    for reference in references:
        file, _, pointer = reference.partition("#")
        if file:
            assert (SCHEMAS / file).exists()
            continue
        node: Any = ASYNCAPI
        for step in pointer.strip("/").split("/"):
            node = node[step]
    topic = Settings().kafka.topic
    assert [channel["address"] for channel in ASYNCAPI["channels"].values()] == [topic, f"{topic}.dead"]
    assert {operation["action"] for operation in ASYNCAPI["operations"].values()} == {"send"}
    for message in ASYNCAPI["components"]["messages"].values():
        assert message["payload"]["schemaFormat"] == "application/schema+json;version=draft-07"
        validator = LETTERS if "dead-letter" in message["payload"]["schema"]["$ref"] else EVENTS
        for example in message["examples"]:
            validator.validate(example["payload"])
    for validator in (EVENTS, LETTERS):
        Draft7Validator.check_schema(validator.schema)
