"""C5: a lost slot is told apart from one that is behind, and so is the way out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from tests.command import ORDERS, cdcwatch, write_configuration

if TYPE_CHECKING:
    from pathlib import Path

    from cdcwatch.local import LocalPostgres


def test_a_lost_slot_exits_1_and_says_what_to_do(own_postgres: LocalPostgres, tmp_path: Path) -> None:
    """C5: told apart from a slot that is only behind."""
    own_postgres.settings["max_slot_wal_keep_size"] = "1MB"
    own_postgres.settings["max_wal_size"] = "32MB"
    own_postgres.settings["wal_keep_size"] = "0"
    own_postgres.restart()
    shop = write_configuration(tmp_path / "shop.toml", own_postgres.dsn())
    with psycopg.connect(own_postgres.dsn(), autocommit=True) as connection:
        connection.execute(ORDERS)
        assert cdcwatch("slot", "create", "-c", shop).code == 0
        for _ in range(6):
            connection.execute("CREATE TABLE filler AS SELECT 1; DROP TABLE filler")
            connection.execute("SELECT pg_switch_wal()")
        connection.execute("CHECKPOINT")
    lost = cdcwatch("slot", "status", "-c", shop)
    assert lost.code == 1, lost
    assert "wal_status            lost" in lost.out
    assert "remedy: cdcwatch slot drop, then cdcwatch slot create" in lost.err
    assert cdcwatch("slot", "create", "-c", shop).code == 3
    assert cdcwatch("check", "-c", shop).code == 1
    assert cdcwatch("slot", "drop", "--yes", "-c", shop).code == 0
