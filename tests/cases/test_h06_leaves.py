"""H6, H7, E4: a partitioned table while it streams, with both plugins: rows of every leaf, whenever it came."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest

from tests.oracle.traffic import Traffic
from tests.oracle.world import World
from tests.partitions import PARTITIONED, add_leaf, attach, standalone
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka


@pytest.fixture(params=["wal2json", "pgoutput"])
def world(
    request: pytest.FixtureRequest, database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> Iterator[World]:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=request.param) as world:
        world.connection.execute(PARTITIONED)  # type: ignore[call-overload]
        add_leaf(world.connection, "low", 0, 100)
        world.create_slot()
        yield world


def test_h06_every_leaf_of_every_level_and_schema_is_read_and_closed(world: World) -> None:
    world.connection.execute(
        'CREATE SCHEMA "Old Shop"; CREATE TABLE deep PARTITION OF orders FOR VALUES FROM (100) TO (200)'
        " PARTITION BY RANGE (id)"
    )
    world.connection.execute(standalone('"Old Shop".deeper') + attach('"Old Shop".deeper', 100, 150, "deep"))  # type: ignore[call-overload]
    with world.running():
        # Unknown as the stream began, one of them not even in a schema that was there.
        add_leaf(world.connection, "later", 200, 300)
        world.connection.execute("CREATE SCHEMA newer")
        world.connection.execute(standalone("newer.deepest") + attach("newer.deepest", 150, 200, "deep"))  # type: ignore[call-overload]
        world.connection.execute(
            "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() + interval '200 ms'"
            " FROM unnest(ARRAY[1, 110, 160, 210]) n"
        )
        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (50, now() + interval '1 hour')")
        world.connection.execute("UPDATE orders SET id = 250 WHERE id = 50")
        world.connection.execute(
            "UPDATE orders SET note = 'n', expires_at = expires_at + interval '1 s' WHERE id = 250"
        )
        world.connection.execute("UPDATE orders SET status = 'paid', version = version + 1 WHERE id = 250")
        world.wait_nothing_due()
        world.wait_confirmed()
    records = world.judge()
    assert {record.event["source"].rpartition("/")[2] for record in records} == {"public.orders"}


def test_h06_killed_under_load_while_partitions_come(world: World) -> None:
    """Rows move between partitions as their keys change sign; partitions change between two kills."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    choose = random.Random(seed)
    add_leaf(world.connection, "more", 100, 10_000_000)
    add_leaf(world.connection, "second", 10_000_000, "MAXVALUE")
    add_leaf(world.connection, "below", -10_000_000, 0)
    add_leaf(world.connection, "far_below", "MINVALUE", -10_000_000)
    with world.running():
        pass
    with Traffic(world.database.dsn, seed=seed).running() as traffic:
        for number in range(3):
            process = world.run()
            process.wait_ready()
            threading.Event().wait(choose.uniform(0, 0.7))  # any moment
            process.kill()
            if number == 1:
                with world.connection.transaction():
                    world.connection.execute("ALTER TABLE orders DETACH PARTITION second")
                    world.connection.execute(attach("second", 10_000_000, 20_000_000))  # type: ignore[call-overload]
                    add_leaf(world.connection, "third", 20_000_000, "MAXVALUE")
        committed = traffic.committed
        wait_until(lambda: traffic.committed > committed + 50, 60, "traffic")
    with world.running():
        world.wait_nothing_due()
        world.wait_confirmed()
    world.judge()
