"""Events whose data is Avro with a schema registry's number in front, as of cdcwatch with `kafka.format = "avro"`.

CloudEvents in binary mode: attributes in the headers, the value five bytes and the record.
https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdcwatch.consume.event import NotAnEventError, decode_cloudevent
from cdcwatch.errors import ConfigurationError, PreconditionError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdcwatch.consume.event import Decode, Event, Record

_PREFIX_LENGTH: Final = 5
_OURS: Final = re.compile(r"urn:cdcwatch:deadline-event:(\d{1,4})", re.ASCII)
_REMEDY: Final = "pip install 'cdcwatch[avro]'"
_REFUSED: Final = frozenset({401, 403})
_MISSING: Final = 404


def avro_decoder(registry: Mapping[str, Any] | None = None) -> Decode:
    """For `Consumer(decode=…)`: reads Avro, and JSON beside it, record by record.

    `registry`: configuration of confluent-kafka's SchemaRegistryClient, `{"url": "http://…"}` at least; None: only
    cdcwatch's own events are read, whose schemas are in this package. While the registry is away handling waits for it.
    ConfigurationError without the extra `avro`.
    """
    try:
        from fastavro import parse_schema, schemaless_reader  # noqa: PLC0415  an extra
    except ImportError as error:
        raise ConfigurationError("Avro needs the Python package fastavro", remedy=_REMEDY) from error
    schemas: dict[int | str, Any] = {}
    client = None if registry is None else _client(registry)

    def schema_of(event: Event, number: int) -> Any:
        ours = _OURS.fullmatch(event.data_schema or "")
        known: int | str = number if ours is None else ours[1]
        if known not in schemas:
            text = _packaged(ours[1]) if ours is not None else None
            if text is None and client is not None:
                text = _asked(client, number)
            if text is None:
                raise NotAnEventError("Avro of a schema that is neither known here nor to be asked for")
            schemas[known] = parse_schema(orjson.loads(text))
        return schemas[known]

    def decode(record: Record) -> Event:
        event = decode_cloudevent(record)
        data = event.data
        if not isinstance(data, bytes) or data[:1] != b"\0" or len(data) < _PREFIX_LENGTH:
            return event
        schema = schema_of(event, int.from_bytes(data[1:_PREFIX_LENGTH]))
        try:
            return replace(event, data=schemaless_reader(BytesIO(data[_PREFIX_LENGTH:]), schema, None))
        except (EOFError, ValueError, LookupError, TypeError, OverflowError):
            raise NotAnEventError("the data is not of its Avro schema") from None

    return decode


def _packaged(version: str) -> str | None:
    file = resources.files("cdcwatch") / "schemas" / f"deadline-event.v{version}.avsc"
    return file.read_text(encoding="utf-8") if file.is_file() else None


def _client(registry: Mapping[str, Any]) -> Any:
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415  an extra
    except ImportError as error:
        raise ConfigurationError("a schema registry needs more of confluent-kafka", remedy=_REMEDY) from error
    try:
        return SchemaRegistryClient({"max.retries": 1, "timeout": 5, **registry})
    except (ValueError, TypeError, OSError) as error:  # its text may hold a password
        raise ConfigurationError("the schema registry's client can't be made so", remedy="mend registry=") from error


def _asked(client: Any, number: int) -> str | None:
    from confluent_kafka.schema_registry.error import SchemaRegistryError  # noqa: PLC0415  an extra

    try:
        return str(client.get_schema(number).schema_str)
    except SchemaRegistryError as error:
        if error.http_status_code == _MISSING:
            return None
        if error.http_status_code in _REFUSED:
            raise PreconditionError("the schema registry refuses us", remedy="mend registry=") from error
        raise UnavailableError("the schema registry can't answer", remedy="see the registry's log") from error
    except Exception as error:  # of whichever HTTP library it is
        raise UnavailableError(
            f"the schema registry doesn't answer ({type(error).__name__})", remedy="see that it is up"
        ) from error
