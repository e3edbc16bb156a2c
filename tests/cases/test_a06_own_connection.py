"""A6: slots are made outside of transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.command import cdcwatch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database


def test_a06_slots_are_made_outside_of_transactions(database: Database, slot: str, shop: Path) -> None:
    """A transaction that has written can't make a slot; the command's own connection never is in one."""
    with database.connect(autocommit=False) as migration:
        migration.execute("CREATE TABLE migrated ()")
        with pytest.raises(psycopg.errors.ActiveSqlTransaction):
            migration.execute("SELECT pg_create_logical_replication_slot(%s, 'wal2json')", [slot])
    assert cdcwatch("slot", "create", "-c", shop).code == 0
