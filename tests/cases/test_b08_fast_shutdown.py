"""B8: a fast shutdown of the server waits for the slot's reader, so that the reader must always answer."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests import services
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cdcwatch.local import LocalKafka, LocalPostgres
    from tests.services import Kafka

TOPIC = "orders.deadlines"
PLUGINS = ["wal2json", "pgoutput"]
STOP_TIMEOUT_S = 60


@contextmanager
def stopping(server: LocalPostgres, times: int = 1) -> Iterator[threading.Thread]:
    """A fast shutdown, asked for and on its way; over at the end of the block. `times`: the how many-eth it is."""
    thread = threading.Thread(target=server.stop, kwargs={"timeout_s": STOP_TIMEOUT_S})
    thread.start()
    said = "received fast shutdown request"
    wait_until(lambda: server.log_path.read_text().count(said) >= times, 20, "the shutdown begins")
    yield thread
    thread.join(STOP_TIMEOUT_S)
    assert not thread.is_alive()
    assert server.pid is None, "it was the server that ended, not our patience"


@pytest.mark.parametrize("plugin", PLUGINS)
def test_b08_it_ends_at_once_with_a_healthy_reader_and_the_reader_comes_back(
    own_postgres: LocalPostgres, kafka: Kafka, topic: str, tmp_path: Path, plugin: str
) -> None:
    with (
        services.fresh_database(own_postgres) as database,
        World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world,
    ):
        world.install()
        with world.running() as process:
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01')")
            world.connection.close()
            with stopping(own_postgres):
                pass
            own_postgres.start()
            world.connection = database.connect()
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (2, '2999-01-01')")
            world.wait_confirmed()
            assert process.is_running
        assert sorted(record.key or "" for record in world.records()) == ["1", "2"]


@pytest.mark.parametrize("plugin", PLUGINS)
def test_b08_with_the_broker_away_it_waits_and_nothing_is_confirmed_for_it(
    own_postgres: LocalPostgres, own_kafka: LocalKafka, tmp_path: Path, plugin: str
) -> None:
    """The runbook says so: the server wants everything confirmed that it has sent, and that isn't durable."""
    services.create_topic(own_kafka, TOPIC)
    with (
        services.fresh_database(own_postgres) as database,
        World(database, own_kafka.bootstrap_servers, TOPIC, tmp_path, plugin=plugin) as world,
    ):
        world.install()
        with world.running() as process:
            world.wait_confirmed()
            own_kafka.kill()
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01')")
            world.connection.close()
            with stopping(own_postgres) as shutdown:
                own_kafka.start()
                assert shutdown.is_alive(), "as long as the event is not durable"
            assert process.is_running
            own_postgres.start()
            world.connection = database.connect()
            world.wait_confirmed()
            assert [record.key for record in world.records()] == ["1"]
            own_kafka.kill()
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (2, '2999-01-01')")
            world.connection.close()
            with stopping(own_postgres, times=2) as shutdown:
                assert shutdown.is_alive()
                process.kill()  # the way out that the runbook names
            own_postgres.start()
            world.connection = database.connect()
            assert world.confirmed_lsn() < world.current_lsn()


@pytest.mark.parametrize("plugin", PLUGINS)
def test_b08_with_the_process_asleep_it_ends_once_that_wakes(
    own_postgres: LocalPostgres, kafka: Kafka, topic: str, tmp_path: Path, plugin: str
) -> None:
    with (
        services.fresh_database(own_postgres) as database,
        World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world,
    ):
        world.install()
        with world.running() as process:
            world.wait_confirmed()
            process.signal(signal.SIGSTOP)
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01')")
            world.connection.close()
            with stopping(own_postgres) as shutdown:
                assert shutdown.is_alive()
                process.signal(signal.SIGCONT)
            own_postgres.start()
            world.connection = database.connect()
            world.wait_confirmed()
        assert [record.key for record in world.records()] == ["1"]
