"""`cdcwatch recover` and `cdcwatch snapshot`: the topic says what the table says, each thing once, and run goes on."""

from __future__ import annotations

import io
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from tests import services
from tests.command import cdcwatch, run_to_the_end
from tests.oracle.world import World
from tests.slots import outrun
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cdcwatch.local import LocalPostgres
    from tests.command import Ended
    from tests.services import Database, Kafka

FAR = "2999-01-01"
LATER = "2999-02-02"


def _recover(world: World, *arguments: str) -> Ended:
    return run_to_the_end("recover", "-c", world.configuration, *arguments)


def _told(world: World, after: int) -> dict[str, list[tuple[Any, ...]]]:
    """Key to what was told of it beyond the topic's first `after` records: type, deadline, previous, reason."""
    told: dict[str, list[tuple[Any, ...]]] = {}
    for record in sorted(world.records(), key=lambda one: one.commit_lsn)[after:]:
        if record.is_gap:
            continue
        data = record.event["data"]
        said = (
            record.event["type"].removeprefix("deadline."),
            (data["deadline"] or "")[:10],
            (data["previous_deadline"] or "")[:10],
            data.get("reason"),
        )
        told.setdefault(record.key or "", []).append(said)
    return told


@pytest.mark.parametrize(
    ("plugin", "delivery", "policy"),
    [("wal2json", "exactly_once", "delete"), ("pgoutput", "at_least_once", "compact")],
)
def test_a_slot_that_is_lost_while_run_reads_it_is_recovered(
    sparing: LocalPostgres,
    kafka: Kafka,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plugin: str,
    delivery: str,
    policy: str,
) -> None:
    with (
        services.fresh_topic(kafka, config={"cleanup.policy": policy}) as topic,
        services.fresh_database(sparing) as database,
        World(database, kafka.bootstrap_servers, topic, tmp_path, kafka={"delivery": delivery}, plugin=plugin) as world,
    ):
        world.install()
        connection = world.connection
        process = world.run("--role", "read")
        process.wait_ready()
        connection.execute("INSERT INTO orders (id, expires_at) SELECT n, %s FROM generate_series(1, 5) n", [FAR])
        world.wait_confirmed()
        known = len(world.records())
        process.signal(signal.SIGSTOP)
        # Nothing of what follows is on its way to the process already.
        connection.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active")
        wait_until(
            lambda: world.scalar("SELECT NOT bool_or(active) FROM pg_replication_slots"), 20, "nobody reads the slot"
        )
        connection.execute("UPDATE orders SET expires_at = %s WHERE id = 2", [LATER])
        connection.execute("UPDATE orders SET status = 'paid' WHERE id = 3")
        connection.execute("UPDATE orders SET status = 'expired' WHERE id = 4")
        connection.execute("DELETE FROM orders WHERE id = 5")
        connection.execute("INSERT INTO orders (id, expires_at) VALUES (6, %s), (7, 'infinity')", [FAR])
        outrun(sparing)
        process.signal(signal.SIGCONT)
        assert process.wait() == 3, "terminal: no endless retry"
        assert "remedy: cdcwatch recover" in world.log.read_text()
        assert world.run().wait() == 3, "nor at the next start"
        assert world.log.read_text().count("remedy: cdcwatch recover") == 2

        looked = cdcwatch("recover", "--dry-run", "-c", world.configuration)
        assert looked.code == 0, looked
        assert "is lost" in looked.out
        assert "pg_create_logical_replication_slot" in looked.out
        assert len(world.records()) == known
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        assert cdcwatch("recover", "-c", world.configuration).code == 2, "nobody answers"
        done = _recover(world, "--yes")
        assert done.code == 0, done
        records = world.records()
        gaps = [record for record in records if record.is_gap]
        assert [record.partition for record in gaps] == [0, 1, 2]
        for gap in gaps:
            after = [one for one in records if one.partition == gap.partition and one.event["data"]["snapshot"]]
            assert after[0] == gap, "the gap is told before what follows from it"
            data = gap.event["data"]
            assert "stands at" in data["reason"]
            assert data["from_lsn"] < data["to_lsn"]
            assert gap.id.startswith("gap-")
        assert len({record.id for record in records}) == len(records)
        assert _told(world, known) == {
            "2": [("moved", LATER, FAR, None)],
            "3": [("cancelled", FAR, FAR, "paid")],
            "4": [("expired", FAR, FAR, None)],
            "5": [("cancelled", "", FAR, "vanished")],
            "6": [("scheduled", FAR, "", None)],
        }

        again = cdcwatch("recover", "--yes", "-c", world.configuration)
        assert again.code == 3
        assert "nothing is wrong" in again.err
        with world.running("--role", "read"):
            connection.execute("INSERT INTO orders (id, expires_at) VALUES (8, %s)", [FAR])
            world.wait_confirmed()
            busy = cdcwatch("recover", "--yes", "-c", world.configuration)
            assert busy.code == 3
            assert "is read by" in busy.err
        assert len(world.records()) == len(records) + 1


PARTITIONED = """
CREATE TABLE orders (
  id bigint, shop text NOT NULL DEFAULT 'a', status text NOT NULL DEFAULT 'pending', expires_at timestamptz NOT NULL,
  version int NOT NULL DEFAULT 0, PRIMARY KEY (id, shop)) PARTITION BY LIST (shop);
CREATE TABLE orders_a PARTITION OF orders FOR VALUES IN ('a');
CREATE TABLE orders_b PARTITION OF orders FOR VALUES IN ('b');
CREATE TABLE orders_c (LIKE orders INCLUDING ALL);
"""


@pytest.fixture(params=["wal2json", "pgoutput"])
def world(
    request: pytest.FixtureRequest, database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> Iterator[World]:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=request.param) as world:
        yield world


def test_partitions_that_came_and_went_and_a_truncate_in_the_gap(world: World) -> None:
    world.install(PARTITIONED)
    connection = world.connection
    insert = "INSERT INTO {} (id, shop, expires_at) VALUES (%s, %s, '2999-01-01')"
    with world.running("--role", "read"):
        for key, shop in ((1, "a"), (2, "b"), (3, "a")):
            connection.execute(insert.format("orders"), [key, shop])  # type: ignore[call-overload]
        world.wait_confirmed()
    known = len(world.records())
    missing = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s"
    connection.execute(missing, [world.slot])
    connection.execute("TRUNCATE orders_a")
    connection.execute(insert.format("orders"), [4, "a"])  # type: ignore[call-overload]
    connection.execute("ALTER TABLE orders DETACH PARTITION orders_b")
    connection.execute(insert.format("orders_c"), [5, "c"])  # type: ignore[call-overload]
    connection.execute("ALTER TABLE orders ATTACH PARTITION orders_c FOR VALUES IN ('c')")
    stopped = world.run()
    assert stopped.wait() == 3
    assert "where there was one, cdcwatch recover" in world.log.read_text()
    done = _recover(world, "--yes")
    assert done.code == 0, done
    assert "and the topic holds events of one" in done.out
    assert _told(world, known) == {
        '["1","a"]': [("cancelled", "", FAR, "vanished")],
        '["2","b"]': [("cancelled", "", FAR, "vanished")],
        '["3","a"]': [("cancelled", "", FAR, "vanished")],
        '["4","a"]': [("scheduled", FAR, "", None)],
        '["5","c"]': [("scheduled", FAR, "", None)],
    }
    told = len(world.records())
    with world.running("--role", "read"):
        connection.execute(insert.format("orders"), [6, "c"])  # type: ignore[call-overload]
        world.wait_confirmed()
    assert set(_told(world, told)) == {'["6","c"]'}, "the partitions are known: nothing is told twice"


@pytest.mark.parametrize("world", ["wal2json"], indirect=True)
def test_a_snapshot_on_request_tells_what_the_topic_lost(world: World) -> None:
    world.install()
    never = cdcwatch("recover", "--yes", "-c", world.configuration)
    assert never.code == 3
    assert "nothing is wrong" in never.err
    with world.running("--role", "read"):
        world.connection.execute(
            "INSERT INTO orders (id, expires_at) SELECT n, '2999-01-01' FROM generate_series(1, 9) n"
        )
        world.wait_confirmed()
        busy = cdcwatch("snapshot", "-c", world.configuration)
        assert busy.code == 3
        assert "is read by" in busy.err
    first = [record for record in world.records() if record.partition == 0]
    assert 0 < len(first) < 9
    world.connection.execute("UPDATE orders SET expires_at = '2999-02-02' WHERE id = 9")
    admin = AdminClient({"bootstrap.servers": world.bootstrap_servers, "log_level": 0})
    for done in admin.delete_records([TopicPartition(world.topic, 0, -1)]).values():
        done.result(20)
    left = len(world.records())
    assert run_to_the_end("snapshot", "-c", world.configuration).code == 0
    told = _told(world, left)
    assert set(told) == {record.key for record in first} | {"9"}
    assert not [record for record in world.records() if record.is_gap], "nothing was missing of the stream"
    count = len(world.records())
    assert run_to_the_end("snapshot", "-c", world.configuration).code == 0
    with world.running("--role", "read"):
        world.wait_confirmed()
    assert len(world.records()) == count, "the stream doesn't repeat what the read has shown"


@pytest.mark.parametrize("world", ["wal2json"], indirect=True)
def test_a_snapshot_with_the_broker_away_ends_with_the_reason(world: World) -> None:
    world.install()
    text = world.configuration.read_text()
    with socket.socket() as held:  # bound, never listening: refused at once
        held.bind(("127.0.0.1", 0))
        world.configuration.write_text(text.replace(world.bootstrap_servers, f"127.0.0.1:{held.getsockname()[1]}"))
        away = run_to_the_end("snapshot", "-c", world.configuration)
    assert away.code == 3
    assert away.err.splitlines()[-2].startswith("cdcwatch: Kafka: ")
    assert "remedy: " in away.err
