"""I6: many orders due at one instant, and one whose deadline moves all the time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.oracle.ledger import closes, read_ledger
from tests.oracle.world import World

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka

ROWS = 20_000
MOVES = 200


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_i06_a_spike_and_a_restless_order_are_each_closed_once(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str
) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world:
        world.install()
        world.listen()
        with world.running():
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT n, date_trunc('second', clock_timestamp()) + interval '4 s'"
                " FROM generate_series(1, %s) n",
                [ROWS],
            )
            for _ in range(MOVES):
                world.connection.execute(
                    "UPDATE orders SET expires_at = expires_at + interval '1 ms', version = version + 1 WHERE id = 1"
                )
            world.wait_nothing_due()
            world.wait_confirmed()
            assert world.metric("cdcwatch_pending_entries") == 0
        assert len(closes(read_ledger(world.connection))) == ROWS
        world.judge()
