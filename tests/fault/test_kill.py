"""SIGKILL at random during load: nothing lost, nothing twice, nothing early, nothing confirmed too soon."""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

import pytest

from tests.oracle.ledger import closes, read_ledger
from tests.oracle.subscriber import assert_nothing_confirmed_early
from tests.oracle.traffic import Traffic
from tests.oracle.world import World

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka

KILLS = 10


@pytest.mark.parametrize(
    ("delivery", "plugin"), [("exactly_once", "wal2json"), ("at_least_once", "wal2json"), ("exactly_once", "pgoutput")]
)
def test_killed_at_random_under_load(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, delivery: str, plugin: str
) -> None:
    with World(
        database, kafka.bootstrap_servers, topic, tmp_path, kafka={"delivery": delivery}, plugin=plugin
    ) as world:
        world.install()
        seed = random.randrange(10**6)
        print(f"seed {seed}")
        with world.running():  # the first start finds an empty table: what follows is the stream's alone
            pass
        sightings = killed_again_and_again(world, random.Random(seed), seed)
        assert_survived(world, sightings, seed, exactly_once=delivery == "exactly_once")


def assert_survived(
    world: World, sightings: list[tuple[int, dict[int, int]]], seed: int, *, exactly_once: bool = True
) -> None:
    """A last start brings everything in order."""
    with world.running():
        world.wait_nothing_due()
        world.wait_confirmed()
    records = world.judge(exactly_once=exactly_once)
    assert len(closes(read_ledger(world.connection))) > 50
    for number, (confirmed_lsn, ends) in enumerate(sightings):
        assert_nothing_confirmed_early(records, confirmed_lsn, ends, at=f"kill {number}, seed {seed}")


def killed_again_and_again(world: World, choose: random.Random, seed: int) -> list[tuple[int, dict[int, int]]]:
    """What was confirmed at each kill, and how far a subscriber could read then."""
    sightings = []
    with Traffic(world.database.dsn, seed=seed).running() as traffic:
        for _ in range(KILLS):
            process = world.run()
            if choose.random() < 0.8:
                process.wait_ready()
            # Any moment: a wait for a signal would always find the process at the same place.
            threading.Event().wait(choose.uniform(0, 0.7))
            process.kill()
            confirmed_lsn = world.confirmed_lsn()
            sightings.append((confirmed_lsn, world.sent_ends()))
    assert traffic.committed > 100
    return sightings
