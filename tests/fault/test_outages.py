"""The broker or the database goes away: closing goes on, nothing is lost, and the process says what it waits for."""

from __future__ import annotations

import contextlib
import signal
from typing import TYPE_CHECKING

import pytest

from tests import services
from tests.oracle.traffic import Traffic
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cdcwatch.local import LocalKafka, LocalPostgres
    from tests.oracle.world import Process
    from tests.services import Database, Kafka

TOPIC = "orders.deadlines"


@pytest.fixture
def world(database: Database, own_kafka: LocalKafka, tmp_path: Path) -> Iterator[World]:
    """On a broker of its own, that may be killed."""
    services.create_topic(own_kafka, TOPIC, partitions=3)
    with World(database, own_kafka.bootstrap_servers, TOPIC, tmp_path) as world:
        world.install()
        yield world


def insert_due(world: World, first_id: int, count: int = 20) -> None:
    world.connection.execute(
        "INSERT INTO orders (id, expires_at) SELECT %s + n, clock_timestamp() + n * interval '10 ms'"
        " FROM generate_series(1, %s) n",
        [first_id, count],
    )


def test_j09_closing_goes_on_while_the_broker_is_killed_and_events_follow(world: World, own_kafka: LocalKafka) -> None:
    with world.running():
        insert_due(world, 0)
        world.wait_nothing_due()
        world.wait_confirmed()
        confirmed_lsn = world.confirmed_lsn()
        own_kafka.kill()
        insert_due(world, 1000)
        world.wait_nothing_due()
        assert world.scalar("SELECT count(*) FROM orders WHERE status = 'expired'") == 40
        assert world.confirmed_lsn() == confirmed_lsn, "nothing is confirmed that is not durable"
        own_kafka.start()
        world.wait_confirmed()
    world.judge()


def test_j02_j03_the_broker_killed_again_and_again_under_load(world: World, own_kafka: LocalKafka) -> None:
    with world.running():
        with Traffic(world.database.dsn, seed=3).running() as traffic:
            for _ in range(3):
                before = traffic.committed
                wait_until(lambda: traffic.committed > before + 30, 60, "traffic")  # noqa: B023
                own_kafka.kill()
                own_kafka.start()
        world.wait_nothing_due()
        world.wait_confirmed()
    world.judge()


def test_j09_the_broker_away_at_the_start(world: World, own_kafka: LocalKafka) -> None:
    world.listen()
    own_kafka.stop()
    confirmed_lsn = world.confirmed_lsn()
    insert_due(world, 0)
    process = world.run()
    try:
        world.wait_nothing_due()
        state = wait_until(lambda: (s := world.readiness())["closer"].get("ready") and s, 30, "the closer works")
        assert state["ready"] is False
        insert_due(world, 2000)  # in no scan of the table: the stream is scouted for its deadlines
        world.wait_nothing_due()
        assert world.confirmed_lsn() == confirmed_lsn
        own_kafka.start()
        process.wait_ready()
        wait_until(lambda: world.readiness()["ready"] is True, 30, "ready; what was scouted is taken anew about now")
        world.wait_confirmed()
        process.stop()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()


def test_j04_sigterm_with_the_broker_away_ends_with_4_and_confirms_nothing(world: World, own_kafka: LocalKafka) -> None:
    process = world.run()
    process.wait_ready()
    world.wait_confirmed()
    own_kafka.kill()
    insert_due(world, 0)
    world.wait_nothing_due()
    confirmed_lsn = world.confirmed_lsn()
    process.stop(exit_code=4)
    assert world.confirmed_lsn() == confirmed_lsn
    own_kafka.start()
    with world.running():
        world.wait_confirmed()
    world.judge()


def test_j04_a_second_sigterm_ends_at_once(world: World, own_kafka: LocalKafka) -> None:
    process = world.run()
    process.wait_ready()
    own_kafka.kill()
    insert_due(world, 0)
    world.wait_nothing_due()
    confirmed_lsn = world.confirmed_lsn()
    process.signal(signal.SIGTERM)
    # Until the first has arrived there is nothing a second could add.
    wait_until(lambda: "stopping" in world.log.read_text(), 10, "the first SIGTERM is heard")
    process.signal(signal.SIGTERM)
    assert process.wait(120) == 4
    assert world.confirmed_lsn() == confirmed_lsn


@pytest.mark.parametrize("mode", ["immediate", "fast"])
def test_postgres_restarted_under_load(
    own_postgres: LocalPostgres, kafka: Kafka, topic: str, tmp_path: Path, mode: str
) -> None:
    with (
        services.fresh_database(own_postgres) as database,
        World(database, kafka.bootstrap_servers, topic, tmp_path) as world,
    ):
        world.install()
        with world.running() as process:
            insert_due(world, 0, 200)
            wait_until(lambda: world.scalar("SELECT count(*) FROM orders WHERE status <> 'pending'"), 30, "a close")
            world.connection.close()
            own_postgres.restart(mode)
            world.connection = database.connect()
            insert_due(world, 1000, 50)
            world.wait_nothing_due()
            world.wait_confirmed()
            assert process.is_running
        world.judge()


def test_a_second_process_stands_by_and_takes_over(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        first = world.run()
        first.wait_ready()
        second = world.run()
        try:
            wait_until(lambda: "standby" in world.log.read_text(), 30, "the second says that it stands by")
            holder = world.scalar("SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", world.slot)
            assert f"pid {holder}" in world.log.read_text()
            insert_due(world, 0)
            world.wait_nothing_due()
            first.kill()
            insert_due(world, 1000)
            second.wait_ready()
            world.wait_nothing_due()
            world.wait_confirmed()
            second.stop()
        finally:
            for process in (first, second):
                if process.is_running:
                    process.kill()
        world.judge()


@contextlib.contextmanager
def second_took_over(world: World) -> Iterator[tuple[Process, Process]]:
    """The first process sleeps (SIGSTOP) without its slot, which the second has; neither outlives the block."""
    world.install()
    first = world.run()
    first.wait_ready()
    insert_due(world, 0)
    world.wait_nothing_due()
    world.wait_confirmed()
    first.signal(signal.SIGSTOP)
    second = world.run()
    try:
        world.connection.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", [world.slot]
        )
        second.wait_ready()
        yield first, second
    finally:
        for process in (first, second):
            if process.is_running:
                process.kill()


def fenced_as_it_wakes(world: World) -> None:
    """The first wakes up while the second works; both are ended."""
    with second_took_over(world) as (first, second):
        insert_due(world, 1000)
        first.signal(signal.SIGCONT)
        world.wait_nothing_due()
        world.wait_confirmed()
        for process in (second, first):
            process.signal(signal.SIGTERM)
        second.wait()
        first.wait()


def test_a_process_that_lost_its_slot_is_fenced(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> None:
    """The first is stopped (SIGSTOP) past the server's patience; the second takes over; the first wakes up."""
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        fenced_as_it_wakes(world)
        world.judge()


def test_what_is_missing_is_said_with_its_remedy(database: Database, kafka: Kafka, tmp_path: Path) -> None:
    with World(database, kafka.bootstrap_servers, "no.such.topic", tmp_path) as world:
        world.connection.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, status text, version int, expires_at timestamptz)"
        )
        without_slot = world.run()
        assert without_slot.wait() == 3
        assert "remedy: cdcwatch slot create" in world.log.read_text()
        world.create_slot()
        without_topic = world.run()
        assert without_topic.wait() == 3
        assert "kafka-topics.sh" in world.log.read_text()
        assert "--create --topic no.such.topic" in world.log.read_text()


def test_a_renamed_table_stops_the_process_and_the_gap_is_remembered(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        process = world.run()
        process.wait_ready()
        world.connection.execute("ALTER TABLE orders RENAME TO purchases")
        world.connection.execute("INSERT INTO purchases (id, expires_at) VALUES (1, '2999-01-01')")
        assert process.wait() == 3
        assert "public.orders is now called public.purchases" in world.log.read_text()
        world.configuration.write_text(world.configuration.read_text() + '[table]\nname = "public.purchases"\n')
        refused = world.run()
        assert refused.wait() == 3
        assert "events may be missing" in world.log.read_text()
        with world.running("--accept-gap"):
            world.wait_confirmed()
        assert [record.key for record in world.events()] == ["1"]
        with world.running():
            pass


def test_a_process_that_gets_its_slot_back_begins_anew(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    """The first sleeps, the second takes over, publishes and dies; the first wakes to a slot that stands further on."""
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        with second_took_over(world) as (first, second):
            insert_due(world, 1000)
            world.wait_nothing_due()
            world.wait_confirmed()
            second.kill()
            first.signal(signal.SIGCONT)
            insert_due(world, 2000)
            world.wait_nothing_due()
            world.wait_confirmed()
            assert "beginning anew" in world.log.read_text()
            first.stop()
        world.judge()
