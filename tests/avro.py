"""The Avro record of a JSON event as any library writes it: what the encoder is held to."""

from __future__ import annotations

import io
from typing import Any

from fastavro import schemaless_writer

from cdcwatch.handoff.kafka import avro
from cdcwatch.instant import read_instant, to_unix_us


def record_of(event: dict[str, Any]) -> dict[str, Any]:
    """Field by field."""
    data = event["data"]
    record = {name: event[name] for name in ("id", "source", "type", "subject")}
    record |= {
        name: data.get(name) for name in ("key", "reason", "status", "commit_lsn", "snapshot", "from_lsn", "to_lsn")
    }
    for name in ("deadline", "previous_deadline"):
        text = data.get(name)
        record[name], record[f"{name}_exact"] = (None, None) if text is None else avro.instant_of(text)
    version = data.get("version")
    return {
        **record,
        "time": to_unix_us(read_instant(event["time"])),
        "version": None if version is None else int(version),
    }


def written(event: dict[str, Any]) -> bytes:
    """By fastavro."""
    body = io.BytesIO()
    schemaless_writer(body, avro.schema(), record_of(event))
    return body.getvalue()
