"""Redis as the bus from one end to the other: check, run in its roles, events, explain, slot, recover, snapshot, tables."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

import pytest

from cdcwatch.failpoints import VARIABLE
from cdcwatch.handoff.redis.ledger import find_progress
from cdcwatch.settings import RedisSettings
from tests.command import cdcwatch
from tests.fault.test_outages import insert_due
from tests.fault.test_workers import Crew, wait_shared
from tests.oracle.redis_world import RedisWorld, records_in
from tests.oracle.traffic import Traffic
from tests.several import SeveralWorld
from tests.streams_of_redis import opened
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cdcwatch.local import LocalRedis
    from tests.oracle.subscriber import Record
    from tests.services import Database, Redis


@pytest.fixture
def world(database: Database, redis_server: Redis, stream: str, tmp_path: Path) -> Iterator[RedisWorld]:
    with RedisWorld(database, redis_server, tmp_path, stream=stream) as world:
        world.install()
        yield world


def test_the_commands_work_on_streams(world: RedisWorld) -> None:
    file = world.configuration
    checked = cdcwatch("check", "-c", file)
    assert checked.code == 0, checked.said
    assert f"{world.topic}.0, {world.topic}.1, {world.topic}.2: missing; run makes 3 streams" in checked.out
    assert "appendfsync always" in checked.out
    world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01'), (2, '2999-01-01')")
    world.listen()
    with world.running():
        insert_due(world, 100)
        world.wait_nothing_due_but(2)
        world.wait_confirmed()
        world.connection.execute("UPDATE orders SET expires_at = '2998-01-01', version = 1 WHERE id = 1")
        world.wait_confirmed()
        top = cdcwatch("top", "-c", file)
        assert "Stream" in top.out, top.said
        assert "Topic" not in top.out
        assert f"{world.topic}.progress has the progress" in cdcwatch("check", "-c", file).out
        assert "3 streams, 43 events" in cdcwatch("check", "-c", file).out

    last = cdcwatch("events", "-n", "1", "-c", file).out
    assert "moved" in last
    assert "2998-01-01" in last
    every = cdcwatch("events", "--from-beginning", "--json", "-c", file).out.splitlines()
    assert len(every) == len(world.records()) == 43
    own = cdcwatch("events", "--key", "1", "--type", "scheduled", "--json", "-c", file).out
    assert json.loads(own)["subject"] == "1"
    assert len(cdcwatch("events", "-n", "5", "-c", file).out.splitlines()) == 5
    assert "no dead letter matches" in cdcwatch("events", "--dead", "-c", file).said
    explained = cdcwatch("explain", "1", "-c", file).out
    assert "moved" in explained
    assert "scheduled" in explained
    assert "2999-01-01" in cdcwatch("pending", "-c", file).out
    assert "topic's flush_lsn     0/" in cdcwatch("slot", "status", "-c", file).out

    dropped = cdcwatch("slot", "drop", "--yes", "-c", file)
    assert dropped.code == 0, dropped.said
    made = cdcwatch("slot", "create", "--snapshot", "-c", file)
    assert made.code == 0, made.said
    assert find_progress(RedisSettings(url=world.url, stream=world.topic, partitions=3), world.slot) is None


def test_a_gap_is_recovered_from_and_a_stream_made_anew_is_told_of_open_orders(world: RedisWorld) -> None:
    file = world.configuration
    world.connection.execute("INSERT INTO orders (id, expires_at) SELECT n, '2999-01-01' FROM generate_series(1, 50) n")
    with world.running():
        world.wait_confirmed()
    world.connection.execute("DELETE FROM orders WHERE id <= 10")
    moved = cdcwatch("slot", "advance", "--to", "current", "--yes", "-c", file)
    if moved.code:  # as of another version of the command
        world.connection.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [world.slot])
    recovered = cdcwatch("recover", "--yes", "-c", file)
    assert recovered.code == 0, recovered.said
    records = world.records()
    assert sum(record.is_gap for record in records) == 3, "one a partition"
    gone = {record.key for record in records if record.event["type"] == "deadline.cancelled"}
    assert gone == {str(number) for number in range(1, 11)}

    with opened(world.url) as client:
        client.delete(f"{world.topic}.0", f"{world.topic}.1", f"{world.topic}.2")
    told = cdcwatch("snapshot", "-c", file)
    assert told.code == 0, told.said
    with world.running():
        world.wait_confirmed()
    assert {record.key for record in world.events()} == {str(number) for number in range(11, 51)}


class SeveralRedis(SeveralWorld):
    """Several tables, each with streams of its own."""

    def __init__(self, database: Database, server: Redis, stream: str, folder: Path) -> None:
        self.url = server.url
        super().__init__(
            database,
            "127.0.0.1:9",
            {"shop": f"{stream}.shop", "hotel": f"{stream}.hotel"},
            folder,
            progress="unused",
            plugin="pgoutput",
            extra=f'[sink]\nkind = "redis"\n[redis]\nurl = "{server.url}"\nstream = "{stream}"\npartitions = 2\n',
        )

    def records_of(self, schema: str) -> list[Record]:
        return records_in(self.url, self.topics[schema], 2)

    def wait_topic_committed(self) -> None: ...


def test_several_tables_have_streams_of_their_own(
    database: Database, redis_server: Redis, stream: str, tmp_path: Path
) -> None:
    with SeveralRedis(database, redis_server, stream, tmp_path) as world:
        world.make()
        world.create_slot()
        with world.running():
            world.insert(range(20))
            world.wait_nothing_due()
            world.wait_confirmed()
            world.connection.execute("TRUNCATE shop.orders")
            world.wait_confirmed()
        assert sum(record.key is None for record in world.records_of("shop")) == 2
        assert len(world.judge()) == 82
        checked = cdcwatch("check", "-c", world.configuration)
        assert checked.code == 0, checked.said
        assert f"{stream}.hotel: 2 streams, 40 events" in checked.out
        listed = cdcwatch("events", "--from-beginning", "--topic", f"{stream}.hotel", "-c", world.configuration).out
        assert len(listed.splitlines()) == 40


def test_events_follow_over_a_restart_of_redis(
    database: Database, own_redis: LocalRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cdcwatch.handoff.redis.tail import StreamTail

    with RedisWorld(database, own_redis, tmp_path) as world:
        world.install()
        with world.running():
            tail = StreamTail(RedisSettings(url=own_redis.url, partitions=3), world.topic)
            insert_due(world, 0, 5)
            wait_until(lambda: tail.came(0.1), 20, "an event")
            own_redis.kill()
            wait_until(lambda: tail.came(0.01) is None, 20, "nothing more, and no error")
            own_redis.start()
            insert_due(world, 100, 5)
            wait_until(
                lambda: (record := tail.came(0.1)) is not None and record.key == b"101", 30, "events after the restart"
            )
            tail.close()
            world.wait_nothing_due()


def test_a_first_read_that_was_killed_is_whole_afterwards(world: RedisWorld) -> None:
    world.connection.execute(
        "INSERT INTO orders (id, expires_at) SELECT n, '2999-01-01' FROM generate_series(1, 2500) n"
    )
    for point in ("redis.staged", "redis.moved"):
        process = world.run(environment={VARIABLE: f"{point}=kill"})
        assert process.wait() == -9
    with world.running():
        world.wait_confirmed()
    assert sorted(int(record.key or 0) for record in world.records()) == list(range(1, 2501))


@pytest.mark.soak  # test_redis_group.py has the leases, tests/fault/test_redis.py workers without Redis
def test_workers_come_and_go_under_load(world: RedisWorld, tmp_path: Path) -> None:
    world.environment["CDCWATCH_SWEEP__INTERVAL_S"] = "0"  # it would find what the workers lose
    checked = cdcwatch("check", "--role", "close", "-c", world.configuration)
    assert "no stream" in checked.out, checked.said
    with world.running("--role", "read"), Crew(world, tmp_path) as crew:
        assert "0 workers in it" in cdcwatch("check", "--role", "close", "-c", world.configuration).out
        with Traffic(world.database.dsn, seed=int(time.time())).running() as traffic:
            a, b = crew.start("a"), crew.start("b")
            wait_shared(a, b, partitions=3)
            before = traffic.committed
            wait_until(lambda: traffic.committed > before + 100, 60, "traffic")
            a.process.kill()
            wait_shared(b, partitions=3)
            c = crew.start("c")
            wait_shared(b, c, partitions=3)
            b.process.stop()
            wait_shared(c, partitions=3)
        world.wait_nothing_due()
        world.wait_confirmed()
    world.judge()
