"""Avro: what the encoder writes is read as the JSON of the same event is; other schemas are asked of a registry."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import TYPE_CHECKING, Any

import pytest
from fastavro import parse_schema, schemaless_writer

from cdcwatch.consume import DeadlineEvent, Event, NotAnEventError, Record, avro_decoder, decode_cloudevent
from cdcwatch.deadline.event import EventEncoder
from cdcwatch.deadline.rule import CANCELLED, MOVED, SCHEDULED, Derived
from cdcwatch.errors import ConfigurationError, UnavailableError
from cdcwatch.handoff.kafka.avro import Encoder
from cdcwatch.instant import NEGATIVE_INFINITY_US, parse_instant
from tests.unit.test_preflight import WATCHED

if TYPE_CHECKING:
    from collections.abc import Iterator

US = parse_instant("2026-11-30 10:15:00.123456+00")
FOREIGN = {"type": "record", "name": "Order", "fields": [{"name": "n", "type": "long"}]}


@pytest.mark.parametrize(
    "derived",
    [
        Derived(SCHEDULED, (US, "pending", 3), None, None),
        Derived(MOVED, (parse_instant("12026-11-30 10:15:00+00"), None, None), US, None),
        Derived(SCHEDULED, (NEGATIVE_INFINITY_US, "pending", 3), None, None),
        Derived(CANCELLED, None, NEGATIVE_INFINITY_US, "deleted"),
    ],
)
def test_the_typed_view_is_the_same_from_either_format(derived: Derived) -> None:
    encoder = EventEncoder(WATCHED, system_identifier="7", database="shop")
    value = encoder.change(5, derived, encoder.stamp(0x1A2B390, US), 2).value
    avro, headers = Encoder().encode(value)
    told = tuple((name, text if isinstance(text, bytes) else (text or "").encode()) for name, text in headers)
    decode = avro_decoder()
    from_avro = decode(Record("t", 0, 0, value=b"\0\0\0\0\7" + avro, headers=told))
    from_json = decode(Record("t", 0, 0, value=value))
    assert (from_avro.identity, from_avro.type, from_avro.time) == (from_json.identity, from_json.type, from_json.time)
    assert replace(DeadlineEvent.of(from_avro), event=from_json) == DeadlineEvent.of(from_json)


class Registry(BaseHTTPRequestHandler):
    """Knows schema 5."""

    def do_GET(self) -> None:
        found = self.path.startswith("/schemas/ids/5")
        said = {"schema": json.dumps(FOREIGN)} if found else {"error_code": 40403, "message": "Schema not found"}
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(said).encode())

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def registry() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Registry) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def foreign(number: int, body: bytes | None = None) -> Record:
    written = BytesIO()
    schemaless_writer(written, parse_schema(FOREIGN), {"n": 42})
    headers = {"ce_specversion": b"1.0", "ce_id": b"1", "ce_source": b"/s", "ce_type": b"t", "content-type": b"application/avro"}  # fmt: skip
    return Record("t", 0, 0, value=b"\0" + number.to_bytes(4) + (written.getvalue() if body is None else body), headers=tuple(headers.items()))  # fmt: skip


def test_another_schema_is_asked_of_the_registry_once() -> None:
    with registry() as url:
        decode = avro_decoder({"url": url})
        assert decode(foreign(5)).data == {"n": 42}
        for record in (foreign(6), foreign(5, b"")):
            with pytest.raises(NotAnEventError):
                decode(record)
        other = avro_decoder({"url": url})
    assert decode(foreign(5)).data == {"n": 42}, "it is known by now"
    with pytest.raises(UnavailableError):
        other(foreign(5))
    with pytest.raises(NotAnEventError, match="neither known here"):
        avro_decoder()(foreign(5))
    with pytest.raises(ConfigurationError):
        avro_decoder({"url": "http://localhost", "no.such": 1})
    assert isinstance(decode_cloudevent(foreign(5)), Event), "the default leaves it as bytes"
