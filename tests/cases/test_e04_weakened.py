"""E4, E6: replica identity or primary key taken away while it streams, and while nobody read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.oracle.ledger import SCHEMA
from tests.oracle.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka

BY_KEY = SCHEMA.replace("ALTER TABLE orders REPLICA IDENTITY USING INDEX orders_identity;\n", "")
PLUGINS = ["wal2json", "pgoutput"]


@pytest.fixture(params=PLUGINS)
def plugin(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(plugin: str, database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> Iterator[World]:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world:
        yield world


@pytest.mark.parametrize(
    ("schema", "weakened", "said", "mended"),
    [
        (
            SCHEMA,
            "ALTER TABLE orders REPLICA IDENTITY DEFAULT",
            "its replica identity no longer logs status and deadline",
            "",
        ),
        (
            BY_KEY,
            "ALTER TABLE orders REPLICA IDENTITY NOTHING",
            "is NOTHING",
            "ALTER TABLE orders REPLICA IDENTITY DEFAULT",
        ),
        (
            BY_KEY,
            "ALTER TABLE orders DROP CONSTRAINT orders_pkey",
            "has no primary key",
            "ALTER TABLE orders ADD PRIMARY KEY (id)",
        ),
    ],
    ids=["weakened", "nothing", "no key"],
)
def test_e06_found_and_remembered(world: World, schema: str, weakened: str, said: str, mended: str) -> None:
    world.install(schema)
    world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, now() + interval '1 day')")
    process = world.run()
    process.wait_ready()
    world.connection.execute(weakened)  # type: ignore[call-overload]
    world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (2, now() + interval '1 day')")
    assert process.wait() == 3
    assert said in world.log.read_text()
    if mended:
        world.connection.execute(mended)  # type: ignore[call-overload]
    assert world.run().wait() == 3
    assert "events may be missing" in world.log.read_text()
    with world.running("--accept-gap"):
        world.wait_confirmed()
    with world.running():
        world.wait_confirmed()
    assert {record.key for record in world.events()} == {"1", "2"}


def test_e04_changes_that_vanished_while_nobody_read(world: World, plugin: str) -> None:
    """The identity is as it was again when the process comes back: what wal2json left out meanwhile, it tells of."""
    world.install(BY_KEY)
    with world.running():
        world.connection.execute(
            "INSERT INTO orders (id, expires_at) SELECT n, now() + interval '1 day' FROM generate_series(1, 2) n"
        )
        world.wait_confirmed()
    world.connection.execute("ALTER TABLE orders REPLICA IDENTITY NOTHING")
    if plugin == "pgoutput":
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState, match="does not have a replica identity"):
            world.connection.execute("UPDATE orders SET status = 'paid' WHERE id = 1")
        return
    assert world.run().wait() == 3
    world.connection.execute("UPDATE orders SET status = 'paid' WHERE id = 1")
    world.connection.execute("ALTER TABLE orders REPLICA IDENTITY DEFAULT")
    process = world.run()
    assert process.wait() == 3
    assert "UPDATE or DELETE of public.orders is missing from the stream" in world.log.read_text()
    assert world.run().wait() == 3
    assert "events may be missing" in world.log.read_text()
    with world.running("--accept-gap"):
        world.connection.execute("UPDATE orders SET status = 'paid' WHERE id = 2")
        world.wait_confirmed()
    with world.running():
        world.wait_confirmed()
    told = [(record.key, record.event["type"]) for record in world.events() if record.key == "2"]
    assert told[-1] == ("2", "deadline.cancelled")
    assert told.count(("2", "deadline.cancelled")) == 1
