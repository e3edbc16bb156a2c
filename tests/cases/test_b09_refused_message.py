"""B9: the broker refuses a message: nothing is confirmed beyond it, and it is published once it is let in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)

from tests import services
from tests.command import ORDERS
from tests.oracle.world import World

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka

LONG = "s" * 3000


def _let_in(kafka: Kafka, topic: str, most_bytes: int) -> None:
    entry = ConfigEntry(
        "max.message.bytes",
        str(most_bytes),
        source=ConfigSource.DYNAMIC_TOPIC_CONFIG,
        incremental_operation=AlterConfigOpType.SET,
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(20)


@pytest.mark.parametrize(
    ("plugin", "delivery"),
    [("wal2json", "exactly_once"), ("pgoutput", "exactly_once"), ("wal2json", "at_least_once")],
)
def test_b09_a_message_that_the_broker_refuses_is_not_passed_over(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str, delivery: str
) -> None:
    services.create_topic(kafka, f"{topic}.small", config={"max.message.bytes": "4000"})
    with World(
        database, kafka.bootstrap_servers, f"{topic}.small", tmp_path, kafka={"delivery": delivery}, plugin=plugin
    ) as world:
        world.connection.execute(ORDERS)
        world.create_slot()
        with world.running():
            world.connection.execute("INSERT INTO orders VALUES (1, 'pending', '2999-01-01')")
            world.wait_confirmed()
        before_lsn = world.current_lsn()
        world.connection.execute("UPDATE orders SET status = %s", [LONG])
        after_lsn = world.current_lsn()
        world.connection.execute("INSERT INTO orders VALUES (2, 'pending', '2999-01-01')")
        refused = world.run()
        assert refused.wait() == 3
        assert "max.message.bytes" in world.log.read_text()
        assert LONG not in world.log.read_text()
        assert world.confirmed_lsn() < after_lsn
        assert before_lsn < after_lsn
        _let_in(kafka, f"{topic}.small", 1_000_000)
        with world.running():
            world.wait_confirmed()
        told = [(record.key, record.event["type"]) for record in world.records()]
        assert set(told) == {
            ("1", "deadline.scheduled"),
            ("1", "deadline.cancelled"),
            ("2", "deadline.scheduled"),
        }
        if delivery == "exactly_once":
            assert len(told) == 3
