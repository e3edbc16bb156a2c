"""B1: a keepalive's position is confirmed only when nothing lies before it that is read and not durable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cdcwatch.lsn import parse_lsn
from tests import services
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from cdcwatch.local import LocalKafka
    from tests.services import Database

TOPIC = "orders.deadlines"


def _sent_lsn(world: World) -> int:
    """How far the server has sent; 0 while nobody reads."""
    text = world.scalar(
        "SELECT coalesce(max(sent_lsn), '0/0')::text FROM pg_stat_replication JOIN pg_replication_slots"
        " ON active_pid = pid WHERE slot_name = %s",
        world.slot,
    )
    return parse_lsn(text)


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_b01_while_an_event_is_in_flight_no_keepalive_is_confirmed_and_a_crash_loses_nothing(
    database: Database, own_kafka: LocalKafka, tmp_path: Path, plugin: str
) -> None:
    services.create_topic(own_kafka, TOPIC)
    with World(database, own_kafka.bootstrap_servers, TOPIC, tmp_path, plugin=plugin) as world:
        world.install()
        world.connection.execute("CREATE TABLE other (id int)")
        with world.running() as process:
            world.wait_confirmed()
            own_kafka.kill()
            before_lsn = world.current_lsn()
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01')")
            after_lsn = world.current_lsn()
            for number in range(20):  # all about nothing: keepalives and empty transactions
                world.connection.execute("INSERT INTO other VALUES (%s)", [number])
            told = world.scalar("SELECT clock_timestamp()")
            wait_until(lambda: _sent_lsn(world) > after_lsn, 30, "the server has sent what lies behind the order")
            wait_until(
                lambda: world.scalar(
                    "SELECT coalesce(bool_or(reply_time > %s), false) FROM pg_stat_replication"
                    " JOIN pg_replication_slots ON active_pid = pid WHERE slot_name = %s",
                    told,
                    world.slot,
                ),
                30,
                "a status update after that",
            )
            assert world.confirmed_lsn() <= before_lsn
            process.kill()
        own_kafka.start()
        with world.running():
            world.wait_confirmed()
        assert [record.key for record in world.records()] == ["1"]


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_b01_with_nothing_in_flight_it_is(
    database: Database, own_kafka: LocalKafka, tmp_path: Path, plugin: str
) -> None:
    services.create_topic(own_kafka, TOPIC)
    with World(database, own_kafka.bootstrap_servers, TOPIC, tmp_path, plugin=plugin) as world:
        world.install()
        with world.running():
            # No transaction at all: only a keepalive can tell of it.
            world.connection.execute("SELECT pg_switch_wal()")
            world.wait_confirmed()
        assert world.records() == []
