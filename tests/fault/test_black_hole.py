"""The network to Kafka swallows every byte: closing goes on, the server hears of us, and events follow in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import make_conninfo

from tests import services
from tests.fault.soak import Proxied, proxied_kafka
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database


@pytest.fixture(scope="module")
def kafka_behind_proxy() -> Iterator[Proxied]:
    with proxied_kafka() as proxied:
        yield proxied


def insert_due(world: World, first_id: int, count: int = 20) -> None:
    world.connection.execute(
        "INSERT INTO orders (id, expires_at) SELECT %s + n, clock_timestamp() + n * interval '10 ms'"
        " FROM generate_series(1, %s) n",
        [first_id, count],
    )


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_j09_closing_goes_on_behind_a_black_hole_and_events_follow_in_order(
    database: Database, kafka_behind_proxy: Proxied, tmp_path: Path, delivery: str
) -> None:
    broker, proxy = kafka_behind_proxy
    with (
        services.fresh_topic(broker) as topic,
        World(database, broker.bootstrap_servers, topic, tmp_path, kafka={"delivery": delivery}) as world,
    ):
        world.install()
        world.environment = {
            "CDCWATCH_KAFKA__BOOTSTRAP_SERVERS": kafka_behind_proxy.bootstrap_servers,
            "CDCWATCH_POSTGRES__REPLICATION_DSN": make_conninfo(database.dsn, options="-c wal_sender_timeout=3s"),
        }

        def heard() -> object:
            """When the server heard of us last, and which position it was told."""
            return world.connection.execute(
                "SELECT r.reply_time, r.flush_lsn FROM pg_stat_replication r JOIN pg_replication_slots s"
                " ON s.active_pid = r.pid WHERE s.slot_name = %s",
                [world.slot],
            ).fetchone()

        with world.running():
            insert_due(world, 0)
            world.wait_nothing_due()
            world.wait_confirmed()
            proxy.black_hole()
            insert_due(world, 1000)
            world.wait_nothing_due()
            confirmed_lsn = world.confirmed_lsn()
            first = heard()
            second = wait_until(lambda: (now := heard()) != first and now, 20, "a status update")
            third = wait_until(lambda: (now := heard()) != second and now, 20, "another")
            assert first is not None
            assert third is not None
            assert first[1] == third[1], "with the old position"  # type: ignore[index]
            assert world.confirmed_lsn() == confirmed_lsn
            proxy.heal()
            insert_due(world, 2000)
            world.wait_nothing_due()
            world.wait_confirmed()

            proxy.half_open()
            insert_due(world, 3000)
            world.wait_nothing_due()
            world.wait_confirmed()
        world.judge(exactly_once=delivery == "exactly_once")
