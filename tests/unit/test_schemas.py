"""docs/schemas: every record that the encoder makes keeps its schema, and what is no record of ours doesn't."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft7Validator
from msgspec.structs import replace

from cdcwatch import __version__
from cdcwatch.deadline.rule import CANCELLED, EVENT_TYPES, EXPIRED, MOVED, SCHEDULED, Derived
from cdcwatch.decode.change import Row, Unreadable
from cdcwatch.decode.note import CloseFailure
from cdcwatch.handoff.kafka import avro
from cdcwatch.instant import NEGATIVE_INFINITY_US
from cdcwatch.settings import Settings
from cdcwatch.table import Column
from tests.events import DEADLINES, ENDED, ROWS, STAMP, STAMP_OF_A_READ, TWO_COLUMNS, encoder_of, sample_events
from tests.fakes.table import WATCHED

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMAS = Path(__file__).parents[2] / "docs/schemas"
EVENTS = Draft7Validator(json.loads((SCHEMAS / "deadline-event.schema.json").read_text()))
LETTERS = Draft7Validator(json.loads((SCHEMAS / "dead-letter.schema.json").read_text()))
ASYNCAPI: dict[str, Any] = yaml.safe_load((SCHEMAS / "asyncapi.yaml").read_text())


def test_every_kind_of_event_keeps_the_schema_and_has_no_key_that_it_lacks() -> None:
    kinds = set()
    for event in sample_events():
        value = orjson.loads(event.value)
        EVENTS.validate(value)
        assert set(value) == set(EVENTS.schema["properties"])
        named = EVENTS.schema["definitions"]["gap" if value["type"] == "stream.gap" else "change"]["properties"]
        assert set(value["data"]) <= set(named)
        kinds.add(value["type"])
    assert kinds == set(EVENTS.schema["properties"]["type"]["enum"]) == {*EVENT_TYPES, "stream.gap"}


@given(st.integers(-(2**63), 2**63 - 1), ROWS, DEADLINES, ENDED, st.text(max_size=9))
def test_whatever_stands_in_a_row(key: int, row: Row, previous_us: int, ended: Row, reason: str) -> None:
    for encoder in (encoder_of(), encoder_of(replace(WATCHED, version=Column("version", "bigint")))):
        for derived in (
            Derived(SCHEDULED, row, None), Derived(MOVED, row, previous_us), Derived(EXPIRED, row, previous_us), Derived(CANCELLED, ended, previous_us, reason)
        ):  # fmt: skip
            EVENTS.validate(orjson.loads(encoder.change(key, derived, STAMP, 1).value))
    text = json.dumps([reason, str(key)], ensure_ascii=False, separators=(",", ":"))
    EVENTS.validate(
        orjson.loads(encoder_of(TWO_COLUMNS).snapshot(text, Derived(SCHEDULED, row, None), STAMP_OF_A_READ).value)
    )


def test_dead_letters_keep_theirs() -> None:
    letters = [
        encoder_of().dead_letter(
            Unreadable("column 'status' is not valid UTF-8", "wal2json", "7b22", is_truncated=False), 1, 2
        ),
        encoder_of(TWO_COLUMNS).close_failure(
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
    event = next(sample_events())
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
    for event in sample_events():
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


def _hold_avro(message: dict[str, Any]) -> None:
    """The example is the JSON one, and its headers are those that are sent."""
    (example,) = message["examples"]
    in_json = ASYNCAPI["components"]["messages"]["deadline"]["examples"][0]["payload"]
    assert avro.event_of(example["payload"]) == in_json
    body, headers = avro.Encoder().encode(orjson.dumps(in_json))
    assert avro.decode(body, avro.schema()) == orjson.dumps(in_json)
    described = message["headers"]["properties"]
    assert set(described) == set(message["headers"]["required"]) == {name for name, _ in headers}
    for name, said in headers:
        text = said.decode() if isinstance(said, bytes) else said
        assert described[name].get("const", text) == text
    assert message["payload"]["schemaFormat"].startswith("application/vnd.apache.avro")


def test_asyncapi_is_whole_and_names_what_the_defaults_are() -> None:
    assert ASYNCAPI["asyncapi"] == "3.0.0"
    assert ASYNCAPI["info"]["version"] == __version__
    references = list(_references(ASYNCAPI))
    assert len(references) == 10
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
    for name, message in ASYNCAPI["components"]["messages"].items():
        if name == "avro":
            _hold_avro(message)
            continue
        assert message["payload"]["schemaFormat"] == "application/schema+json;version=draft-07"
        validator = LETTERS if "dead-letter" in message["payload"]["schema"]["$ref"] else EVENTS
        for example in message["examples"]:
            validator.validate(example["payload"])
    for validator in (EVENTS, LETTERS):
        Draft7Validator.check_schema(validator.schema)
