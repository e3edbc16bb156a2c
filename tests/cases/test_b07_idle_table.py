"""B7: the watched table is idle and others are busy: the slot must not keep their WAL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import services
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import psycopg

    from cdcwatch.local import LocalPostgres
    from tests.services import Database, Kafka

FOREIGN_BYTES = 100 << 20
MOST_RETAINED_BYTES = 16 << 20
PLUGINS = ["wal2json", "pgoutput"]
BUSY = ["another table", "another database"]


@pytest.fixture(scope="module")
def server() -> Iterator[LocalPostgres]:
    """On which nobody else writes."""
    with services.local_postgres() as server:
        yield server


@pytest.fixture
def idle(server: LocalPostgres) -> Iterator[Database]:
    with services.fresh_database(server) as database:
        yield database


def write(writer: psycopg.Connection[tuple[object, ...]], world: World, size_bytes: int) -> None:
    writer.execute("CREATE TABLE other (id int, note text)")
    begin_lsn = world.current_lsn()
    while world.current_lsn() - begin_lsn < size_bytes:
        writer.execute("INSERT INTO other SELECT n, repeat('x', 1000) FROM generate_series(1, 10000) n")


def retained_bytes(world: World) -> int:
    query = "SELECT (pg_current_wal_lsn() - restart_lsn)::int8 FROM pg_replication_slots WHERE slot_name = %s"
    return int(world.scalar(query, world.slot))


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("busy", BUSY)
def test_b07_what_others_write_is_not_kept(
    server: LocalPostgres, idle: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str, busy: str
) -> None:
    with (
        services.fresh_database(server) as other,
        World(idle, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world,
    ):
        world.install()
        with world.running(), (idle if busy == "another table" else other).connect() as writer:
            write(writer, world, FOREIGN_BYTES)

            def is_released() -> bool:
                # The server moves restart_lsn with what a checkpoint, or its background writer, notes in the WAL.
                writer.execute("CHECKPOINT")
                return retained_bytes(world) < MOST_RETAINED_BYTES

            wait_until(is_released, 60, "WAL of others is released", every_s=0.2)
        assert world.records() == []


@pytest.mark.soak
@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("busy", BUSY)
def test_b07_a_gigabyte_of_others_leaves_64_megabytes_at_most_without_any_checkpoint_asked_for(
    server: LocalPostgres, idle: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str, busy: str
) -> None:
    with (
        services.fresh_database(server) as other,
        World(idle, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world,
    ):
        world.install()
        with world.running(), (idle if busy == "another table" else other).connect() as writer:
            write(writer, world, 1 << 30)
            wait_until(lambda: retained_bytes(world) <= 64 << 20, 60, "WAL of others is released", every_s=1.0)
            print(f"{plugin}, {busy}: {retained_bytes(world) >> 20} MiB are retained")


@pytest.mark.parametrize("plugin", PLUGINS)
def test_b07_a_heartbeat_moves_the_slot_on_a_server_where_nobody_writes(
    idle: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str
) -> None:
    with World(idle, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world:
        world.install()
        world.connection.execute("SELECT pg_create_logical_replication_slot('look', 'test_decoding')")

        def beats() -> int:
            query = "SELECT count(*) FROM pg_logical_slot_peek_changes('look', NULL, NULL) WHERE data LIKE %s"
            return int(world.scalar(query, "message: transactional: 0 prefix: cdcwatch%"))

        with world.running():
            world.wait_confirmed()
        assert beats() == 0, "off by default"
        text = world.configuration.read_text()
        world.configuration.write_text(text.replace("[slot]\n", "[slot]\nheartbeat_s = 0.1\n"))
        with world.running():
            for count in (2, 4):
                wait_until(lambda count=count: beats() >= count, 30, "the heart beats")
                world.wait_confirmed()
        assert world.records() == []
        world.connection.execute("SELECT pg_drop_replication_slot('look')")
