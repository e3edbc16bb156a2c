"""What takes long shows how far it has come, on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.command import cdcwatch, run_to_the_end
from tests.integration.test_terminal import on_a_terminal
from tests.oracle.world import World

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka


def test_bars_while_catching_up_reading_and_sweeping(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        insert = "INSERT INTO orders (id, expires_at) SELECT n, '2999-01-01'::timestamptz FROM generate_series(%s::int, %s::int) n"
        world.connection.execute(insert, [1, 3000])
        world.connection.execute("ANALYZE orders")
        first = on_a_terminal("run", "--until", "current", "-c", world.configuration)
        assert "reading public.orders" in first
        assert "3,000 of 3,000 rows" in first
        world.connection.execute(insert, [3001, 9000])
        later = on_a_terminal("run", "--until", "current", "-c", world.configuration)
        assert "catching up" in later
        assert "MB/s" in later
        again = on_a_terminal("snapshot", "-c", world.configuration)
        assert f"reading {topic[:10]}" in again
        assert " 9,000 rows" in again
        assert again.endswith("the topic says what the table says\n")
        world.connection.execute("UPDATE orders SET expires_at = clock_timestamp() - interval '1 s' WHERE id <= 2500")
        swept = on_a_terminal("sweep", "--once", "-c", world.configuration)
        assert "2,500 of 2,500 orders" in swept
        assert swept.endswith("closed: 2500\n")
        piped = run_to_the_end("run", "--until", "current", "-c", world.configuration)
        assert (piped.code, "\x1b" in piped.said) == (0, False)
        assert "catching up" not in piped.said, "so short a time isn't worth a line"
        assert cdcwatch("sweep", "--once", "-c", world.configuration).out == "closed: 0\n"
