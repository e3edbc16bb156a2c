"""J8: partitions added while the service runs move keys: nothing is lost, and readers can still order by commit."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from cdcwatch.lsn import parse_lsn
from tests.murmur2 import partition_of
from tests.oracle.world import World
from tests.topic import Found, read_topic
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka

KEYS = range(1, 41)


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_j08_added_partitions_move_keys_and_the_commit_orders_them(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, delivery: str
) -> None:
    # Five minutes each, usually.
    extra = '[kafka.client]\n"topic.metadata.refresh.interval.ms" = 500\n"statistics.interval.ms" = 500\n'
    with World(database, kafka.bootstrap_servers, topic, tmp_path, extra, kafka={"delivery": delivery}) as world:
        world.install()
        with world.running():
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT n, '2999-01-01' FROM generate_series(1, 40) n"
            )
            world.wait_confirmed()
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
            before = len({found.partition for found in read_topic(kafka.bootstrap_servers, topic)})
            count = len(admin.list_topics(topic, timeout=20).topics[topic].partitions)
            admin.create_partitions([NewPartitions(topic, count * 4)])[topic].result(30)
            changes = 0

            def moved() -> bool:
                nonlocal changes
                changes += 1
                world.connection.execute(
                    "UPDATE orders SET expires_at = expires_at + interval '1 day', version = version + 1"
                )
                world.wait_confirmed()
                return len({found.partition for found in read_topic(kafka.bootstrap_servers, topic)}) > before

            wait_until(moved, 60, "the producer has learnt of the new partitions", every_s=0.5)
            said = f"{topic} has {count * 4} partitions now, {count} before"
            wait_until(lambda: said in world.log.read_text(), 30, "it is told")
        found = read_topic(kafka.bootstrap_servers, topic)
        newest = {record.key: record for record in sorted(found, key=_place)}
        versions = {int(key): json.loads(record.value)["data"]["version"] for key, record in newest.items()}
        assert versions == dict.fromkeys(KEYS, changes)
        assert all(record.partition == partition_of(key, count * 4) for key, record in newest.items())
        assert len(found) == len(KEYS) * (changes + 1)


def _place(record: Found) -> tuple[int, int]:
    """Where its change stands in the stream."""
    event = json.loads(record.value)
    return parse_lsn(event["data"]["commit_lsn"]), int(event["id"].rpartition("-")[2])
