"""Redis as the bus, under load: cdcwatch killed, Redis killed, frozen and restored; judged by the same oracle."""

from __future__ import annotations

import random
import shutil
import signal
from typing import TYPE_CHECKING

import pytest

from tests.fault.crash import Crashes, CrashPoint, crashes_under_load
from tests.fault.test_kill import assert_survived, killed_again_and_again
from tests.fault.test_outages import insert_due
from tests.fault.test_workers import Crew, wait_shared
from tests.oracle.redis_world import RedisWorld
from tests.oracle.traffic import Traffic
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cdcwatch.local import LocalRedis
    from tests.services import Database, Redis


@pytest.fixture
def world(database: Database, own_redis: LocalRedis, tmp_path: Path) -> Iterator[RedisWorld]:
    """On a Redis of its own, that may be killed."""
    with RedisWorld(database, own_redis, tmp_path) as world:
        world.install()
        yield world


def test_cdcwatch_killed_at_random_under_load(
    database: Database, redis_server: Redis, stream: str, tmp_path: Path
) -> None:
    with RedisWorld(database, redis_server, tmp_path, stream=stream, plugin="pgoutput") as world:
        world.install()
        seed = random.randrange(10**6)
        print(f"seed {seed}")
        with world.running():
            pass
        sightings = killed_again_and_again(world, random.Random(seed), seed)
        assert_survived(world, sightings, seed)


def test_redis_killed_and_started_again_and_again_under_load(world: RedisWorld, own_redis: LocalRedis) -> None:
    sightings = []
    with world.running():
        with Traffic(world.database.dsn, seed=5).running() as traffic:
            for _ in range(4):
                before = traffic.committed
                wait_until(lambda: traffic.committed > before + 30, 60, "traffic")  # noqa: B023
                own_redis.kill()
                confirmed_lsn = world.confirmed_lsn()
                own_redis.start()
                sightings.append((confirmed_lsn, world.sent_ends()))
        world.wait_nothing_due()
        world.wait_confirmed()
    assert_survived(world, sightings, 5)


@pytest.mark.soak  # half a minute: as long as a stop waits
def test_sigterm_with_redis_away_ends_with_4_and_confirms_nothing(world: RedisWorld, own_redis: LocalRedis) -> None:
    process = world.run()
    process.wait_ready()
    world.wait_confirmed()
    own_redis.kill()
    insert_due(world, 0)
    world.wait_nothing_due()  # closing goes on
    confirmed_lsn = world.confirmed_lsn()
    process.stop(exit_code=4)
    assert world.confirmed_lsn() == confirmed_lsn
    said = world.log.read_text()
    assert "Redis" in said
    assert "Kafka" not in said
    own_redis.start()
    with world.running():
        world.wait_confirmed()
    world.judge()


@pytest.mark.soak  # the same
def test_sigterm_while_redis_is_frozen_ends_with_4(world: RedisWorld, own_redis: LocalRedis) -> None:
    process = world.run()
    process.wait_ready()
    world.wait_confirmed()
    own_redis.signal(signal.SIGSTOP)
    try:
        insert_due(world, 0)
        world.wait_nothing_due()
        confirmed_lsn = world.confirmed_lsn()
        process.stop(exit_code=4)
        assert world.confirmed_lsn() == confirmed_lsn
    finally:
        own_redis.signal(signal.SIGCONT)
    # What the dead process had sent is in Redis' socket: it may still come in, before the next process or after it.
    with world.running():
        world.wait_confirmed()
    world.judge()


@pytest.mark.soak  # the suite of all sinks has the fence itself
def test_a_frozen_process_writes_nothing_once_another_has_taken_over(world: RedisWorld) -> None:
    crashes = Crashes(world)  # an impatient server gives the slot away
    with world.running():
        pass
    with Traffic(world.database.dsn, seed=7).running():
        old = world.run()
        old.wait_ready()
        old.signal(signal.SIGSTOP)
        try:
            with world.running():
                world.wait_confirmed()
                old.signal(signal.SIGCONT)
                world.wait_confirmed()
                old.stop()
        finally:
            old.kill() if old.is_running else None
    crashes.recovered()


def test_a_redis_that_was_restored_from_an_older_copy_is_told_as_a_gap(
    world: RedisWorld, own_redis: LocalRedis, tmp_path: Path
) -> None:
    """As after a failover to a replica that lacked the newest events."""
    copy = tmp_path / "copy"
    with world.running():
        insert_due(world, 0)
        world.wait_nothing_due()
        world.wait_confirmed()
    own_redis.stop()
    shutil.copytree(own_redis.directory / "appendonlydir", copy)
    own_redis.start()
    process = world.run()
    process.wait_ready()
    insert_due(world, 1000)
    world.wait_nothing_due()
    world.wait_confirmed()
    own_redis.kill()
    shutil.rmtree(own_redis.directory / "appendonlydir")
    shutil.copytree(copy, own_redis.directory / "appendonlydir")
    own_redis.start()
    insert_due(world, 2000)
    assert process.wait() == 3
    assert "beyond the last event" in world.log.read_text()
    with world.running("--accept-gap"):
        world.wait_nothing_due()
        world.wait_confirmed()
    assert any(record.is_gap for record in world.records())
    with world.running():  # it is told once
        world.wait_confirmed()


POINTS = [
    CrashPoint("redis.sent", "kill", "3"),
    CrashPoint("redis.written", "kill", "2"),
    CrashPoint("redis.sent", "raise", "2"),
]


def test_ended_at_every_hand_off_to_redis(database: Database, redis_server: Redis, stream: str, tmp_path: Path) -> None:
    with RedisWorld(database, redis_server, tmp_path, stream=stream) as world:
        world.install()
        with crashes_under_load(world, 11) as crashes:
            for point in POINTS:
                crashes.crash(point)
        crashes.recovered()


def test_workers_close_on_while_redis_is_away_and_have_their_streams_again_afterwards(
    world: RedisWorld, own_redis: LocalRedis, tmp_path: Path
) -> None:
    world.environment["CDCWATCH_SWEEP__INTERVAL_S"] = "0"  # it would close what the workers leave
    with world.running("--role", "read"), Crew(world, tmp_path) as crew:
        a, b = crew.start("a"), crew.start("b")
        wait_shared(a, b, partitions=3)
        own_redis.kill()
        insert_due(world, 0)
        world.wait_nothing_due()
        own_redis.start()
        insert_due(world, 1000)
        world.wait_nothing_due()
        world.wait_confirmed()
        wait_until(lambda: all(one.metric("cdcwatch_ready") for one in (a, b)), 30, "ready again")
        wait_shared(a, b, partitions=3)
    world.judge()
