"""Closes that delete, killed under load: every order is deleted once and when it was due, and told as what it was."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tests.fault.crash import ALSO, CLOSINGS, CrashPoint, crashes_under_load
from tests.oracle.ledger import closes, read_ledger
from tests.oracle.world import World

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka

DELETE = ALSO.replace("[close]\n", '[close]\naction = "delete"\n')
POINTS = [
    CrashPoint("close.uncommitted", "kill", "3"),
    CrashPoint("close.committed", "kill", "2"),
    CrashPoint("kafka.produced", "kill", "2"),
]


def test_killed_around_a_close_that_deletes(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, DELETE, plugin="pgoutput") as world:
        world.install()
        world.connection.execute(CLOSINGS)
        seed = random.randrange(10**6)
        print(f"seed {seed}")
        with crashes_under_load(world, seed) as crashes:
            for point in POINTS:
                crashes.crash(point)
        crashes.recovered()
        closed = closes(read_ledger(world.connection))
        assert len(closed) > 20
        # What `also` does stands and falls with its close.
        done = world.connection.execute("SELECT id, expires_at FROM closings").fetchall()
        assert sorted(done) == sorted((entry.old_id, entry.old_deadline) for entry in closed)
