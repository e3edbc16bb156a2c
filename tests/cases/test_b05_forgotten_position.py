"""B5: after a crash of the server the slot may stand before what was confirmed: what comes again changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import services
from tests.oracle.ledger import closes, read_ledger
from tests.oracle.world import World

if TYPE_CHECKING:
    from pathlib import Path

    from cdcwatch.local import LocalPostgres
    from tests.services import Kafka


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_b05_a_replay_publishes_and_closes_nothing_twice_and_is_counted(
    own_postgres: LocalPostgres, kafka: Kafka, topic: str, tmp_path: Path, plugin: str
) -> None:
    with (
        services.fresh_database(own_postgres) as database,
        World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world,
    ):
        world.install()
        world.listen()
        with world.running():
            world.wait_confirmed()
            world.connection.execute("CHECKPOINT")
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() FROM generate_series(1, 20) n"
            )
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (21, '2999-01-01')")
            world.wait_nothing_due_but(1)
            world.wait_confirmed()
            assert world.metric("cdcwatch_replayed_total") == 0
            world.connection.close()
            own_postgres.restart("immediate")
            world.connection = database.connect()
            world.wait_confirmed()
            assert world.metric("cdcwatch_replayed_total") > 0, "the server had forgotten the position"
            assert world.metric('cdcwatch_closes_total{outcome="closed"}') == 20, "a replayed order is found closed"
        assert len(closes(read_ledger(world.connection))) == 20
        assert len({record.id for record in world.records()}) == len(world.records()) == 41
