"""What a consumer refuses before it connects to anything, and what it says where there is nothing to connect to."""

from __future__ import annotations

import logging

import pytest
from confluent_kafka import KafkaError

from cdcwatch.consume import Consumer, MemoryStore, RedisStore, each
from cdcwatch.consume.kafka import explain, places_of
from cdcwatch.errors import ConfigurationError
from tests.consuming import running
from tests.waiting import wait_until


@pytest.mark.parametrize(
    ("topics", "dead_topic"),
    [
        ("orders", "orders"),
        (["orders", "orders.stock.dead"], None),
        (r"^orders\..*", "orders.dead"),
    ],
)
def test_its_own_dead_letters_are_not_what_it_reads(topics: str | list[str], dead_topic: str | None) -> None:
    with pytest.raises(ConfigurationError, match="one that the consumer reads"):
        Consumer(
            topics,
            group="stock",
            bootstrap_servers="127.0.0.1:1",
            start="earliest",
            handler=each(print),
            stores=[MemoryStore()],
            dead_topic=dead_topic,
        )


def test_what_is_away_at_the_start_is_waited_for_and_told_with_its_remedy(caplog: pytest.LogCaptureFixture) -> None:
    consumer = Consumer(
        "orders",
        group="stock",
        bootstrap_servers="127.0.0.1:1",
        start="earliest",
        handler=each(print),
        stores=[MemoryStore(), RedisStore("redis://me:secret@127.0.0.1:1/0")],
    )
    with caplog.at_level(logging.INFO), running(consumer):
        wait_until(lambda: "waiting: Kafka" in caplog.text, 30, "it is told, and has not ended")
    store, kafka = (record.getMessage() for record in caplog.records)
    assert store == (
        "the store redis is away; handling waits for it: Redis at 127.0.0.1:1: Connection refused;"
        " see that Redis is up and takes writes"
    )
    assert kafka.startswith("waiting: Kafka: ")
    assert "127.0.0.1:1" in kafka
    assert kafka.endswith("; see that the brokers in bootstrap_servers are up")
    assert "secret" not in caplog.text


def test_a_topic_that_is_missing_has_its_remedy() -> None:
    for code in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC):
        assert explain(KafkaError(code)).remedy.startswith("make the topic")


def test_partitions_in_the_log() -> None:
    assert places_of([("b", 0), ("a", 10), ("a", 2)]) == "a 2 10, b 0"
    assert places_of([]) == ""
