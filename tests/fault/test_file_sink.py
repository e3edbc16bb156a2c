"""The journal in the running service: killed, crashed, frozen, out of room. The same oracle as for Kafka."""

from __future__ import annotations

import random
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cdcwatch.handoff.file import segments
from tests.command import cdcwatch
from tests.fault.crash import INSIDE, PAUSE, Crashes, CrashPoint, crashes_under_load
from tests.fault.test_kill import killed_again_and_again
from tests.fault.test_outages import fenced_as_it_wakes, insert_due
from tests.oracle.file_world import FileWorld
from tests.oracle.ledger import closes, read_ledger
from tests.oracle.subscriber import assert_nothing_confirmed_early
from tests.waiting import wait_until

if TYPE_CHECKING:
    from tests.services import Database

CRASHES = [
    CrashPoint("file.written", "kill", "2"),
    CrashPoint("file.synced", "exit", "3"),
    CrashPoint("file.rotating", "kill"),
    CrashPoint("publish.acknowledged", "raise"),
    CrashPoint("file.rotating", "exit"),
    CrashPoint("file.written", "raise", "3"),
    CrashPoint("file.written", PAUSE, "2"),
]
ORDERS_LATER = "INSERT INTO orders (id, expires_at) SELECT n, '2999-01-01' FROM generate_series(1, %s) n"


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_killed_at_random_under_load(database: Database, tmp_path: Path, plugin: str) -> None:
    with FileWorld(database, tmp_path, plugin=plugin) as world:
        world.install()
        seed = random.randrange(10**6)
        print(f"seed {seed}")
        with world.running():
            pass
        sightings = killed_again_and_again(world, random.Random(seed), seed)
        with world.running():
            world.wait_nothing_due()
            world.wait_confirmed()
        records = world.judge()
        assert len(closes(read_ledger(world.connection))) > 50
        assert segments.numbered(Path(world.file.path)), "it never rotated"
        for number, (confirmed_lsn, ends) in enumerate(sightings):
            assert_nothing_confirmed_early(records, confirmed_lsn, ends, at=f"kill {number}, seed {seed}")


def test_crashed_wherever_it_writes(database: Database, tmp_path: Path) -> None:
    with FileWorld(database, tmp_path) as world:
        world.install()
        with crashes_under_load(world, seed=11) as crashes:
            for point in CRASHES:
                crashes.crash(point)
        crashes.recovered()


def test_crashed_inside_a_large_batch(database: Database, tmp_path: Path) -> None:
    with FileWorld(database, tmp_path) as world:
        world.install()
        with world.running():
            pass
        crashes = Crashes(world)
        world.connection.execute(ORDERS_LATER, [10_000])
        for name in ("file.written", "file.synced"):
            crashes.crash(CrashPoint(name, "kill", INSIDE))
        with world.running():
            world.wait_confirmed()
        assert len(world.judge()) == 10_000


def test_a_process_that_lost_its_slot_is_fenced(database: Database, tmp_path: Path) -> None:
    with FileWorld(database, tmp_path) as world:
        fenced_as_it_wakes(world)
        world.judge()


def test_without_its_directory_closing_goes_on_and_nothing_is_confirmed(database: Database, tmp_path: Path) -> None:
    """As with a disk that was unmounted: orders are closed, it says so, it goes on when it is back; SIGTERM: exit 4."""
    with FileWorld(database, tmp_path) as world:
        folder = tmp_path / "disk"
        folder.mkdir()
        text = world.configuration.read_text()
        world.configuration.write_text(text.replace(world.file.path, str(folder / "deadlines.jsonl")))
        world.file = type(world.file)(path=str(folder / "deadlines.jsonl"), rotate_bytes=world.file.rotate_bytes)
        world.install()
        process = world.run()
        process.wait_ready()
        insert_due(world, 0)
        world.wait_nothing_due()
        world.wait_confirmed()
        before = world.confirmed_lsn()
        folder.rename(tmp_path / "away")
        insert_due(world, 1000)
        world.wait_nothing_due()
        wait_until(lambda: "moved or deleted" in world.log.read_text(), 30, "it is told")
        target = world.current_lsn()
        assert before <= world.confirmed_lsn() < target
        process.signal(signal.SIGTERM)
        assert process.wait() == 4
        (tmp_path / "away").rename(folder)
        with world.running():
            world.wait_confirmed()
        world.judge()


def test_commands_read_the_journal(database: Database, tmp_path: Path) -> None:
    with FileWorld(database, tmp_path) as world:
        world.install()
        with world.running():
            insert_due(world, 0)
            world.connection.execute(ORDERS_LATER.replace("(1, %s)", "(7000, 7001)"))
            world.wait_confirmed()
            world.wait_nothing_due_but(2)
            world.wait_confirmed()

        def said(*words: str) -> str:
            ended = cdcwatch(*words, "-c", world.configuration)
            assert ended.code == 0, ended.said
            return ended.out

        assert said("events", "-n", "1000", "--json").count('"deadline.expired"') > 0
        assert "7001" in said("events", "--from-beginning", "--key", "7001")
        assert "scheduled" in said("explain", "7000")
        assert f"{world.file.path}: " in said("check")
        assert "says what the table says" in said("snapshot")
        closing = cdcwatch("run", "--role", "close", "-c", world.configuration)
        assert (closing.code, "hears of orders by the topic" in closing.err) == (2, True)
        assert said("slot", "drop", "--yes")
        assert "would forget" in said("slot", "create", "--snapshot", "--dry-run")
        assert "publishes all open orders" in said("slot", "create", "--snapshot")
        with world.running():
            world.wait_confirmed()
        # It knew them all: the gap is told, no order is told twice.
        assert said("events", "--from-beginning", "--type", "gap").count("no progress of this slot") == 1
        assert said("events", "--from-beginning", "--key", "7000").count("scheduled") == 1
