"""B7: the watched table is idle and others are busy: the slot must not keep their WAL."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import services
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from cdcwatch.local import LocalPostgres
    from tests.services import Kafka

FOREIGN_BYTES = 100 << 20
MOST_RETAINED_BYTES = 16 << 20


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
@pytest.mark.parametrize("busy", ["another table", "another database"])
def test_b07_what_others_write_is_not_kept(
    own_postgres: LocalPostgres, kafka: Kafka, topic: str, tmp_path: Path, plugin: str, busy: str
) -> None:
    with (
        services.fresh_database(own_postgres) as database,
        services.fresh_database(own_postgres) as other,
        World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world,
    ):
        world.install()
        with world.running(), (database if busy == "another table" else other).connect() as writer:
            writer.execute("CREATE TABLE other (id int, note text)")
            begin_lsn = world.current_lsn()
            while world.current_lsn() - begin_lsn < FOREIGN_BYTES:
                writer.execute("INSERT INTO other SELECT n, repeat('x', 1000) FROM generate_series(1, 10000) n")

            def is_released() -> bool:
                # The server moves restart_lsn with what a checkpoint, or its background writer, notes in the WAL.
                writer.execute("CHECKPOINT")
                retained = world.scalar(
                    "SELECT (pg_current_wal_lsn() - restart_lsn)::int8 FROM pg_replication_slots WHERE slot_name = %s",
                    world.slot,
                )
                return bool(retained < MOST_RETAINED_BYTES)

            wait_until(is_released, 60, "WAL of others is released", every_s=0.2)
        assert world.records() == []
