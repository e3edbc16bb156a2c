"""B11: a slot that was dropped and made anew has the old name, and a gap: that is never silent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.command import cdcwatch
from tests.oracle.world import World

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_b11_a_slot_made_anew_stops_the_process_until_the_gap_is_accepted(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str, delivery: str
) -> None:
    with World(
        database, kafka.bootstrap_servers, topic, tmp_path, kafka={"delivery": delivery}, plugin=plugin
    ) as world:
        world.install()
        with world.running():
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01')")
            world.wait_confirmed()
        assert cdcwatch("slot", "drop", "--yes", "-c", world.configuration).code == 0
        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (2, '2999-01-01')")
        world.create_slot()
        for _ in range(2):  # it doesn't wear off
            refused = world.run()
            assert refused.wait() == 3
        assert world.log.read_text().count("remedy: cdcwatch run --accept-gap") == 2
        assert [record.key for record in world.records()] == ["1"]
        with world.running("--accept-gap"):
            world.wait_confirmed()
        told = [record for record in world.records() if record.event["data"]["snapshot"]]
        assert [record.partition for record in told if record.is_gap] == [0, 1, 2], "every subscriber hears of it"
        assert [record.key for record in told if not record.is_gap] == ["2"], "what the topic knew is not told again"
        with world.running():
            pass
