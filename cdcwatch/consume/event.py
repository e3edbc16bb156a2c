"""CloudEvents 1.0 as Kafka carries them, structured (JSON) and binary, and what a record of no event is told by.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/bindings/kafka-protocol-binding.md
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from cdcwatch.errors import CdcwatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeAlias

_ATTRIBUTES: Final = ("id", "source", "type", "subject", "time", "datacontenttype", "dataschema", "specversion")
_PREFIX: Final = "ce_"
_STRUCTURED: Final = "application/cloudevents"
_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d+))?(?:([Zz])|([+-]\d\d:\d\d))",
    re.ASCII,
)


class NotAnEventError(ValueError):
    """A record that is no CloudEvent. Its text says what is missing, and holds nothing of the record."""


class Identity(NamedTuple):
    """What makes an event the same one: CloudEvents' `source` and `id` together."""

    source: str
    id: str


@dataclass(frozen=True, slots=True)
class Record:
    """A record as Kafka gave it."""

    topic: str
    partition: int
    offset: int
    key: bytes | None = None
    value: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp_ms: int | None = None

    def header(self, name: str) -> str | None:
        """The last of that name, as text; None where there is none, or none that is UTF-8."""
        for known, value in reversed(self.headers):
            if known.lower() == name and value is not None:
                try:
                    return value.decode()
                except UnicodeDecodeError:
                    return None
        return None


@dataclass(frozen=True, slots=True)
class Event:
    """A CloudEvent. `data` is what its JSON says, a text, bytes, or None."""

    id: str
    source: str
    type: str
    subject: str | None = None
    time: datetime | None = None
    """In UTC, to the microsecond."""
    data: Any = None
    data_content_type: str | None = None
    data_schema: str | None = None
    extensions: Mapping[str, Any] = field(default_factory=dict)
    record: Record = Record("", 0, 0)
    """Where it stands."""

    @property
    def identity(self) -> Identity:
        """By which it is handled once."""
        return Identity(self.source, self.id)


if TYPE_CHECKING:
    Decode: TypeAlias = Callable[[Record], Event]


def decode_cloudevent(record: Record) -> Event:
    """The event of a record. NotAnEventError for any other record, one without a value among them.

    Binary mode where there is a header `ce_specversion`; otherwise the value must be the event in JSON, whether or
    not `content-type` says so: not every producer sends it.
    """
    if record.header(f"{_PREFIX}specversion") is not None:
        return _binary(record)
    content_type = (record.header("content-type") or "").lower()
    if content_type.startswith(_STRUCTURED) and not content_type.startswith(f"{_STRUCTURED}+json"):
        raise NotAnEventError("a CloudEvents format other than JSON")
    if not record.value:
        raise NotAnEventError("no value")
    try:
        said = orjson.loads(record.value)
    except orjson.JSONDecodeError:
        raise NotAnEventError("neither JSON nor headers of a CloudEvent") from None
    if not isinstance(said, dict):
        raise NotAnEventError("the JSON is no object")
    return _structured(said, record)


def _structured(said: dict[str, Any], record: Record) -> Event:
    data = said.pop("data", None)
    encoded = said.pop("data_base64", None)
    if encoded is not None:
        try:
            data = base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError):
            raise NotAnEventError("data_base64 is not base64") from None
    return event_of(said, data, record)


def _binary(record: Record) -> Event:
    said: dict[str, Any] = {}
    for name, value in record.headers:
        if name.lower().startswith(_PREFIX) and value is not None:
            try:
                said[name.lower().removeprefix(_PREFIX)] = value.decode()
            except UnicodeDecodeError:
                raise NotAnEventError("a CloudEvents header is not UTF-8") from None
    content_type = record.header("content-type")
    said.pop("datacontenttype", None)  # the record's own header says it in this mode
    if content_type is not None:
        said["datacontenttype"] = content_type
    return event_of(said, _data(record.value, content_type or ""), record)


def _data(value: bytes | None, content_type: str) -> Any:
    kind = content_type.partition(";")[0].strip().lower()
    if value is None:
        return None
    try:
        if kind == "application/json" or kind.endswith("+json"):
            return orjson.loads(value)
        if kind.startswith("text/"):
            return value.decode()
    except (orjson.JSONDecodeError, UnicodeDecodeError):
        raise NotAnEventError("the data is not of its content-type") from None
    return value


def event_of(said: Mapping[str, Any], data: Any, record: Record) -> Event:
    """The event of its attributes, by their names in the specification. For decoders of other formats too."""
    if said.get("specversion") != "1.0":
        raise NotAnEventError("specversion is not 1.0")
    return Event(
        id=_text(said, "id"),
        source=_text(said, "source"),
        type=_text(said, "type"),
        subject=_optional(said, "subject"),
        time=_time(said.get("time")),
        data=data,
        data_content_type=_optional(said, "datacontenttype"),
        data_schema=_optional(said, "dataschema"),
        extensions={name: value for name, value in said.items() if name not in _ATTRIBUTES},
        record=record,
    )


def _text(said: Mapping[str, Any], name: str) -> str:
    value = said.get(name)
    if not isinstance(value, str) or not value:
        raise NotAnEventError(f"no {name}")
    return value


def _optional(said: Mapping[str, Any], name: str) -> str | None:
    value = said.get(name)
    if value is not None and not isinstance(value, str):
        raise NotAnEventError(f"{name} is no text")
    return value or None


def _time(value: Any) -> datetime | None:
    """RFC 3339: any offset, any number of digits; a leap second is the second after it."""
    if value is None:
        return None
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise NotAnEventError("time is not as RFC 3339 has it")
    date, clock, fraction, _, offset = match.groups()
    is_leap = clock.endswith(":60")
    try:
        moment = datetime.fromisoformat(f"{date}T{clock[:-2] + '59' if is_leap else clock}{offset or '+00:00'}")
        return (moment + timedelta(seconds=is_leap, microseconds=int((fraction or "0")[:6].ljust(6, "0")))).astimezone(
            UTC
        )
    except (ValueError, OverflowError):
        raise NotAnEventError("time is not as RFC 3339 has it") from None


def unreadable(decode: Decode, records: Sequence[Record]) -> list[Event | str]:
    """Each record's event, or why it is none, whatever a decoder raises; only CdcwatchError passes."""
    found: list[Event | str] = []
    for record in records:
        try:
            found.append(decode(record))
        except NotAnEventError as error:
            found.append(str(error))
        except CdcwatchError:  # what the decoder needs is away, a schema registry for one
            raise
        except Exception as error:  # noqa: BLE001  a caller's decoder
            found.append(f"the decoder failed: {type(error).__name__}")
    return found
