"""B2: positions beyond what the server has: a server restored from an older copy is told, and nothing is skipped."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests import services
from tests.oracle.world import World

if TYPE_CHECKING:
    from pathlib import Path

    from cdcwatch.local import LocalPostgres
    from tests.services import Kafka


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_b02_a_server_restored_from_an_older_copy_is_refused_until_the_gap_is_accepted(
    own_postgres: LocalPostgres, kafka: Kafka, topic: str, tmp_path: Path, plugin: str
) -> None:
    data, copy = own_postgres.directory / "data", own_postgres.directory / "copy"
    with (
        services.fresh_database(own_postgres) as database,
        World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world,
    ):
        world.install()
        with world.running():
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01')")
            world.wait_confirmed()
        world.connection.close()
        own_postgres.stop()
        subprocess.run(["cp", "-a", data, copy], check=True)  # owners and all
        own_postgres.start()
        world.connection = database.connect()
        with world.running():
            for key in (2, 3):
                world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (%s, '2999-01-01')", [key])
                world.connection.execute("SELECT pg_switch_wal()")
            world.wait_confirmed()
        world.connection.close()
        own_postgres.stop()
        shutil.rmtree(data)
        copy.rename(data)
        own_postgres.start()
        world.connection = database.connect()
        refused = world.run()
        assert refused.wait() == 3
        assert "it was restored from an older copy" in world.log.read_text()
        with world.running("--accept-gap"):
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (4, '2999-01-01')")
            world.wait_confirmed()
        told = [(one.key, one.event["data"].get("reason")) for one in world.events()]
        # What the older copy lacks is over; what it has the topic knew.
        assert sorted(told, key=str) == [
            *(("1", None), ("2", "vanished"), ("2", None), ("3", "vanished"), ("3", None), ("4", None))
        ]
