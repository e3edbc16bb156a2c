"""C6: the server dies in the middle of the stream: the reader comes back by itself, with nothing lost or doubled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests import services
from tests.oracle.world import World

if TYPE_CHECKING:
    from pathlib import Path

    from cdcwatch.local import LocalPostgres
    from tests.services import Kafka


def test_c06_an_immediate_restart_in_mid_stream(
    own_postgres: LocalPostgres, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with (
        services.fresh_database(own_postgres) as database,
        World(database, kafka.bootstrap_servers, topic, tmp_path) as world,
    ):
        world.install()
        with world.running() as process:
            insert = (
                "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() FROM generate_series(%s::int, %s) n"
            )
            world.connection.execute(insert, [1, 20])
            world.wait_nothing_due()
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (999, now() + interval '10 seconds')")
            world.wait_confirmed()
            world.connection.close()
            own_postgres.restart("immediate")
            world.connection = database.connect()
            world.connection.execute(insert, [101, 120])
            world.wait_nothing_due()
            world.wait_confirmed()
            assert process.is_running
            assert "stopping" not in world.log.read_text(), "the same process went on, with its heap"
        world.judge()
