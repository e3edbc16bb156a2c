"""B6: the first status update of a connection says where the slot stands, never 0 or less than that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cdcwatch.lsn import parse_lsn
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_b06_what_the_server_is_told_never_goes_back(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str
) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world:
        world.install()
        told: list[int] = []
        for key in range(3):
            process = world.run()
            confirmed_lsn = world.confirmed_lsn()

            def hears() -> int:
                """How many status updates were seen of this connection."""
                rows = world.connection.execute(
                    "SELECT coalesce(flush_lsn, '0/0')::text FROM pg_stat_replication"
                    " JOIN pg_replication_slots ON active_pid = pid WHERE slot_name = %s AND reply_time IS NOT NULL",
                    [world.slot],
                ).fetchall()
                told.extend(parse_lsn(text) for (text,) in rows)
                return len(rows)

            wait_until(hears, 60, "the first status update", every_s=0)
            assert told[-1] >= confirmed_lsn
            process.wait_ready()
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (%s, '2999-01-01')", [key])
            target_lsn = world.current_lsn()
            wait_until(lambda: hears() and told[-1] >= target_lsn, 60, "it is told of the order", every_s=0)  # noqa: B023
            process.kill()
        assert told == sorted(told)
