"""The world of the oracle with Redis in Kafka's place."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from redis import RedisError

from cdcwatch.handoff.redis.keys import streams_of
from tests.oracle.subscriber import Record
from tests.oracle.world import World
from tests.streams_of_redis import entries, opened
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Redis

STREAM = "orders.deadlines"


def records_in(url: str, topic: str, partitions: int) -> list[Record]:
    """Everything there is, stream by stream."""
    with opened(url) as client:
        return [
            Record(
                partition,
                place,
                None if (key := fields.get(b"key")) is None else key.decode(),
                json.loads(fields[b"value"]),
            )
            for partition, name in enumerate(streams_of(topic, partitions))
            for place, (_, fields) in enumerate(entries(client, name))
        ]


class RedisWorld(World):
    """As of `World`; offsets are places in a stream, which nothing trims here."""

    def __init__(
        self,
        database: Database,
        server: Redis,
        folder: Path,
        extra: str = "",
        *,
        stream: str = STREAM,
        partitions: int = 3,
        plugin: str = "wal2json",
        more: str = "",
    ) -> None:
        """`more`: further lines of [redis]."""
        self.url, self.partitions = server.url, partitions
        redis = f'url = "{server.url}"\nstream = "{stream}"\npartitions = {partitions}\n{more}'
        super().__init__(
            database,
            "127.0.0.1:9",
            stream,
            folder,
            f'[sink]\nkind = "redis"\n[redis]\n{redis}{extra}',
            plugin=plugin,
        )

    def records(self) -> list[Record]:
        return records_in(self.url, self.topic, self.partitions)

    def sent_ends(self) -> dict[int, int]:
        with opened(self.url) as client:
            return {
                partition: client.xlen(name) for partition, name in enumerate(streams_of(self.topic, self.partitions))
            }

    def wait_topic_committed(self) -> None:
        """There is nothing but what is there."""

        def answers() -> bool:
            try:
                with opened(self.url) as client:
                    return bool(client.ping())
            except RedisError:
                return False

        wait_until(answers, 30, "Redis answers")
