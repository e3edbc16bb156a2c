"""H1: one transaction of very many rows: bounded memory, status updates all the while, one confirmation at its commit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition
from psycopg.conninfo import make_conninfo

from tests.command import ORDERS
from tests.oracle.subscriber import committed_ends
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.oracle.world import Process
    from tests.services import Database, Kafka

MOST_GROWTH_BYTES = 200 << 20
IN_TIME_S = 300
SIZES = [150_000, pytest.param(1_000_000, marks=pytest.mark.soak)]
PLUGINS = ["wal2json", "pgoutput"]


@pytest.fixture
def world(
    database: Database,
    kafka: Kafka,
    topic: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> Iterator[World]:
    """Its server gives up a reader that is silent for three seconds."""
    hasty = make_conninfo(database.dsn, options="-c wal_sender_timeout=3s")
    monkeypatch.setenv("CDCWATCH_POSTGRES__REPLICATION_DSN", hasty)
    with World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=request.param) as world:
        world.connection.execute(ORDERS)
        world.create_slot()
        yield world


def insert(world: World, rows: int) -> None:
    """In one transaction; due beyond the window, so that nothing of it stays in memory."""
    world.connection.execute(
        "INSERT INTO orders SELECT n, 'pending', '2999-01-01', 0 FROM generate_series(1, %s) n", [rows]
    )


def published(world: World) -> int:
    """Offsets that a read_committed subscriber can read up to; markers of transactions take some too."""
    return sum(committed_ends(world.bootstrap_servers, world.topic).values())


def peak_bytes(process: Process) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1]) << 10


def event_ids(world: World) -> list[str]:
    """Of all that a read_committed subscriber finds."""
    consumer = Consumer(
        {
            "bootstrap.servers": world.bootstrap_servers,
            "group.id": "tests",  # never joined
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "enable.auto.commit": False,
        }
    )
    partitions = list(consumer.list_topics(world.topic, timeout=10).topics[world.topic].partitions)
    consumer.assign([TopicPartition(world.topic, partition, 0) for partition in partitions])
    unfinished, ids = set(partitions), []

    def is_read() -> bool:
        for message in consumer.consume(10_000, timeout=0.5):
            error = message.error()
            if error is None:
                ids.append((message.value() or b"").split(b'"', 8)[7].decode())
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                unfinished.discard(message.partition())
        return not unfinished

    try:
        wait_until(is_read, IN_TIME_S, "the end of the topic", every_s=0)
    finally:
        consumer.close()
    return ids


def assert_each_once(world: World, rows: int) -> int:
    """Every ordinal of one commit, once; the commit's LSN."""
    ids = event_ids(world)
    assert len(ids) == rows
    commits = {one.rpartition("-")[0] for one in ids}
    assert len(commits) == 1
    assert {int(one.rpartition("-")[2]) for one in ids} == set(range(1, rows + 1))
    high, low = commits.pop().split("/")
    return int(high, 16) << 32 | int(low, 16)


@pytest.mark.parametrize("rows", SIZES)
@pytest.mark.parametrize("world", PLUGINS, indirect=True)
def test_h01_memory_stays_bounded_and_the_commit_alone_is_confirmed(world: World, rows: int) -> None:
    with world.running() as process:
        world.wait_confirmed()
        before_bytes = peak_bytes(process)
        insert(world, rows)
        confirmed: list[int] = []

        def is_confirmed() -> bool:
            if published(world) > rows // 10:  # in its middle
                confirmed.append(world.confirmed_lsn())
            return bool(confirmed) and confirmed[-1] >= end_lsn

        end_lsn = world.current_lsn()
        wait_until(is_confirmed, IN_TIME_S, "all of it is confirmed", every_s=0.05)
        growth_bytes = peak_bytes(process) - before_bytes
        print(f"{rows} rows: grown by {growth_bytes >> 20} MiB, {len(confirmed)} looks")
        assert growth_bytes < MOST_GROWTH_BYTES
    commit_lsn = assert_each_once(world, rows)
    assert len({lsn for lsn in confirmed if lsn < commit_lsn}) == 1, "in its middle nothing is confirmed"
    assert "again in" not in world.log.read_text(), "the server never gave the reader up"


@pytest.mark.parametrize("world", PLUGINS, indirect=True)
@pytest.mark.parametrize("rows", SIZES)
def test_h01_killed_twice_in_its_middle_every_event_comes_once(world: World, rows: int) -> None:
    process = world.run()
    process.wait_ready()
    insert(world, rows)
    end_lsn, seen = world.current_lsn(), 0
    for _ in range(2):
        more = seen + rows // 10
        seen = wait_until(lambda: (now := published(world)) > more and now, IN_TIME_S, "some of it is published")  # noqa: B023
        process.kill()
        assert world.confirmed_lsn() < end_lsn
        assert seen < rows, "it was in the middle"
        process = world.run()
        process.wait_ready()
    world.wait_confirmed(end_lsn, IN_TIME_S)
    process.stop()
    assert_each_once(world, rows)
