"""C7: a standby is promoted before PostgreSQL 17: the slot is not there, and nobody makes one by himself."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import psycopg
import pytest

from cdcwatch.local import LocalPostgres
from tests.command import cdcwatch
from tests.oracle.world import World
from tests.services import fresh_database
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Kafka


@pytest.fixture
def standby(own_postgres: LocalPostgres) -> Iterator[LocalPostgres]:
    """A copy that is made when it is asked for by `follow`."""
    folder = own_postgres.directory / "standby"
    folder.mkdir(mode=0o755)
    if own_postgres._user is not None:
        shutil.chown(folder, own_postgres._user)
    server = LocalPostgres(folder, fsync=False)
    yield server
    server.close()


def _follow(primary: LocalPostgres, standby: LocalPostgres) -> None:
    done = primary._run(
        "pg_basebackup", "-D", str(standby.directory / "data"), "-d", primary.dsn(), "-R", "-c", "fast", "--no-sync"
    )
    assert done.returncode == 0, done.stdout
    standby.start()


def test_c07_the_slot_is_missing_after_a_promotion(
    own_postgres: LocalPostgres, standby: LocalPostgres, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with fresh_database(own_postgres) as database, World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        with world.running():
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01')")
            world.wait_confirmed()
        _follow(own_postgres, standby)
        text = world.configuration.read_text()
        world.configuration.write_text(text.replace(f"port={own_postgres.port}", f"port={standby.port}"))
        told = cdcwatch("check", "-c", world.configuration)
        assert told.code == 1
        assert "is a standby here" in told.out

        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (2, '2999-01-01')")
        target = world.current_lsn()
        with psycopg.connect(standby.dsn(dbname=database.name), autocommit=True) as promoted:
            wait_until(
                lambda: (
                    promoted.execute("SELECT pg_last_wal_replay_lsn() - '0/0' >= %s", [target]).fetchone() == (True,)
                ),
                30,
                "the standby has it all",
            )
            promoted.execute("SELECT pg_promote()")
            refused = world.run()
            assert refused.wait() == 3
            assert "there is no slot" in world.log.read_text()
            assert "remedy: cdcwatch slot create" in world.log.read_text()
            assert promoted.execute("SELECT FROM pg_replication_slots").fetchall() == []

            world.create_slot()
            refused = world.run()
            assert refused.wait() == 3
            assert "beyond the last event in the topic" in world.log.read_text()
            with world.running("--accept-gap"):
                pass
            snapshots = [record.key for record in world.records() if record.event["data"]["snapshot"]]
            assert [key for key in snapshots if key is not None and key.isdecimal()] == ["2"]
            promoted.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
