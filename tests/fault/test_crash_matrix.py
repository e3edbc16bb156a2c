"""Every failpoint of a running service x every action x first, later and inside of a large transaction: hours."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cdcwatch.failpoints import NAMES
from tests.fault.crash import (
    ALSO,
    CLOSINGS,
    INSIDE,
    PAUSE,
    WINDOW,
    CrashPoint,
    crashes_under_load,
    provocation,
)
from tests.oracle.world import World

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka

ACTIONS = ("exit", "kill", "raise", "term", PAUSE)
WAYS = [("exactly_once", "wal2json"), ("at_least_once", "wal2json"), ("exactly_once", "pgoutput")]
ONLY = {"kafka.committed": "exactly_once", "kafka.delivered": "at_least_once"}
AT_WORK = [
    name for name in NAMES if not name.startswith(("slot.", "snapshot.", "kafka.dead", "claim.", "file.", "redis."))
]


def times(name: str) -> tuple[str, ...]:
    """When the place is to be reached: the first time, a later time at work, inside of something large."""
    if name.startswith(("stop.", "sink.")):
        return ("first",)
    if name.startswith(("stream.acquired", "stream.lost", "window.extended")):
        return ("first", "2")
    return ("first", "3", "inside:100" if name.startswith("close.") else INSIDE)


class LargeTransactions:
    """One now and then: 10,000 rows, or more where they are small and a single read could take them all."""

    def __init__(self, world: World, rows: int) -> None:
        self._world, self._rows, self._next_id, self._looks = world, rows, 500_000_000, 0

    def nudge(self) -> None:
        self._looks += 1
        if self._looks % 20 == 1:
            self._world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT %s + n, clock_timestamp() + interval '4 s'"
                " FROM generate_series(1, %s) n",
                [self._next_id, self._rows],
            )
            self._next_id += self._rows


@pytest.mark.soak
@pytest.mark.parametrize("name", AT_WORK)
@pytest.mark.parametrize(("delivery", "plugin"), WAYS)
def test_the_whole_matrix(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, delivery: str, plugin: str, name: str
) -> None:
    if ONLY.get(name, delivery) != delivery:
        pytest.skip("of the other delivery")
    extra = WINDOW + (ALSO if name == "close.uncommitted" else "[close]\nbatch_rows = 100\n")
    with World(
        database, kafka.bootstrap_servers, topic, tmp_path, extra, kafka={"delivery": delivery}, plugin=plugin
    ) as world:
        world.connection.execute(CLOSINGS)
        world.install()
        large = LargeTransactions(world, 10_000 if plugin == "wal2json" else 40_000)
        with crashes_under_load(world, 3) as crashes:
            for when in times(name):
                for action in ACTIONS:
                    point = CrashPoint(name, action, when)
                    how = provocation(world, point)
                    crashes.crash(point, **({"nudge": large.nudge} if when.startswith("inside") else how))
        crashes.recovered(exactly_once=delivery == "exactly_once")


@pytest.mark.soak
def test_a_transaction_that_the_broker_gave_up(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> None:
    """It rested in it for longer than transaction.timeout.ms: aborted by the broker, and published again."""
    with World(database, kafka.bootstrap_servers, topic, tmp_path, WINDOW) as world:
        world.install()
        with crashes_under_load(world, 4) as crashes:
            said = crashes.crash(CrashPoint("kafka.produced", "pause:80", "2"))
        crashes.recovered()
    assert "publisher: Kafka: " in said
