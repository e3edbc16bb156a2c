"""H12: our own close comes back in the stream: published once, and it starts nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.oracle.world import World

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_h12_the_echo_of_a_close_is_one_event_and_no_second_close(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str
) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world:
        world.install()
        world.listen()
        with world.running():
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() FROM generate_series(1, 30) n"
            )
            world.wait_nothing_due()
            world.wait_confirmed()
            # A second round, so that whatever the echo of the first has started would have come by now.
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (31, clock_timestamp())")
            world.wait_nothing_due()
            world.wait_confirmed()
            assert world.metric("cdcwatch_closes_total") == 31, "tried once each"
            assert world.metric("cdcwatch_pending_entries") == 0
            assert world.metric("cdcwatch_changes_total") == 62
        kinds = [record.event["type"] for record in world.judge()]
        assert sorted(kinds) == ["deadline.expired"] * 31 + ["deadline.scheduled"] * 31
