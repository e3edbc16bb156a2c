"""What any reader finds in the streams of a table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis import Redis

from cdcwatch.handoff.redis.keys import dead_stream, streams_of
from tests.topic import Found

if TYPE_CHECKING:
    from collections.abc import Iterator


def opened(url: str) -> Redis:
    return Redis.from_url(url, socket_timeout=30, protocol=2)


def entries(client: Any, stream: str) -> Iterator[tuple[bytes, dict[bytes, bytes]]]:
    begin = "-"
    while found := client.xrange(stream, begin, "+", 5000):
        yield from found
        begin = "(" + found[-1][0].decode()


def read_streams(url: str, stream: str, partitions: int) -> list[Found]:
    """All of them, in the order of each partition."""
    with opened(url) as client:
        return [
            Found(
                partition,
                fields.get(b"key"),
                fields[b"value"],
                [("content-type", fields[b"content-type"])],
            )
            for partition, name in enumerate(streams_of(stream, partitions))
            for _, fields in entries(client, name)
        ]


def read_dead(url: str, stream: str) -> list[tuple[bytes, bytes]]:
    with opened(url) as client:
        return [(fields[b"id"], fields[b"value"]) for _, fields in entries(client, dead_stream(stream))]
