"""The lines of the file sink's journal. Pure.

A journal is JSON lines. The first says what it is; then batches follow, each of them events and, in the end, one line
that commits them:

    {"cdcwatch":"journal","format":1}
    {"key":"123","event":{"specversion":"1.0","id":"0/1A2B390-2", …}}
    {"slot":"cdcwatch_orders","events":1,"dead":0,"bytes":341,"crc32":"5d41402a","progress":{"end_lsn": …}}

An event is the CloudEvent byte for byte as Kafka would have it; `key` is null for a TRUNCATE. With several tables a
line begins with its `topic`. A dead letter is `{"id":…,"dead":{…}}`. Lines behind the last commit are of nobody: the
process died over them, and the next one takes them away. `bytes` and `crc32` are of the batch's lines, `dead` counts
the slot's dead letters so far.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from cdcwatch.deadline.event import DeadLetter, GapEvent, for_partition
from cdcwatch.handoff.progress import Progress

if TYPE_CHECKING:
    from cdcwatch.deadline.event import Event

HEADER: Final = b'{"cdcwatch":"journal","format":1}\n'
PARTITION: Final = 0
"""All there is: its number stands in the ids of table-wide events, as in a topic with one partition."""
COMMIT_HEAD: Final = b'{"slot":'
_EVENT: Final = b',"event":'
_DEAD: Final = b',"dead":'


class Commit(NamedTuple):
    """A batch's last line."""

    slot: str
    events: int
    dead: int
    size_bytes: int
    """Of the lines before it that belong to it."""
    crc32: int
    progress: Progress | None
    """None: forgotten by request."""


class Line(NamedTuple):
    """What is told."""

    topic: str
    """Empty where there is one table."""
    key: bytes | None
    value: bytes
    is_dead: bool


def encoded_named(event: Event) -> bytes:
    """An event's line that names its topic, where it has one."""
    line, topic = encoded(event), event.topic
    return b'{"topic":%b,%b' % (orjson.dumps(topic), line[1:]) if topic else line


def encoded(event: Event) -> bytes:
    """An event's line."""
    key, value, _ = event
    if key is not None:
        return b'{"key":%b,"event":%b}\n' % (orjson.dumps(key.decode()), value)
    if isinstance(event, DeadLetter):
        return b'{"id":%b,"dead":%b}\n' % (orjson.dumps(event.id.decode()), value)
    about_all = orjson.dumps(event.record_key.decode()) if isinstance(event, GapEvent) else b"null"
    return b'{"key":%b,"event":%b}\n' % (about_all, for_partition(value, PARTITION))


def encoded_commit(commit: Commit) -> bytes:
    """A commit's line."""
    progress = b"null" if commit.progress is None else commit.progress.to_json()
    return b'%b%b,"events":%d,"dead":%d,"bytes":%d,"crc32":"%08x","progress":%b}\n' % (
        COMMIT_HEAD,
        orjson.dumps(commit.slot),
        commit.events,
        commit.dead,
        commit.size_bytes,
        commit.crc32,
        progress,
    )


def read_commit(line: bytes) -> Commit | None:
    """None: no whole commit's line. KeyError or ValueError where its progress is of another version."""
    if not (line.startswith(COMMIT_HEAD) and line.endswith(b"}\n")):
        return None
    try:
        said: dict[str, Any] = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    progress = said["progress"]
    return Commit(
        said["slot"],
        said["events"],
        said["dead"],
        said["bytes"],
        int(said["crc32"], 16),
        None if progress is None else Progress.from_json(orjson.dumps(progress)),
    )


def read_line(line: bytes) -> Line | None:
    """None: no event and no dead letter."""
    if line.startswith(COMMIT_HEAD):
        return None
    head, mark, value = line.partition(_EVENT)  # within a JSON string the quotes would be escaped
    is_dead = not mark
    if is_dead:
        head, mark, value = line.partition(_DEAD)
    if not mark or not value.endswith(b"}\n"):
        return None
    try:
        said: dict[str, Any] = orjson.loads(head + b"}")
    except orjson.JSONDecodeError:
        return None
    key = said.get("id" if is_dead else "key")
    return Line(said.get("topic", ""), None if key is None else str(key).encode(), value[:-2], is_dead)
