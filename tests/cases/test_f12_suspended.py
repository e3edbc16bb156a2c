"""F12: a process that sleeps over deadlines: nothing is closed meanwhile, all of it once it wakes, and nothing early."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka

INSERT = "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() + n * interval '0.4 s' FROM generate_series(%s::int, %s) n"


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_f12_what_came_due_while_it_slept_is_closed_when_it_wakes(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str
) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world:
        world.install()
        with world.running() as process:
            process.signal(signal.SIGSTOP)
            world.connection.execute(INSERT, [1, 10])  # in the stream, which nobody reads now
            wait_until(
                lambda: world.scalar("SELECT max(expires_at) < clock_timestamp() FROM orders"),
                30,
                "all of them are due",
            )
            assert world.scalar("SELECT count(*) FROM orders WHERE status = 'pending'") == 10
            process.signal(signal.SIGCONT)
            world.wait_nothing_due()
            world.connection.execute(INSERT, [11, 14])
            wait_until(
                lambda: world.scalar("SELECT count(*) FROM orders WHERE status = 'expired'") == 14,
                30,
                "it goes on as ever",
            )
            world.wait_confirmed()
        world.judge()
