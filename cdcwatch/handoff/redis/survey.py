"""Reads a table's streams to their ends for what they say of every order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdcwatch.handoff.redis.client import talking
from cdcwatch.handoff.redis.entries import entries, last_id
from cdcwatch.handoff.redis.keys import streams_of
from cdcwatch.headway import stage

if TYPE_CHECKING:
    from cdcwatch.handoff.told import Told


def survey(client: Any, topic: str, told: Told) -> Told:
    """Feeds `told` with all that there is now. UnavailableError, PreconditionError."""
    streams = streams_of(topic, told.partitions)
    with talking():
        ends = [last_id(client, stream) for stream in streams]
        held = sum(client.xlen(stream) for stream in streams)
        if not held:
            return told
        with stage(f"reading {topic}", unit="events", total=held) as reading:
            for partition, (stream, end) in enumerate(zip(streams, ends, strict=True)):
                if end is None:
                    continue
                for _, fields in entries(client, stream, None, end):
                    reading.done += 1
                    told.note(partition, fields.get(b"key"), fields.get(b"value", b""))
    return told
