"""`kafka.format = "avro"` on a real broker, against a real schema registry: written, read back, heard, switched to and from."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from cdcwatch.local.process import free_port
from tests.command import cdcwatch
from tests.oracle.subscriber import by_key
from tests.oracle.world import World
from tests.registry import SmallRegistry
from tests.topic import Found, read_topic
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.registry import SchemaRegistry
    from tests.services import Database, Kafka

INSERT = "INSERT INTO orders (id, expires_at) SELECT id, clock_timestamp() + {} FROM generate_series({}, {}) id"


@pytest.fixture
def made(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> Iterator[Callable[..., World]]:
    """A world whose events go out in Avro, unless its configuration is rewritten."""
    worlds = []

    def make(url: str, extra: str = "", **options: Any) -> World:
        settings = {"format": "avro", **options.pop("kafka", {})}
        rest = f'[kafka.registry]\nurl = "{url}"\n{extra}'
        world = World(database, kafka.bootstrap_servers, topic, tmp_path, rest, kafka=settings, **options)
        worlds.append(world)
        return world

    yield make
    for world in worlds:
        world.connection.close()


def _is_avro(record: Found) -> bool:
    return record.value[:1] == b"\0"


def _as_confluent_reads(record: Found, topic: str, url: str) -> dict[str, Any]:
    """By the deserializer that every Python consumer uses."""
    with SchemaRegistryClient({"url": url}) as client:
        return dict(AvroDeserializer(client)(record.value, SerializationContext(topic, MessageField.VALUE)))


@pytest.mark.parametrize(
    ("plugin", "delivery", "roles"),
    [("wal2json", "exactly_once", ["all"]), ("pgoutput", "at_least_once", ["read", "close", "close"])],
)
def test_events_go_out_in_avro_and_are_read_back(
    made: Callable[..., World], schema_registry: SchemaRegistry, plugin: str, delivery: str, roles: list[str]
) -> None:
    extra = "[sweep]\ninterval_s = 0\n" if "close" in roles else ""
    world = made(schema_registry.url, extra, plugin=plugin, kafka={"delivery": delivery})
    world.install()
    checked = cdcwatch("check", "-c", world.configuration)
    assert checked.code == 0, checked
    assert "lacks this version's schema; run registers it" in checked.out
    processes = [world.run("--role", role) for role in roles]
    for process in processes:
        process.wait_ready()
    world.connection.execute(INSERT.format("interval '1 hour'", 1, 20))
    world.connection.execute("UPDATE orders SET expires_at = clock_timestamp() + id * interval '40 ms', version = 1")
    processes[0].kill()  # what it had read and not published comes again, with equal ids
    world.connection.execute("UPDATE orders SET status = 'paid' WHERE id = 20")
    processes[0] = world.run("--role", roles[0])
    processes[0].wait_ready()
    world.connection.execute("DELETE FROM orders WHERE id = 19")
    world.wait_nothing_due()
    world.wait_confirmed()
    told = cdcwatch("explain", "5", "-c", world.configuration)
    assert told.code == 0, told
    assert "expired" in told.out
    assert "this version's schema, number" in cdcwatch("check", "-c", world.configuration).out
    for process in processes:
        process.stop()
    assert "tells nothing here" not in world.log.read_text(), "--role close understands every record"
    records = world.judge(exactly_once=delivery == "exactly_once")
    assert {record.event["type"] for record in records} > {
        "deadline.scheduled",
        "deadline.cancelled",
        "deadline.expired",
    }

    found = read_topic(world.bootstrap_servers, world.topic)
    assert all(map(_is_avro, found))
    read = [_as_confluent_reads(record, world.topic, schema_registry.url) for record in found[:10]]
    for record, value in zip(found, read, strict=False):
        headers = {name: data.decode() for name, data in record.headers}
        assert headers["content-type"] == "application/avro"
        assert headers["ce_specversion"] == "1.0"
        assert [headers[f"ce_{name}"] for name in ("id", "source", "type", "subject")] == [
            value[name] for name in ("id", "source", "type", "subject")
        ]
        assert record.key == value["subject"].encode()
        assert value["key"] == {"id": value["subject"]}
        assert value["time"].isoformat(timespec="microseconds") == headers["ce_time"].replace("Z", "+00:00")
    shown = cdcwatch("events", "--from-beginning", "--json", "-c", world.configuration)
    lines = [json.loads(line) for line in shown.out.splitlines()]
    assert sorted(line["id"] for line in lines) == sorted(record.id for record in records)
    assert {line["specversion"] for line in lines} == {"1.0"}


def test_a_topic_holds_both_formats_after_a_switch_and_back(
    made: Callable[..., World], schema_registry: SchemaRegistry
) -> None:
    world = made(schema_registry.url)
    world.install()
    text = world.configuration.read_text()
    assert 'format = "avro"' in text
    for number, kind in enumerate(("json", "avro", "json")):
        world.configuration.write_text(text.replace('format = "avro"', f'format = "{kind}"'))
        with world.running():
            world.connection.execute(INSERT.format("interval '200 ms'", 10 * number, 10 * number + 4))
            world.connection.execute(INSERT.format("interval '1 hour'", 10 * number + 5, 10 * number + 9))
            world.wait_nothing_due_but(5 * (number + 1))
            world.wait_confirmed()
    kinds = [_is_avro(record) for record in read_topic(world.bootstrap_servers, world.topic)]
    assert (sum(kinds), len(kinds)) == (15, 45)
    world.judge()
    shown = cdcwatch("events", "--from-beginning", "--json", "--type", "expired", "-c", world.configuration)
    assert len(shown.out.splitlines()) == 15
    # The topic is compared with the table: what stands in Avro is known as what stands in JSON is.
    compared = cdcwatch("snapshot", "-c", world.configuration)
    assert compared.code == 0, compared
    world.wait_topic_committed()
    assert len(read_topic(world.bootstrap_servers, world.topic)) == 45


def test_a_registry_that_is_away_is_waited_for_and_not_needed_later(made: Callable[..., World]) -> None:
    port = free_port()
    world = made(f"http://reader:hunter2@127.0.0.1:{port}")
    world.install()
    world.listen()
    world.connection.execute(INSERT.format("interval '-1 s'", 1, 3))
    checked = cdcwatch("check", "-c", world.configuration)
    assert checked.code == 3, checked
    assert f"registry at http://127.0.0.1:{port} doesn't answer" in " ".join(checked.out.split())
    process = world.run()
    try:
        wait_until(lambda: "schema registry" in json.dumps(world.readiness()), 30, "/readyz says why")
        world.wait_nothing_due()  # closing goes on
        assert not process.is_ready
        with SmallRegistry(port) as registry:
            process.wait_ready()
            assert registry.asked > 0
        world.connection.execute(INSERT.format("interval '100 ms'", 4, 6))
        world.wait_nothing_due()
        world.wait_confirmed()
        process.stop()
    finally:
        if process.is_running:
            process.kill()
    told = {key: [record.event["type"] for record in its] for key, its in by_key(world.records()).items()}
    assert set(told) == set(range(1, 7))
    assert {types[-1] for types in told.values()} == {"deadline.expired"}
    assert told[4] == told[6] == ["deadline.scheduled", "deadline.expired"]
    assert "hunter2" not in world.log.read_text() + checked.said


def test_what_the_registry_lacks_or_refuses_ends_the_run_with_a_remedy(
    made: Callable[..., World], schema_registry: SchemaRegistry
) -> None:
    world = made(schema_registry.url, "register = false\n")
    world.install()
    for said in (_run_to_its_end(world), cdcwatch("check", "-c", world.configuration).out):
        assert "doesn't have this version's schema" in " ".join(said.split())
        assert "cdcwatch schema --register" in said
    subject = f"{world.topic}-value"
    assert cdcwatch("schema", "--register", "-c", world.configuration).out.startswith(f"{subject}: number ")
    with world.running():
        world.wait_confirmed()
    # Another program's schema stands there first.
    with SchemaRegistryClient({"url": schema_registry.url}) as client:
        client.delete_subject(subject)
        other = {
            "type": "record",
            "name": "DeadlineEvent",
            "namespace": "cdcwatch",
            "fields": [{"name": "n", "type": "int"}],
        }
        client.register_schema(subject, Schema(json.dumps(other), "AVRO"))
        httpx2.put(f"{schema_registry.url}/config/{subject}", json={"compatibility": "FULL"}).raise_for_status()
    world.configuration.write_text(world.configuration.read_text().replace("register = false", "register = true"))
    for said in (_run_to_its_end(world), cdcwatch("check", "-c", world.configuration).out):
        assert "ours is not compatible" in " ".join(said.split())
        assert f"delete the subject {subject}" in " ".join(said.split())


def _run_to_its_end(world: World) -> str:
    before = len(world.log.read_text()) if world.log.exists() else 0
    assert world.run().wait() == 3
    return world.log.read_text()[before:]
