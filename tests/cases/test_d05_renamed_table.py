"""D5: the watched table under another name: followed by its OID, or a stop with the reason; never passed over."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.oracle.ledger import SCHEMA
from tests.oracle.world import World

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka

PLUGINS = ["wal2json", "pgoutput"]
RENAMED = {
    "renamed": ("ALTER TABLE orders RENAME TO purchases", "public.purchases"),
    "other schema": ("CREATE SCHEMA shop; ALTER TABLE orders SET SCHEMA shop", "shop.orders"),
}
INSERT = "INSERT INTO {} (id, expires_at) VALUES ({}, now() + interval '1 day')"


@pytest.fixture(params=PLUGINS)
def plugin(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def world(plugin: str, database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> Iterator[World]:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world:
        world.install()
        with world.running():
            world.connection.execute(INSERT.format("orders", 1))  # type: ignore[call-overload]
            world.wait_confirmed()
        yield world


def _watch(world: World, name: str) -> None:
    world.configuration.write_text(world.configuration.read_text() + f'[table]\nname = "{name}"\n')


def _keys(world: World) -> list[str | None]:
    return sorted((record.key or "") for record in world.events() if not record.event["data"]["snapshot"])


@pytest.mark.parametrize("how", RENAMED)
def test_d05_renamed_while_it_streams(world: World, plugin: str, how: str) -> None:
    statement, name = RENAMED[how]
    process = world.run()
    process.wait_ready()
    world.connection.execute(statement)  # type: ignore[call-overload]
    world.connection.execute(INSERT.format(name, 2))  # type: ignore[call-overload]
    assert process.wait() == 3
    assert f"public.orders is now called {name}" in world.log.read_text()
    _watch(world, name)
    if plugin == "wal2json":
        assert world.run().wait() == 3, "what came under the new name was filtered out"
        assert "events may be missing" in world.log.read_text()
    with world.running(*(["--accept-gap"] if plugin == "wal2json" else [])):
        world.connection.execute(INSERT.format(name, 3))  # type: ignore[call-overload]
        world.wait_confirmed()
    records = world.events()
    assert {record.key for record in records} == {"1", "2", "3"}
    assert (_keys(world) == ["1", "2", "3"]) == (plugin == "pgoutput")


@pytest.mark.parametrize("how", RENAMED)
def test_d05_renamed_while_the_process_was_down(world: World, plugin: str, how: str) -> None:
    """What is in the slot carries both names."""
    statement, name = RENAMED[how]
    world.connection.execute(INSERT.format("orders", 2))  # type: ignore[call-overload]
    world.connection.execute(statement)  # type: ignore[call-overload]
    world.connection.execute(INSERT.format(name, 3))  # type: ignore[call-overload]
    assert world.run().wait() == 3
    assert "there is no table public.orders" in world.log.read_text()
    _watch(world, name)
    if plugin == "wal2json":
        assert world.run().wait() == 3
        assert f"public.orders is now called {name}" in world.log.read_text()
    with world.running(*(["--accept-gap"] if plugin == "wal2json" else [])):
        world.wait_confirmed()
    assert {record.key for record in world.events()} == {"1", "2", "3"}
    assert _keys(world) == (["1", "2", "3"] if plugin == "pgoutput" else ["1"])
    with world.running():  # and the record has the new name
        world.wait_confirmed()


def test_d05_another_table_took_the_name_while_the_process_was_down(world: World, plugin: str) -> None:
    world.connection.execute(
        "ALTER TABLE orders RENAME TO orders_2025; ALTER INDEX orders_pkey RENAME TO pkey_2025;"
        "ALTER INDEX orders_open RENAME TO open_2025; ALTER INDEX orders_identity RENAME TO identity_2025"
    )
    world.connection.execute(SCHEMA.partition("CREATE TABLE ledger")[0])  # type: ignore[call-overload]
    if plugin == "pgoutput":
        world.connection.execute(f"ALTER PUBLICATION {_publication(world)} ADD TABLE orders")  # type: ignore[call-overload]
    assert world.run().wait() == 3
    assert "the topic's progress is of another table than public.orders" in world.log.read_text()


def _publication(world: World) -> str:
    return str(world.scalar("SELECT pubname FROM pg_publication"))
