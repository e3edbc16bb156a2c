"""H11: a row that a subscription brought, which has a replication origin, is an order like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.oracle.world import World

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_h11_rows_of_an_origin_are_published_and_closed(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str
) -> None:
    origin = f"origin_{database.name}"
    with World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world:
        world.install()
        with world.running(), database.connect() as applier:
            applier.execute("SELECT pg_replication_origin_create(%s)", [origin])
            try:
                applier.execute("SELECT pg_replication_origin_session_setup(%s)", [origin])
                with applier.transaction():
                    applier.execute("SELECT pg_replication_origin_xact_setup('0/1', now())")
                    applier.execute("INSERT INTO orders (id, expires_at) VALUES (1, clock_timestamp())")
                applier.execute("SELECT pg_replication_origin_session_reset()")
                world.wait_nothing_due()
                world.wait_confirmed()
            finally:
                applier.execute("SELECT pg_replication_origin_drop(%s)", [origin])
        assert [record.event["type"] for record in world.judge()] == ["deadline.scheduled", "deadline.expired"]
