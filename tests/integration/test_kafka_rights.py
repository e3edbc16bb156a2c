"""The broker's half of `check` before a broker with ACLs: what we may do is asked, never tried."""

from __future__ import annotations

import json
import tomllib
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin._acl import AclOperation
from confluent_kafka.admin._resource import ResourceType

from cdcwatch.consume import Consumer, MemoryStore, each
from cdcwatch.errors import PreconditionError
from tests.command import cdcwatch, run_to_the_end, start_cdcwatch
from tests.guarded import PASSWORD, Guarded, guarded_broker
from tests.services import create_topic
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with guarded_broker() as guarded:
        create_topic(guarded.broker, "orders")
        create_topic(guarded.broker, "orders.dead", partitions=1)
        create_topic(guarded.broker, "orders.progress", partitions=1, config={"cleanup.policy": "compact"})
        yield guarded


@pytest.fixture
def shop(shop: Path, guarded: Guarded) -> Path:
    text = shop.read_text().replace('kind = "none"', 'kind = "kafka"')
    shop.write_text(
        f'{text}[kafka]\nbootstrap_servers = "127.0.0.1:{guarded.port}"\ntopic = "orders"\n[kafka.client]\n{guarded.client}'
    )
    return shop


def _told(shop: Path) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in json.loads(cdcwatch("check", "--json", "-c", shop).out)["checks"]}


def test_rights_are_told_one_by_one_until_all_is_granted(guarded: Guarded, shop: Path, slot: str) -> None:
    refused = cdcwatch("check", "-c", shop)
    assert refused.code == 1
    assert PASSWORD not in refused.said
    assert _told(shop)["topic"]["state"] == "fail"

    guarded.grant(ResourceType.TOPIC, "orders", AclOperation.DESCRIBE)
    guarded.grant(ResourceType.TOPIC, "orders.progress", AclOperation.DESCRIBE, AclOperation.READ)
    wait_until(lambda: "we lack Write on orders" in _told(shop)["topic"]["message"], 20, "the first grant holds")
    told = _told(shop)
    assert "--operation Write --topic orders" in told["topic"]["remedy"]
    assert "we lack Write on orders.progress" in told["progress"]["message"]

    guarded.grant(ResourceType.TOPIC, "orders", AclOperation.WRITE)
    guarded.grant(ResourceType.TOPIC, "orders.progress", AclOperation.WRITE)
    wait_until(lambda: _told(shop)["progress"]["state"] == "ok", 20, "the second grant holds")
    told = _told(shop)
    assert told["topic"]["state"] == "ok"
    assert told["transactional"]["state"] == "warn", "app may not see ACLs"

    assert told["dead_letters"]["state"] == "fail"
    guarded.grant(ResourceType.TOPIC, "orders.dead", AclOperation.WRITE, AclOperation.DESCRIBE)
    wait_until(lambda: "orders.dead is empty" in _told(shop)["dead_letters"]["message"], 20, "the third grant holds")
    producer = Producer({"bootstrap.servers": guarded.broker.bootstrap_servers})
    producer.produce("orders.dead", b"{}", b"0/1-1")
    assert producer.flush(20) == 0
    wait_until(lambda: "we may not read orders.dead" in _told(shop)["dead_letters"]["message"], 20, "it holds")
    guarded.grant(ResourceType.TOPIC, "orders.dead", AclOperation.READ)
    wait_until(lambda: "1 dead letter in" in _told(shop)["dead_letters"]["message"], 20, "it may be read")

    guarded.grant(ResourceType.BROKER, "kafka-cluster", AclOperation.DESCRIBE)
    wait_until(lambda: "no ACL names" in _told(shop)["transactional"]["message"], 20, "app may see ACLs")
    guarded.grant(ResourceType.TRANSACTIONAL_ID, f"cdcwatch.orders.{slot}", AclOperation.WRITE)
    wait_until(lambda: _told(shop)["transactional"]["state"] == "ok", 20, "the last grant holds")
    assert cdcwatch("check", "-c", shop).code == 0


def test_a_wrong_password_is_a_refusal_not_an_outage(shop: Path) -> None:
    shop.write_text(shop.read_text().replace(PASSWORD, PASSWORD[::-1]))
    refused = cdcwatch("check", "-c", shop)
    assert refused.code == 1, refused
    kafka = _told(shop)["kafka"]
    assert (kafka["state"], kafka["unreachable"]) == ("fail", False)
    assert "[kafka.client]" in kafka["remedy"]
    assert PASSWORD[::-1] not in refused.said


def test_a_worker_is_told_which_rights_it_lacks(guarded: Guarded, shop: Path, slot: str) -> None:
    """It reads the topic, and joins a consumer group; nothing else."""
    guarded.revoke(ResourceType.TOPIC, "orders", AclOperation.ANY)
    text = shop.read_text()
    shop.write_text(text if "[telemetry]" in text else f'{text}[telemetry]\nlisten = ""\n')

    def told() -> dict[str, dict[str, Any]]:
        lines = json.loads(cdcwatch("check", "--role", "close", "--json", "-c", shop).out)["checks"]
        return {one["name"]: one for one in lines}

    guarded.grant(ResourceType.TOPIC, "orders", AclOperation.DESCRIBE)
    wait_until(lambda: "we lack Read on orders" in told()["topic"]["message"], 20, "the first grant holds")
    assert "progress" not in told()
    guarded.grant(ResourceType.TOPIC, "orders", AclOperation.READ)
    wait_until(lambda: told()["topic"]["state"] == "ok", 20, "the second grant holds")

    group = f"cdcwatch.orders.{slot}"
    assert told()["group"]["state"] == "fail"
    assert f"--operation Read --group {group}" in told()["group"]["remedy"]
    refused = run_to_the_end("run", "--role", "close", "-c", shop)
    assert refused.code == 3, refused
    assert f"--operation Read --group {group}" in refused.err

    guarded.grant(ResourceType.GROUP, group, AclOperation.READ)
    wait_until(lambda: told()["group"]["state"] == "ok", 20, "the last grant holds")
    with start_cdcwatch("run", "--role", "close", "-c", shop) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "READY\n"
        process.terminate()
        assert process.wait(60) == 0


def test_a_consumer_with_a_wrong_password_ends_and_does_not_wait(guarded: Guarded) -> None:
    consumer = Consumer(
        "orders",
        group="stock",
        bootstrap_servers=f"127.0.0.1:{guarded.port}",
        start="earliest",
        handler=each(print),
        stores=[MemoryStore()],
        client=tomllib.loads(guarded.client.replace(PASSWORD, PASSWORD[::-1])),
    )
    with pytest.raises(PreconditionError, match="Kafka refuses: ") as told:
        consumer.run()
    assert "sasl.password" in told.value.remedy
    assert PASSWORD[::-1] not in str(told.value)
