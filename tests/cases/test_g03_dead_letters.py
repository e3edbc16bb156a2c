"""G3: bytes that are no text, which a SQL_ASCII database may hold: a dead letter, and the stream goes on."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from psycopg.conninfo import make_conninfo

from tests import services
from tests.command import ORDERS, cdcwatch, write_configuration
from tests.oracle.world import World
from tests.slots import QUIET
from tests.topic import Found, read_topic
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka, Postgres

WAYS = [("wal2json", "exactly_once"), ("pgoutput", "exactly_once"), ("wal2json", "at_least_once")]


@pytest.fixture
def ascii_database(postgres: Postgres) -> Iterator[Database]:
    """Its texts may be any bytes."""
    with services.fresh_database(postgres, encoding="SQL_ASCII") as database:
        # Else the test's own texts would be bytes.
        database.dsn = make_conninfo(database.dsn, client_encoding="UTF8")
        yield database


def _ids(found: list[Found]) -> dict[str | None, list[str]]:
    """Key to the ids of its events."""
    ids: dict[str | None, list[str]] = {}
    for record in found:
        key = None if record.key is None else record.key.decode()
        ids.setdefault(key, []).append(json.loads(record.value)["id"])
    return ids


def _dead(world: World) -> list[dict[str, Any]]:
    found = read_topic(world.bootstrap_servers, f"{world.topic}.dead")
    records = [json.loads(record.value) for record in found]
    assert [record.key for record in found] == [record["id"].encode() for record in records]
    return records


@pytest.mark.parametrize(("plugin", "delivery"), WAYS)
def test_g03_bytes_that_are_no_text_become_a_dead_letter_and_the_stream_goes_on(
    ascii_database: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str, delivery: str
) -> None:
    with World(
        ascii_database, kafka.bootstrap_servers, topic, tmp_path, kafka={"delivery": delivery}, plugin=plugin
    ) as world:
        world.listen()
        world.install()
        with world.running() as process:
            world.connection.execute(
                "INSERT INTO orders (id, status, expires_at, note) VALUES (1, 'pending', '2999-01-01', NULL),"
                r" (2, E'p\xe9', '2999-01-01', NULL), (3, 'pending', '2999-01-01', E'caf\xe9')"
            )
            world.wait_confirmed()
            assert world.metric("cdcwatch_dead_letters_total") == 1
            process.kill()
        with world.running():
            world.wait_confirmed()
        ids = _ids(read_topic(world.bootstrap_servers, topic))
        assert ids.keys() == {"1", "3"}
        ((first,), (third,)) = ids["1"], ids["3"]
        commit = first.removesuffix("-1")
        assert third == f"{commit}-3", "the row between them has its own ordinal"
        (letter,) = _dead(world)
        assert b"p\xe9" in bytes.fromhex(letter.pop("input_hex"))
        assert letter == {
            "slot": world.slot,
            "commit_lsn": commit,
            "ordinal": 2,
            "id": f"{commit}-2",
            "reason": "column 'status' is not valid UTF-8",
            "about": "row",
            "plugin": plugin,
            "truncated": False,
        }
        told = cdcwatch("events", "--dead", "-c", world.configuration)
        assert told.out == f"{commit}-2  {plugin}  column 'status' is not valid UTF-8\n"
        assert json.loads(cdcwatch("events", "--dead", "--json", "-c", world.configuration).out)["ordinal"] == 2
        checks = {
            one["name"]: one for one in json.loads(cdcwatch("check", "--json", "-c", world.configuration).out)["checks"]
        }
        assert checks["dead_letters"]["state"] == "warn"
        assert "1 dead letter in" in checks["dead_letters"]["message"]
        assert checks["dead_letters"]["remedy"] == "cdcwatch events --dead"
        assert f"{commit}-2: column 'status' is not valid UTF-8" in world.log.read_text()


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_g03_an_order_whose_status_became_bytes_is_passed_over_and_its_neighbours_are_closed(
    ascii_database: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str
) -> None:
    """The dead letter changes nothing in the heap: the close asks the database, which knows better."""
    with World(ascii_database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world:
        world.install()
        with world.running():
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() + interval '2 s' FROM generate_series(1, 3) n"
            )
            world.connection.execute(r"UPDATE orders SET status = E'\xe9' WHERE id = 2")
            world.wait_nothing_due()
            world.wait_confirmed()
        assert world.scalar("SELECT count(*) FROM orders WHERE status = 'expired'") == 2
        assert world.scalar("SELECT encode(status::bytea, 'hex') FROM orders WHERE id = 2") == "e9"
        assert [letter["ordinal"] for letter in _dead(world)] == [1]
        log = world.log.read_text()
        assert "failed" not in log
        assert "closing waits" not in log


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_g03_peek_shows_what_will_be_a_dead_letter(ascii_database: Database, tmp_path: Path, plugin: str) -> None:
    slot = f"slot_{ascii_database.name}"
    shop = write_configuration(
        tmp_path / "shop.toml", ascii_database.dsn, f'[slot]\nname = "{slot}"\nplugin = "{plugin}"\n' + QUIET
    )
    with ascii_database.connect() as connection:
        connection.execute(ORDERS)
        assert cdcwatch("slot", "create", "-c", shop).code == 0
        connection.execute(
            "INSERT INTO orders VALUES (1, 'pending', '2999-01-01'),"
            r" (2, E'p\xe9', '2999-01-01'), (3, 'pending', '2999-01-01')"
        )
        told = cdcwatch("slot", "peek", "--explain", "-c", shop)
        lines = [line.split(maxsplit=3)[1:] for line in told.out.splitlines()[1:4]]
        assert lines == [
            ["insert", "1", "scheduled 2999-01-01T00:00:00.000000Z"],
            ["unreadable", "?", "dead letter: column 'status' is not valid UTF-8"],
            ["insert", "3", "scheduled 2999-01-01T00:00:00.000000Z"],
        ]
        drop = cdcwatch("slot", "drop", "--yes", "-c", shop)
        assert drop.code == 0, drop.said


def test_g03_an_order_that_came_only_as_a_dead_letter_is_closed_on_time(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    """Its key is none that wal2json can tell; the table can, and is asked for what is due about now."""
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.listen()
        world.install(
            "CREATE TABLE orders (id numeric PRIMARY KEY, status text NOT NULL, expires_at timestamptz NOT NULL,"
            " version int NOT NULL DEFAULT 0);"
            "CREATE INDEX ON orders (expires_at) WHERE status = 'pending'"
        )
        with world.running():
            world.connection.execute(
                "INSERT INTO orders (id, status, expires_at) VALUES ('NaN', 'pending', clock_timestamp() + interval '3 s')"
            )

            def status() -> str:
                ((found,),) = world.connection.execute("SELECT status FROM orders")
                return str(found)

            wait_until(lambda: status() == "expired", 30, "the order is closed")
            assert world.metric("cdcwatch_dead_letters_total") == 2, "the insert and the close's own echo"


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_g03_a_key_that_is_no_text_is_never_taken_for_another_orders(
    ascii_database: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str
) -> None:
    """Shown to people it reads like a text, and there may be an order with just that text for its key."""
    with World(ascii_database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world:
        world.install(
            "CREATE TABLE orders (id text PRIMARY KEY, status text NOT NULL, expires_at timestamptz NOT NULL,"
            " version int NOT NULL DEFAULT 0);"
            "CREATE INDEX ON orders (expires_at) WHERE status = 'pending';"
            r"INSERT INTO orders VALUES (E'k\xff', 'pending', '2001-01-01'), (E'k\\xff', 'pending', '2999-01-01')"
        )
        with world.running():
            world.connection.execute("INSERT INTO orders VALUES ('ok', 'pending', '2001-01-01')")
            wait_until(
                lambda: world.scalar("SELECT status FROM orders WHERE id = 'ok'") == "expired", 30, "ok is closed"
            )
            world.wait_confirmed()
        events = [json.loads(record.value) for record in read_topic(world.bootstrap_servers, topic)]
        assert [(event["subject"], event["data"]["deadline"]) for event in events if event["subject"][1:] != "k"] == [
            ("k\\xff", "2999-01-01T00:00:00.000000Z")
        ]
        assert world.log.read_text().count("a key that is no UTF-8: they can't be closed") == 1
