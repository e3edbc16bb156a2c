"""H9: DDL on the table's columns while it streams, and while the slot lags: rows carry the names of their own time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.oracle.ledger import SCHEMA, expected_events, read_ledger
from tests.oracle.subscriber import assert_topic
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.services import Database, Kafka

RENAMES = (
    "ALTER TABLE orders RENAME expires_at TO deadline; ALTER TABLE orders RENAME status TO state;"
    "ALTER TABLE orders RENAME version TO revision; ALTER TABLE orders RENAME id TO number;"
)
LEDGER_RENAMED = (
    "CREATE OR REPLACE FUNCTION write_ledger() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
    " INSERT INTO ledger (old_id, new_id, old_status, new_status, old_deadline, new_deadline)"
    " VALUES (OLD.number, NEW.number, OLD.state, NEW.state, OLD.deadline, NEW.deadline); RETURN NULL; END $$"
)
BOTH_NAMES = (
    '[table]\nkey = ["number|id"]\ndeadline = "deadline|expires_at"\nstatus = "status|state"\n'
    'version = "version|revision"\n'
)
OLD_NAMES = (
    "INSERT INTO orders (id, expires_at) SELECT n, now() + interval '1 day' FROM generate_series(1, 4) n;"
    "UPDATE orders SET expires_at = expires_at + interval '1 h', version = version + 1 WHERE id = 2;"
    "UPDATE orders SET status = 'paid', version = version + 1 WHERE id = 3;"
)
NEW_NAMES = (
    "INSERT INTO orders (number, deadline) SELECT n, now() + interval '1 s' FROM generate_series(5, 6) n;"
    "UPDATE orders SET state = 'paid', revision = revision + 1 WHERE number IN (2, 4);"
    "UPDATE orders SET number = 11 WHERE number = 1; DELETE FROM orders WHERE number = 11;"
)
# Of columns that nobody watches, and of watched ones to types that hold the same.
OTHER_DDL = (
    "ALTER TABLE orders ADD COLUMN first int DEFAULT 1;"
    "ALTER TABLE orders DROP COLUMN note; ALTER TABLE orders ADD COLUMN note text;"
    "ALTER TABLE orders RENAME first TO other; ALTER TABLE orders ALTER other TYPE bigint;"
)
RETYPE = (
    "ALTER TABLE orders ALTER id TYPE bigint, ALTER status TYPE text, ALTER expires_at TYPE timestamptz,"
    " ALTER version TYPE bigint"
)
NARROW = (
    SCHEMA.replace("id bigint PRIMARY", "id int PRIMARY", 1)
    .replace("status text NOT NULL DEFAULT", "status varchar(20) NOT NULL DEFAULT", 1)
    .replace("expires_at timestamptz NOT NULL", "expires_at timestamptz(3) NOT NULL", 1)
)
AFTER = (
    "INSERT INTO orders (id, expires_at, note) VALUES (5, now() + interval '1 s', 'n');"
    "UPDATE orders SET status = 'paid', version = version + 1 WHERE id = 2;"
    "DELETE FROM orders WHERE id = 1; UPDATE orders SET id = 44 WHERE id = 4;"
)


@pytest.fixture(params=["wal2json", "pgoutput"])
def made(
    request: pytest.FixtureRequest, database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> Iterator[Callable[[str, str], World]]:
    """Makes a world with a table and the rest of a configuration."""
    worlds: list[World] = []

    def make(schema: str, rest: str) -> World:
        world = World(database, kafka.bootstrap_servers, topic, tmp_path, rest, plugin=request.param)
        worlds.append(world)
        world.install(schema)
        return world

    yield make
    for world in worlds:
        world.connection.close()


def _do(world: World, statements: str) -> None:
    for statement in statements.split(";"):
        if statement.strip():
            world.connection.execute(statement)  # type: ignore[call-overload]


def _retype(world: World) -> None:
    """PostgreSQL refuses it of a column that a publication lists: the list is taken off meanwhile, as the runbook says."""
    publication = world.scalar("SELECT max(pubname) FROM pg_publication")
    if publication is None:
        _do(world, RETYPE)
    else:
        with pytest.raises(psycopg.errors.FeatureNotSupported, match="publication"):
            _do(world, RETYPE)
        with world.connection.transaction():
            _do(
                world,
                f"ALTER PUBLICATION {publication} SET TABLE orders; {RETYPE};"
                f"ALTER PUBLICATION {publication} SET TABLE orders (id, status, expires_at, version)",
            )
    world.connection.close()  # its trigger's plans know the old types
    world.connection = world.database.connect()


def _rename(world: World) -> None:
    with world.connection.transaction():
        world.connection.execute(RENAMES)  # type: ignore[call-overload]
        world.connection.execute(LEDGER_RENAMED)


def _all_told(world: World, expired: int) -> None:
    records = world.records()
    assert_topic(records, expected_events(read_ledger(world.connection)), exactly_once=True)
    assert [record.event["type"] for record in records].count("deadline.expired") == expired


def _expired(world: World, status: str, count: int) -> None:
    wait_until(lambda: world.scalar(f"SELECT count(*) FROM orders WHERE {status} = 'expired'") == count, 60, "closed")


@pytest.mark.parametrize("when", ["lagging", "streaming"])
def test_h09_renamed_with_both_names_in_the_configuration(made: Callable[[str, str], World], when: str) -> None:
    world = made(SCHEMA, BOTH_NAMES)
    with world.running():
        world.wait_confirmed()
        if when == "streaming":
            _do(world, OLD_NAMES)
            _rename(world)
            _do(world, NEW_NAMES)
            _expired(world, "state", 2)
            world.wait_confirmed()
            assert "is now called" in world.log.read_text()
    if when == "lagging":
        _do(world, OLD_NAMES)
        _rename(world)
        _do(world, NEW_NAMES)
        with world.running():
            _expired(world, "state", 2)
            world.wait_confirmed()
    _all_told(world, 2)


def test_h09_a_slot_that_is_read_late(made: Callable[[str, str], World]) -> None:
    """The first read of the table knows the new names alone; what the slot holds has both."""
    world = made(SCHEMA, BOTH_NAMES)
    _do(world, OLD_NAMES)
    _rename(world)
    _do(world, NEW_NAMES)
    with world.running():
        _expired(world, "state", 2)
        world.wait_confirmed()
    assert {record.key for record in world.records()} == {"5", "6"}, "the others had ended before it was read"


def test_h09_renamed_without_being_told_stops_with_nothing_missed(made: Callable[[str, str], World]) -> None:
    world = made(SCHEMA, "")
    process = world.run()
    process.wait_ready()
    _do(world, OLD_NAMES)
    _rename(world)
    _do(world, NEW_NAMES)
    assert process.wait() == 3
    said = world.log.read_text() + " "
    assert "no column 'expires_at'" in said or "no column 'id'" in said, said
    world.configuration.write_text(world.configuration.read_text() + BOTH_NAMES)
    with world.running():
        _expired(world, "state", 2)
        world.wait_confirmed()
    _all_told(world, 2)


@pytest.mark.parametrize("when", ["lagging", "streaming"])
def test_h09_other_columns_and_types_that_hold_the_same(made: Callable[[str, str], World], when: str) -> None:
    world = made(NARROW, "")
    with world.running():
        world.wait_confirmed()
        if when == "streaming":
            _do(world, OLD_NAMES)
            _do(world, OTHER_DDL)
            _retype(world)
            _do(world, AFTER)
            _expired(world, "status", 1)
            world.wait_confirmed()
    if when == "lagging":
        _do(world, OLD_NAMES)
        _do(world, OTHER_DDL)
        _retype(world)
        _do(world, AFTER)
        with world.running():
            _expired(world, "status", 1)
            world.wait_confirmed()
    _all_told(world, 1)
