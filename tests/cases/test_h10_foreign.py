"""H10: transactions that are not about orders are cheap, and the position advances over whatever says nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.oracle.subscriber import committed_ends
from tests.oracle.world import World

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka

FOREIGN = 2000
STATEMENTS = [
    "SELECT pg_logical_emit_message(true, 'p', 'in a transaction')",
    "SELECT pg_logical_emit_message(false, 'p', 'outside of any')",
    "DO $$ BEGIN BEGIN INSERT INTO other VALUES (1); RAISE division_by_zero; EXCEPTION WHEN division_by_zero THEN NULL;"
    " END; INSERT INTO other VALUES (2); END $$",
    "BEGIN; INSERT INTO other VALUES (3); SAVEPOINT a; INSERT INTO other VALUES (4); ROLLBACK TO a; COMMIT",
    "BEGIN; INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01'); ROLLBACK",
    "BEGIN; SAVEPOINT a; INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01'); ROLLBACK TO a; COMMIT",
    "CREATE TABLE another (id int); DROP TABLE another",
    "TRUNCATE other",
]


@pytest.fixture
def world(database: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str) -> World:
    return World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin)


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_h10_the_position_advances_over_what_says_nothing_of_orders(world: World) -> None:
    with world:
        world.install()
        world.connection.execute("CREATE TABLE other (id int)")
        with world.running():
            for statement in STATEMENTS:
                for part in statement.split(";") if statement.startswith("BEGIN") else [statement]:
                    world.connection.execute(part)  # type: ignore[call-overload]
                world.wait_confirmed()
        assert world.records() == []


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_h10_thousands_of_foreign_transactions_cost_a_record_of_progress_now_and_then(world: World) -> None:
    with world:
        world.install()
        world.connection.execute("CREATE TABLE other (id int)")
        with world.running():
            world.wait_confirmed()
            progress = f"{world.topic}.progress"
            (before,) = committed_ends(world.bootstrap_servers, progress).values()
            world.connection.execute(
                f"DO $$ BEGIN FOR n IN 1..{FOREIGN} LOOP INSERT INTO other VALUES (n); COMMIT; END LOOP; END $$"
            )
            world.wait_confirmed()
            (after,) = committed_ends(world.bootstrap_servers, progress).values()
        assert after - before < FOREIGN // 10
        assert world.records() == []
