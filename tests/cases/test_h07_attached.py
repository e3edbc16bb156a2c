"""H7, H5: partitions attached with orders in them, detached and truncated: nothing of it is in the stream."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.oracle.world import World
from tests.partitions import PARTITIONED, add_leaf, attach, standalone
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka

DUE = "now() + interval '%s s'"


@pytest.fixture(params=["wal2json", "pgoutput"])
def world(
    request: pytest.FixtureRequest, database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> Iterator[World]:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=request.param) as world:
        world.connection.execute(PARTITIONED)  # type: ignore[call-overload]
        add_leaf(world.connection, "low", 0, 100)
        world.create_slot()
        yield world


def _says(world: World, text: str, times: int = 1) -> None:
    wait_until(lambda: world.log.read_text().count(text) >= times, 60, text)


def _told(world: World) -> dict[str, list[tuple[str, bool]]]:
    """Key to types and whether each is a snapshot's, in order."""
    told: dict[str, list[tuple[str, bool]]] = {}
    for record in world.events():
        event = record.event
        told.setdefault(record.key or "", []).append(
            (event["type"].removeprefix("deadline."), event["data"]["snapshot"])
        )
    return told


def _filled(world: World, name: str, begin: int, *, close_s: int) -> None:
    """Orders `begin` + 1 due soon, + 2 and + 3 in a day, + 4 paid."""
    world.connection.execute(standalone(name))  # type: ignore[call-overload]
    world.connection.execute(
        f"INSERT INTO {name} (id, expires_at, status) VALUES"  # type: ignore[call-overload]
        f" ({begin + 1}, now() + interval '{close_s} s', 'pending'), ({begin + 2}, now() + interval '1 day', 'pending'),"
        f" ({begin + 3}, now() + interval '1 day', 'pending'), ({begin + 4}, now() + interval '1 day', 'paid')"
    )


def test_h07_the_orders_of_an_attached_table_are_told_once_and_closed(world: World) -> None:
    with world.running():
        _filled(world, "filled", 100, close_s=1)
        world.connection.execute(attach("filled", 100, 200))  # type: ignore[call-overload]
        # By the stream, before the partition was noticed: told by the stream alone.
        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (110, now() + interval '1 day')")
        world.connection.execute("UPDATE orders SET status = 'paid' WHERE id = 103")
        world.connection.execute("UPDATE orders SET note = 'says nothing' WHERE id = 102")
        _says(world, "open orders of new partitions were read")
        wait_until(lambda: world.scalar("SELECT status FROM orders WHERE id = 101") == "expired", 20, "closed")
        world.connection.execute("UPDATE orders SET status = 'paid' WHERE id = 102")
        world.wait_confirmed()
    told = _told(world)
    assert told["101"][-1] == ("expired", False)
    # wal2json knows a table by its name: rows that were written just before the ATTACH may come as its own.
    assert [kind for kind, _ in told["102"]] == ["scheduled", "cancelled"]
    assert ("scheduled", True) not in told["103"]
    assert told["103"][-1] == ("cancelled", False)
    assert told["110"] == [("scheduled", False)]
    assert "104" not in told
    assert len({record.id for record in world.events()}) == len(world.events())


def test_h07_attached_while_the_process_was_down_and_the_stream_lags(world: World) -> None:
    with world.running():
        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, now() + interval '1 day')")
        world.wait_confirmed()
    _filled(world, "filled", 100, close_s=1)
    world.connection.execute("UPDATE orders SET expires_at = now() + interval '2 days' WHERE id = 1")
    world.connection.execute(attach("filled", 100, 200))  # type: ignore[call-overload]
    add_leaf(world.connection, "made", 200, 300)
    world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (201, now() + interval '1 day')")
    world.connection.execute("UPDATE orders SET status = 'paid' WHERE id = 103")
    with world.running():
        _says(world, "open orders of new partitions were read")
        world.wait_confirmed()
    with world.running():
        world.connection.execute("UPDATE orders SET status = 'paid' WHERE id = 102")
        world.wait_confirmed()
    told = _told(world)
    assert told["1"] == [("scheduled", False), ("moved", False)]
    assert [one[0] for one in told["102"]][-2:] == ["scheduled", "cancelled"]
    assert told["103"][-1] == ("cancelled", False)
    assert told["201"] == [("scheduled", False)], "it came with the stream, not with the partition"
    assert told["101"][-1] == ("expired", False)
    assert len({record.id for record in world.events()}) == len(world.events())
    assert world.log.read_text().count("open orders of new partitions were read") == 1


def test_h07_detached_orders_leave_the_heap_and_the_others_stay(world: World) -> None:
    add_leaf(world.connection, "high", 100, 200)
    with world.running():
        world.connection.execute(
            "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() + interval '14 s'"
            " FROM unnest(ARRAY[1, 101]) n"
        )
        world.connection.execute("UPDATE orders SET note = 'first' WHERE id = 101")
        world.connection.execute("ALTER TABLE orders DETACH PARTITION high")
        _says(world, "the partition public.high has left")
        wait_until(lambda: world.scalar("SELECT status FROM orders WHERE id = 1") == "expired", 60, "closed")
        world.connection.execute("UPDATE high SET expires_at = expires_at + interval '1 day', note = 'not ours'")
        world.wait_confirmed()
    assert world.scalar("SELECT status FROM high") == "pending"
    told = _told(world)
    assert told["1"] == [("scheduled", False), ("expired", False)]
    assert ("moved", False) not in told["101"], "what happens to a table that is no partition any more"


def test_h05_the_truncate_of_one_leaf_leaves_the_deadlines_of_the_others(world: World) -> None:
    add_leaf(world.connection, "high", 100, 200)
    with world.running():
        world.connection.execute(
            "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() + interval '14 s'"
            " FROM unnest(ARRAY[1, 101]) n"
        )
        world.connection.execute("TRUNCATE high")
        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (102, clock_timestamp() + interval '1 s')")
        _says(world, "the partition public.high was truncated or rewritten")
        world.wait_nothing_due()
        wait_until(lambda: world.scalar("SELECT status FROM orders WHERE id = 1") == "expired", 60, "closed")
        world.wait_confirmed()
    told = _told(world)
    assert told["1"] == told["102"] == [("scheduled", False), ("expired", False)]
    assert "" not in told, "no event that takes all deadlines off"


def test_h05_the_truncate_of_all_says_so_once_for_each_partition_of_the_topic(world: World) -> None:
    add_leaf(world.connection, "high", 100, 200)
    world.connection.execute(
        "CREATE TABLE shops (id int PRIMARY KEY); ALTER TABLE orders ADD COLUMN shop int REFERENCES shops"
    )
    with world.running():
        for statement in ("TRUNCATE orders", "TRUNCATE shops CASCADE"):
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() + interval '1 s'"
                " FROM unnest(ARRAY[1, 101]) n"
            )
            world.connection.execute(statement)  # type: ignore[call-overload]
        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, clock_timestamp())")
        world.wait_nothing_due()
        world.wait_confirmed()
    records = world.events()
    table_wide = [record for record in records if record.key is None]
    assert len(table_wide) == 2 * 3
    assert len({record.id for record in records}) == len(records)
    # T is one ordinal of its transaction, whichever plugin says it how often.
    assert {record.id.partition("-p")[0].rpartition("-")[2] for record in table_wide} == {"1"}


def test_h07_detached_and_dropped_while_the_process_was_down(world: World) -> None:
    """What the slot still holds of a detached partition is told; of one that is gone wal2json can't say whose it was."""
    add_leaf(world.connection, "high", 100, 200)
    add_leaf(world.connection, "highest", 200, 300)
    with world.running():
        world.connection.execute(
            "INSERT INTO orders (id, expires_at) SELECT n, now() + interval '1 day' FROM unnest(ARRAY[1, 101, 201]) n"
        )
        world.wait_confirmed()
    world.connection.execute("UPDATE orders SET status = 'paid' WHERE id = 101")
    world.connection.execute("ALTER TABLE orders DETACH PARTITION high")
    with world.running():
        world.wait_confirmed()
    assert _told(world)["101"] == [("scheduled", False), ("cancelled", False)]
    world.connection.execute("UPDATE orders SET status = 'paid' WHERE id = 201")
    world.connection.execute("DROP TABLE highest")
    names_the_table = 'plugin = "pgoutput"' in world.configuration.read_text()
    if not names_the_table:
        process = world.run()
        assert process.wait() == 3
        assert "rows of public.highest, which is gone" in world.log.read_text()
    with world.running(*([] if names_the_table else ["--accept-gap"])):
        world.wait_confirmed()
    told = _told(world)
    assert (("cancelled", False) in told["201"]) == names_the_table
    assert told["1"][0] == ("scheduled", False)


@pytest.mark.parametrize("when", ["streaming", "down"])
def test_h07_detached_changed_and_attached_again_between_two_looks(world: World, when: str) -> None:
    add_leaf(world.connection, "high", 100, 200)
    process = world.run()
    process.wait_ready()
    world.connection.execute(
        "INSERT INTO orders (id, expires_at) SELECT n, now() + interval '1 day' FROM unnest(ARRAY[1, 101, 102, 103]) n"
    )
    world.wait_confirmed()
    if when == "down":
        process.stop()
    # Of a state that is over by the ATTACH: it must not hold back what the table shows after.
    world.connection.execute("UPDATE orders SET expires_at = now() + interval '2 days' WHERE id = 101")
    with world.connection.transaction():
        world.connection.execute("ALTER TABLE orders DETACH PARTITION high")
        world.connection.execute("UPDATE high SET expires_at = now() + interval '1 s' WHERE id = 101")
        world.connection.execute("DELETE FROM high WHERE id = 102")
        world.connection.execute("INSERT INTO high (id, expires_at) VALUES (104, now() + interval '1 day')")
        world.connection.execute(attach("high", 100, 200))  # type: ignore[call-overload]
    if when == "down":
        process = world.run()
        process.wait_ready()
    _says(world, "the partition public.high was detached and attached again")
    wait_until(lambda: world.scalar("SELECT status FROM orders WHERE id = 101") == "expired", 60, "closed")
    _says(world, "open orders of new partitions were read")
    world.wait_confirmed()
    process.stop()
    with world.running():
        world.wait_confirmed()
    told = _told(world)
    assert told["101"][-1] == ("expired", False)
    assert told["104"][-1] == ("scheduled", True)
    assert ("scheduled", True) in told["103"]
    assert told["1"] == [("scheduled", False)], "the other partition was not read"
    assert len({record.id for record in world.events()}) == len(world.events())
    assert world.log.read_text().count("open orders of new partitions were read") == 1
