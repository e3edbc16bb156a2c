"""E8, F10: an order under another key, and deadlines that DDL moves without a word: nothing is closed for what it was."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.oracle.ledger import SCHEMA
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka


@pytest.fixture(params=["wal2json", "pgoutput"])
def world(
    request: pytest.FixtureRequest, database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> Iterator[World]:
    extra = '[close.set]\nnote = "clock_timestamp()::text"\n'
    with World(database, kafka.bootstrap_servers, topic, tmp_path, extra, plugin=request.param) as world:
        yield world


def _told(world: World) -> dict[str, list[tuple[str, str | None]]]:
    """By key: type and reason, in order."""
    told: dict[str, list[tuple[str, str | None]]] = {}
    for record in world.records():
        kind = record.event["type"].partition(".")[2]
        told.setdefault(str(record.key), []).append((kind, record.event["data"].get("reason")))
    return told


def test_e08_the_old_key_is_let_go_of(world: World) -> None:
    """Order 3 becomes 33 before its deadline, and another order takes the number 3."""
    world.install()
    with world.running():
        world.connection.execute(
            "INSERT INTO orders (id, expires_at) VALUES (3, clock_timestamp() + interval '1500 ms')"
        )
        world.connection.execute("UPDATE orders SET id = 33, version = version + 1 WHERE id = 3")
        world.connection.execute(
            "INSERT INTO orders (id, expires_at, version) VALUES (3, clock_timestamp() + interval '1 day', 1)"
        )
        wait_until(lambda: world.scalar("SELECT status FROM orders WHERE id = 33") == "expired", 30, "33 is closed")
        world.wait_confirmed()
        assert world.scalar("SELECT status FROM orders WHERE id = 3") == "pending"
    told = _told(world)
    assert told["3"] == [("scheduled", None), ("cancelled", "deleted"), ("scheduled", None)]
    assert told["33"] == [("scheduled", None), ("expired", None)]


@pytest.mark.parametrize("identity", ["DEFAULT", "FULL"])
def test_f10_a_deadline_that_ddl_moves_is_kept(world: World, identity: str) -> None:
    """ALTER COLUMN … TYPE … USING writes every row anew and tells of none."""
    world.connection.execute(SCHEMA)
    world.connection.execute(f"ALTER TABLE orders REPLICA IDENTITY {identity}; DROP INDEX orders_identity")  # type: ignore[call-overload]
    world.create_slot()
    with world.running():
        world.connection.execute(
            "INSERT INTO orders (id, expires_at) VALUES (1, clock_timestamp() + interval '1500 ms'),"
            " (2, clock_timestamp() + interval '3 s')"
        )
        world.wait_confirmed()
        retyped = "ALTER TABLE orders ALTER expires_at TYPE timestamptz USING expires_at + interval '2500 ms'"
        if world.scalar("SELECT count(*) FROM pg_publication_rel WHERE prattrs IS NOT NULL"):
            with pytest.raises(
                psycopg.errors.FeatureNotSupported
            ):  # PostgreSQL keeps a publication's columns as they are
                world.connection.execute(retyped)
            retyped = f"BEGIN; ALTER PUBLICATION cdcwatch_orders SET TABLE orders; {retyped}; COMMIT"
        world.connection.execute(retyped)  # type: ignore[call-overload]
        world.wait_nothing_due()
        world.wait_confirmed()
    rows = world.connection.execute("SELECT id, note::timestamptz >= expires_at, version FROM orders ORDER BY id")
    assert rows.fetchall() == [(1, True, 1), (2, True, 1)]
    assert [kind for kind, _ in _told(world)["1"]] == ["scheduled", "expired"]
