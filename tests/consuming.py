"""Consumers at work in a test: in threads of it, fed by a producer of its own."""

from __future__ import annotations

import json
import threading
import uuid
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import ConsumerGroupTopicPartitions, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from cdcwatch.consume import Consumer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from cdcwatch.consume import Event
    from tests.services import Kafka

SOURCE = "/shop"


def group_name() -> str:
    return f"group.{uuid.uuid4().hex[:10]}"


def said(name: str, kind: str = "thing.happened", **data: Any) -> bytes:
    """An event in structured mode."""
    return json.dumps({"specversion": "1.0", "id": name, "source": SOURCE, "type": kind, "data": data}).encode()


class Feed:
    """Writes records to a topic."""

    def __init__(self, kafka: Kafka, topic: str) -> None:
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        self._topic = topic

    def tell(self, names: Iterable[str], *, partition: int = -1) -> None:
        """An event each, keyed by its name."""
        for name in names:
            self.write(said(name), key=name, partition=partition)
        self.flush()

    def write(self, value: bytes | None, *, key: str | None = None, partition: int = -1,
              headers: Mapping[str, str] | None = None) -> None:  # fmt: skip
        self._producer.produce(
            self._topic, key=key, value=value, partition=partition, headers=list((headers or {}).items())
        )

    def flush(self) -> None:
        assert self._producer.flush(30) == 0


class Effects:
    """What handlers did, counted."""

    def __init__(self) -> None:
        self.of: Counter[str] = Counter()
        self.order: list[str] = []
        self._lock = threading.Lock()

    def add(self, event: Event) -> None:
        with self._lock:
            self.of[event.id] += 1
            self.order.append(event.id)


@contextmanager
def running(consumer: Consumer) -> Iterator[Consumer]:
    """Runs in a thread; closed at the end. What ended it early is raised here."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            consumer.run()
        except BaseException as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield consumer
    finally:
        consumer.close()
        thread.join()
    if errors:
        raise errors[0]


def consumer_of(kafka: Kafka, topic: str, group: str, **given: Any) -> Consumer:
    """With short pauses, and a session as short as brokers take by default."""
    client = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 500, **given.pop("client", {})}
    usual = {"start": "earliest", "first_pause_s": 0.02, "most_pause_s": 0.2}
    return Consumer(topic, group=group, bootstrap_servers=kafka.bootstrap_servers, client=client, **{**usual, **given})


def committed(kafka: Kafka, topic: str, group: str) -> int:
    """How many records of the topic the group has behind it."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    asked = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result(20)
    return sum(max(0, place.offset) for place in asked.topic_partitions if place.topic == topic)


def length(kafka: Kafka, topic: str, partitions: int = 3) -> int:
    """How many records it holds."""
    asked = KafkaConsumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": "tests", "log_level": 0})
    try:
        return sum(
            asked.get_watermark_offsets(TopicPartition(topic, number), timeout=20)[1] for number in range(partitions)
        )
    finally:
        asked.close()
