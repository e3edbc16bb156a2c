"""What a read_committed subscriber finds in a topic."""

from __future__ import annotations

import time
from typing import NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

from cdcwatch.handoff.kafka.values import Values
from cdcwatch.settings import KafkaSettings


class Found(NamedTuple):
    """A committed record."""

    partition: int
    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]


def from_avro(record: Found) -> Found:
    """The same with its value in JSON, and without headers. AssertionError for one that is in JSON."""
    value = Values(KafkaSettings()).as_json(record.value, lambda: record.headers)
    assert record.value[:1] == b"\0"
    assert value is not None
    return record._replace(value=value, headers=[])


def read_topic(bootstrap_servers: str, topic: str, *, timeout_s: float = 30) -> list[Found]:
    """All of it, in the order of each partition; AssertionError when it can't be read in time."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": "tests",  # never joined
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "log_level": 0,
        }
    )
    try:
        partitions = len(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        unfinished, found = set(range(partitions)), []
        give_up_s = time.monotonic() + timeout_s
        while unfinished:
            assert time.monotonic() < give_up_s, f"{topic} can't be read to its end"
            message = consumer.poll(0.2)
            if message is None:
                continue
            error = message.error()
            if error is None:
                value, headers = message.value() or b"", message.headers() or []
                found.append(Found(message.partition(), message.key(), value, headers))
            elif error.code() == KafkaError._PARTITION_EOF:
                unfinished.discard(message.partition())
        return found
    finally:
        consumer.close()
