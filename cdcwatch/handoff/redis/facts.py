"""What Redis says of our keys and our rights. Nothing is written.

https://redis.io/docs/latest/commands/acl-dryrun/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from cdcwatch.handoff.redis.client import connected, refused, talking
from cdcwatch.handoff.redis.keys import (
    PARTITIONS_FIELD,
    dead_stream,
    group_name,
    leases_key,
    members_key,
    owner_key,
    progress_key,
    staged_key,
    streams_of,
)
from cdcwatch.handoff.redis.server import ServerFacts, read_server

if TYPE_CHECKING:
    from cdcwatch.settings import RedisSettings

_NO_RIGHT: Final = (refused.NoPermissionError, refused.ResponseError)
_TO_WRITE: Final = (
    ("XADD", "{stream}", "*", "a", "b"),
    ("XADD", "{dead}", "*", "a", "b"),
    ("XADD", "{staged}", "*", "a", "b"),
    ("XTRIM", "{stream}", "MINID", "0"),
    ("XRANGE", "{stream}", "-", "+"),
    ("XREVRANGE", "{stream}", "+", "-"),
    ("XDEL", "{staged}", "0-1"),
    ("XLEN", "{stream}"),
    ("XGROUP", "CREATE", "{stream}", "a", "$"),
    ("TYPE", "{stream}"),
    ("UNLINK", "{staged}"),
    ("HSET", "{owner}", "a", "b"),
    ("HGET", "{owner}", "a"),
    ("HSET", "{progress}", "a", "b"),
    ("HSETNX", "{progress}", "a", "b"),
    ("HGET", "{progress}", "a"),
    ("HDEL", "{progress}", "a"),
    ("EVALSHA", "0", "1", "{progress}"),
    ("SCRIPT", "LOAD", "a"),
    ("TIME",),
)
_TO_HEAR: Final = (
    ("XREADGROUP", "GROUP", "a", "b", "STREAMS", "{stream}", ">"),
    ("XACK", "{stream}", "a", "0-1"),
    ("XAUTOCLAIM", "{stream}", "a", "b", "0", "0-0"),
    ("XGROUP", "CREATE", "{stream}", "a", "$"),
    ("XGROUP", "SETID", "{stream}", "a", "0"),
    ("XGROUP", "DELCONSUMER", "{stream}", "a", "b"),
    ("XINFO", "STREAM", "{stream}"),
    ("XINFO", "CONSUMERS", "{stream}", "a"),
    ("XREVRANGE", "{stream}", "+", "-"),
    ("TYPE", "{stream}"),
    ("HGET", "{progress}", "a"),
    ("ZADD", "{members}", "1", "a"),
    ("ZREM", "{members}", "a"),
    ("ZREMRANGEBYSCORE", "{members}", "0", "1"),
    ("ZRANGE", "{members}", "0", "-1"),
    ("HGET", "{leases}", "a"),
    ("HSET", "{leases}", "a", "b"),
    ("HDEL", "{leases}", "a"),
    ("EVAL", "a", "1", "{leases}"),
    ("EVALSHA", "0", "1", "{leases}"),
    ("SCRIPT", "LOAD", "a"),
    ("TIME",),
)


class StreamFacts(Struct, frozen=True):
    """Of one table's streams together."""

    missing: tuple[str, ...]
    unfit: tuple[str, ...]
    """Keys of that name that are no streams."""
    length: int
    oldest_ms: int | None
    """Of the oldest entry; None where there is none."""


class TableFacts(Struct, frozen=True):
    """What is there for one table."""

    server: ServerFacts
    streams: StreamFacts
    dead: int
    """How many dead letters."""
    has_progress: bool
    partitions: int | None
    """That the streams were made with."""
    lacking: tuple[str, ...] | None
    """Commands with keys that we may not use; None: we may not ask (ACL DRYRUN)."""
    now_ms: int
    group: str
    members: int
    """Of the consumer group, at work now."""


def read_table(settings: RedisSettings, topic: str, slot: str, *, hears: bool) -> TableFacts:
    """UnavailableError, PreconditionError within seconds."""
    client = connected(settings, answer_s=5.0)
    try:
        server = read_server(client)
        with talking():
            recorded = client.hget(progress_key(settings), PARTITIONS_FIELD)
            seconds, microseconds = client.time()
            dead = dead_stream(topic)
            group = group_name(settings, slot)
            return TableFacts(
                server,
                _streams(client, streams_of(topic, settings.partitions)),
                client.xlen(dead) if client.type(dead) == b"stream" else 0,
                bool(client.hexists(progress_key(settings), slot)),
                None if recorded is None else int(recorded),
                _lacking(client, settings, topic, slot, _TO_HEAR if hears else _TO_WRITE),
                seconds * 1000 + microseconds // 1000,
                group,
                client.zcard(members_key(topic, group)) if hears else 0,
            )
    finally:
        client.close()


def _streams(client: Any, names: list[str]) -> StreamFacts:
    kinds = {name: client.type(name).decode() for name in names}
    there = [name for name, kind in kinds.items() if kind == "stream"]
    oldest = [found[0][0] for name in there if (found := client.xrange(name, count=1))]
    return StreamFacts(
        tuple(name for name, kind in kinds.items() if kind == "none"),
        tuple(name for name, kind in kinds.items() if kind not in {"none", "stream"}),
        sum(client.xlen(name) for name in there),
        min((int(number.split(b"-")[0]) for number in oldest), default=None),
    )


def _lacking(
    client: Any, settings: RedisSettings, topic: str, slot: str, commands: tuple[tuple[str, ...], ...]
) -> tuple[str, ...] | None:
    group = group_name(settings, slot)
    names = {
        "stream": streams_of(topic, settings.partitions)[-1],
        "dead": dead_stream(topic),
        "staged": staged_key(settings, slot),
        "owner": owner_key(settings),
        "progress": progress_key(settings),
        "members": members_key(topic, group),
        "leases": leases_key(topic, group),
    }
    lacking: dict[str, None] = {}
    try:
        user = client.acl_whoami()
        for command in commands:
            told = client.execute_command("ACL DRYRUN", user, *(part.format(**names) for part in command))
            if told not in {b"OK", "OK"}:
                what = " ".join(command[:2]) if command[0] in {"XGROUP", "XINFO", "SCRIPT"} else command[0]
                keys = [part.format(**names) for part in command if part.startswith("{")]
                lacking[" ".join([what, *(f"on {key}" for key in keys)])] = None
    except _NO_RIGHT:
        return None
    return tuple(lacking)
