"""J5: the right to write is taken away while the service runs: told, nothing confirmed, orders closed, and got over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._resource import ResourceType

from tests.guarded import PASSWORD, Guarded, guarded_broker
from tests.oracle.world import World
from tests.services import create_topic
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with guarded_broker() as guarded:
        yield guarded


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_j05_a_right_taken_away_is_told_and_closing_goes_on(
    guarded: Guarded, database: Database, tmp_path: Path, delivery: str
) -> None:
    topic, grants = delivery, (AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.READ)
    for name in (topic, f"{topic}.dead", f"{topic}.progress"):
        policy = {"cleanup.policy": "compact"} if name.endswith(".progress") else {}
        create_topic(guarded.broker, name, partitions=1, config=policy)
        guarded.grant(ResourceType.TOPIC, name, *grants)
    extra, kafka = f"[kafka.client]\n{guarded.client}", {"delivery": delivery}
    with World(database, f"127.0.0.1:{guarded.port}", topic, tmp_path, extra, kafka=kafka) as world:
        guarded.grant(ResourceType.TRANSACTIONAL_ID, f"cdcwatch.{topic}.{world.slot}", AclOperation.WRITE)
        world.install()
        world.listen()
        with world.running():
            insert_due(world, 0)
            world.wait_confirmed()
            guarded.revoke(ResourceType.TOPIC, topic, AclOperation.WRITE)
            insert_due(world, 100)
            refused_lsn = world.current_lsn()
            wait_until(lambda: "Kafka refuses" in str(world.readiness()["sink"]), 30, "it is told")
            insert_due(world, 200)
            world.wait_nothing_due()
            assert world.readiness()["ready"] is False
            assert world.confirmed_lsn() < refused_lsn, "what came before may still be confirmed, nothing of that"
            assert "remedy: grant Write and Describe" in world.log.read_text()
            guarded.grant(ResourceType.TOPIC, topic, AclOperation.WRITE)
            world.wait_confirmed()
        world.bootstrap_servers = guarded.broker.bootstrap_servers  # the oracle reads as the super user
        world.judge(exactly_once=delivery == "exactly_once")
        assert PASSWORD not in world.log.read_text()


def insert_due(world: World, first_id: int) -> None:
    world.connection.execute(
        "INSERT INTO orders (id, expires_at) SELECT %s + n, clock_timestamp() FROM generate_series(1, 20) n", [first_id]
    )


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_j05_a_topic_that_is_deleted_is_told_and_closing_goes_on(
    kafka: Kafka, topic: str, database: Database, tmp_path: Path, delivery: str
) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, kafka={"delivery": delivery}) as world:
        world.install()
        world.listen()
        with world.running():
            insert_due(world, 0)
            world.wait_nothing_due()
            world.wait_confirmed()  # the closes' events, too: nothing of these orders is told later
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
            admin.delete_topics([topic])[topic].result(20)
            insert_due(world, 100)
            refused_lsn = world.current_lsn()
            wait_until(lambda: "has no topic" in str(world.readiness()["sink"]), 60, "it is told")
            insert_due(world, 200)
            world.wait_nothing_due()
            assert world.confirmed_lsn() < refused_lsn, "what came before may still be confirmed, nothing of that"
            create_topic(kafka, topic)
            world.wait_confirmed()
        keys = {record.key for record in world.records()}
        assert keys == {str(first + n) for first in (100, 200) for n in range(1, 21)}, "none that came after is missing"
