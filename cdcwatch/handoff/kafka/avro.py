"""Deadline events in Avro: one flat record for every type, as connectors want it. The JSON event is what it is made of.

The record's first five bytes are the registry's wire format, headers are CloudEvents' binary mode.
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md#32-binary-content-mode
"""

from __future__ import annotations

import struct
from functools import cache, lru_cache
from importlib import resources
from io import BytesIO
from typing import Any, Final

import orjson

from cdcwatch.deadline.event import GAP_TYPE
from cdcwatch.errors import ConfigurationError
from cdcwatch.instant import format_instant, from_unix_us, parse_instant, read_instant, to_unix_us

try:
    from fastavro import parse_schema, schemaless_reader
    from fastavro.schema import SchemaParseException
except ImportError:
    raise ConfigurationError("Avro needs the Python package fastavro", remedy="pip install 'cdcwatch[avro]'") from None

Headers = list[tuple[str, str | bytes | None]]
NEWEST: Final = 1
"""The schema's version that events are written with."""
NAME: Final = "cdcwatch.DeadlineEvent"
CONTENT_TYPE: Final = b"application/avro"
MAGIC: Final = b"\0"
PREFIX_LENGTH: Final = 5
_DATASCHEMA: Final = "urn:cdcwatch:deadline-event:"
"""With the version behind it: so that who reads needs no registry for the versions that it has."""
_FIRST_US: Final = parse_instant("0001-01-01 00:00:00+00")
_LAST_US: Final = parse_instant("9999-12-31 23:59:59.999999+00")
_EXACT_IN_JSON: Final = 2**53
_UNREADABLE: Final = (
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    OverflowError,
    MemoryError,
    AttributeError,
    struct.error,
)


@cache
def schema_text(version: int = NEWEST) -> str:
    """The schema as it stands in the package."""
    file = resources.files("cdcwatch") / "schemas" / f"deadline-event.v{version}.avsc"
    return file.read_text(encoding="utf-8")


def compact_schema(version: int = NEWEST) -> str:
    """The same in one line, as registries keep it."""
    return orjson.dumps(orjson.loads(schema_text(version))).decode()


@cache
def schema(version: int = NEWEST) -> Any:
    """Ready to write and read with. Instants are plain numbers: those of PostgreSQL are more than datetime's."""
    return plain_schema(schema_text(version))


def plain_schema(text: str) -> Any:
    """Any schema of our event, ready to read with; None of another record's, and of what is no schema."""
    try:
        told = orjson.loads(text)
        if not isinstance(told, dict) or f"{told.get('namespace')}.{told.get('name')}" != NAME:
            return None
        return parse_schema(_without_logical_types(told))
    except (ValueError, SchemaParseException, *_UNREADABLE):
        return None


def _without_logical_types(told: Any) -> Any:
    if isinstance(told, dict):
        return {name: _without_logical_types(one) for name, one in told.items() if name != "logicalType"}
    return [_without_logical_types(one) for one in told] if isinstance(told, list) else told


class Encoder:
    """JSON events to Avro, in the newest schema's order of fields.

    Laid by hand, as fastavro takes several times as long over a record's unions; a test holds it to fastavro's bytes.
    """

    def __init__(self) -> None:
        """For the newest schema."""
        self._constant: Headers = [
            ("content-type", CONTENT_TYPE),
            ("ce_specversion", b"1.0"),
            ("ce_dataschema", f"{_DATASCHEMA}{NEWEST}".encode()),
        ]

    def encode(self, value: bytes) -> tuple[bytes, Headers]:
        """The record behind the wire format's five bytes, and its headers."""
        event = orjson.loads(value)
        number, source, kind, subject, time = (
            event["id"], event["source"], event["type"], event["subject"], event["time"]
        )  # fmt: skip
        data = event["data"]
        get = data.get
        body = b"".join(
            (
                _text(number),
                _often(source),
                _often(kind),
                _text(subject),
                _moment(time),
                _map(data["key"]),
                _deadline(get("deadline")),
                _deadline(get("previous_deadline")),
                _optional(get("reason")),
                _optional(get("status")),
                _version(get("version")),
                _often(data["commit_lsn"]),
                b"\1" if data["snapshot"] else b"\0",
                _optional(get("from_lsn")),
                _optional(get("to_lsn")),
            )
        )
        return body, [
            *self._constant,
            ("ce_id", number),
            ("ce_source", source),
            ("ce_type", kind),
            ("ce_subject", subject),
            ("ce_time", time),
        ]


_NULL: Final = b"\0"
_SOME: Final = b"\2"
_BYTES: Final = tuple(bytes([number]) for number in range(128))
_LAST_7_BITS: Final = 127


def _long(number: int) -> bytes:
    """Zigzag and seven bits a byte: https://avro.apache.org/docs/1.12.0/specification/#binary-encoding."""
    number = (number << 1) ^ (number >> 63)
    if number <= _LAST_7_BITS:
        return _BYTES[number]
    laid = bytearray()
    while number > _LAST_7_BITS:
        laid.append(number & _LAST_7_BITS | 128)
        number >>= 7
    laid.append(number)
    return bytes(laid)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _long(len(encoded)) + encoded


_often = lru_cache(maxsize=1024)(_text)
"""Of texts that many events share."""


@lru_cache(maxsize=1024)
def _optional(text: str | None) -> bytes:
    return _NULL if text is None else _SOME + _text(text)


@lru_cache(maxsize=1024)
def _moment(text: str) -> bytes:
    return _long(to_unix_us(read_instant(text)))


def _map(key: dict[str, str] | None) -> bytes:
    if key is None:
        return _NULL
    pairs = b"".join([_often(name) + _text(value) for name, value in key.items()])
    return b"%b%b%b\0" % (_SOME, _long(len(key)), pairs)


def _version(version: int | str | None) -> bytes:
    return _NULL if version is None else _SOME + _long(int(version))


def _deadline(text: str | None) -> bytes:
    """Two fields: the instant, and its text where it isn't told by that."""
    if text is None:
        return _NULL + _NULL
    unix_us, exact = instant_of(text)
    return _SOME + _long(unix_us) + _optional(exact)


def instant_of(text: str) -> tuple[int, str | None]:
    """Microseconds since 1970, inside of the years that every language has; the text where it lies outside."""
    us = read_instant(text)
    if _FIRST_US <= us <= _LAST_US:
        return to_unix_us(us), None
    return to_unix_us(_FIRST_US if us < _FIRST_US else _LAST_US), text


def event_of(record: dict[str, Any]) -> dict[str, Any]:
    """The JSON event of an Avro record: equal to the one that it was made of.

    But for `version`, whose column's type the record doesn't know: a number, a text where others would lose digits.
    """
    if record["type"] == GAP_TYPE:
        data = {name: record[name] for name in ("key", "reason", "from_lsn", "to_lsn")}
    else:
        version = record["version"]
        data = {
            "key": record["key"],
            "deadline": _told(record["deadline"], record["deadline_exact"]),
            "previous_deadline": _told(record["previous_deadline"], record["previous_deadline_exact"]),
            **({} if record["reason"] is None else {"reason": record["reason"]}),
            "status": record["status"],
            "version": version if version is None or abs(version) < _EXACT_IN_JSON else str(version),
        }
    return {
        "specversion": "1.0",
        "id": record["id"],
        "source": record["source"],
        "type": record["type"],
        "subject": record["subject"],
        "time": format_instant(from_unix_us(record["time"])),
        "data": {**data, "commit_lsn": record["commit_lsn"], "snapshot": record["snapshot"]},
    }


def _told(unix_us: int | None, exact: str | None) -> str | None:
    return exact if exact is not None or unix_us is None else format_instant(from_unix_us(unix_us))


def decode(body: bytes, written_with: Any) -> bytes | None:
    """The JSON event of what stands behind the five bytes; None of what was not written with that schema."""
    left = BytesIO(body)
    try:
        record = schemaless_reader(left, written_with, schema(NEWEST))
        return None if left.read(1) or not isinstance(record, dict) else orjson.dumps(event_of(record))
    except _UNREADABLE:
        return None


def version_of(headers: object) -> int | None:
    """Which of the package's versions a record's headers say that it was written with; None: none of them."""
    if not isinstance(headers, list):
        return None
    said = next((value for name, value in headers if name == "ce_dataschema"), None)
    text = said.decode(errors="replace") if isinstance(said, bytes) else str(said)
    number = text.removeprefix(_DATASCHEMA)
    known = text.startswith(_DATASCHEMA) and number.isascii() and number.isdecimal() and len(number) < PREFIX_LENGTH
    return int(number) if known and 1 <= int(number) <= NEWEST else None
