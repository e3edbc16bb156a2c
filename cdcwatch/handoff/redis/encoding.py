"""Events as our scripts take them. Pure.

All texts: Redis' own msgpack knows no bytes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from cdcwatch.deadline.event import DeadLetter, Event, for_partition
from cdcwatch.handoff.murmur2 import partition_of
from cdcwatch.handoff.redis.keys import dead_stream, streams_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEAD: Final = re.compile(r'\{"specversion":"1\.0","id":"([^"\\]*)","source":"(?:[^"\\]|\\.)*","type":"([^"\\]*)"')
_pack: Final = msgspec.msgpack.Encoder().encode


class Places:
    """The streams of all tables, numbered from 1, and in which of them an event stands."""

    def __init__(self, topics: Sequence[str], partitions: int) -> None:
        """The first topic is that of events that name none."""
        self.partitions = partitions
        self.names: list[str] = []
        self._first: dict[str, int] = {}
        self._dead: dict[str, int] = {}
        for topic in topics:
            self._first[topic] = len(self.names) + 1
            self.names += streams_of(topic, partitions)
        self.live = len(self.names)
        """So many numbers are not of dead letters."""
        for topic in topics:
            self.names.append(dead_stream(topic))
            self._dead[topic] = len(self.names)
        self._first[""], self._dead[""] = self._first[topics[0]], self._dead[topics[0]]

    def put(self, event: Event, into: list[Any]) -> None:
        """Appends what publish.lua wants of each copy: number (negative without a key), id, type, key, value."""
        key, value, topic = event
        first = self._first[topic]
        if key is not None:
            number = first if self.partitions == 1 else first + partition_of(key, self.partitions)
            text = value.decode()
            into += (number, *_id_and_type(text), key.decode(), text)
        elif isinstance(event, DeadLetter):
            into += (-self._dead[topic], event.id.decode(), "", False, value.decode())
        else:
            for partition in range(self.partitions):
                copy = for_partition(value, partition).decode()
                into += (-(first + partition), *_id_and_type(copy), False, copy)


def packed(parts: list[Any]) -> tuple[list[int], bytes]:
    """For a script that names only the streams it writes to: their numbers, and the parts with numbers among those."""
    used = sorted({abs(number) for number in parts[::5]})
    own = {number: at for at, number in enumerate(used, 1)}
    parts[::5] = [own[number] if number > 0 else -own[-number] for number in parts[::5]]
    return used, _pack(parts)


def packed_all(parts: list[Any]) -> bytes:
    """For a script that names them all."""
    return _pack(parts)


def _id_and_type(text: str) -> tuple[str, str]:
    found = _HEAD.match(text)
    if found is not None:
        return found[1], found[2]
    event = orjson.loads(text)
    return event["id"], event["type"]
