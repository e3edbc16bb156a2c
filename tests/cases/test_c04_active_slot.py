"""C4: a slot that somebody reads is named with its owner, and never taken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg

from tests.command import cdcwatch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database


def test_drop_refuses_while_active_and_ends_nobody(database: Database, slot: str, shop: Path) -> None:
    """C4: a slot in use is named with its owner, never taken."""
    assert cdcwatch("slot", "create", "-c", shop).code == 0
    dsn = psycopg.conninfo.make_conninfo(database.dsn, replication="database", application_name="the owner")
    reader = psycopg.pq.PGconn.connect(dsn.encode())
    try:
        result = reader.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0".encode())
        assert result.status == psycopg.pq.ExecStatus.COPY_BOTH
        refused = cdcwatch("slot", "drop", "--yes", "-c", shop)
        assert refused.code == 3
        assert f"is read by pid {reader.backend_pid} (the owner" in refused.err
        told = json.loads(cdcwatch("slot", "status", "--json", "-c", shop).out)
        assert told["owner"]["pid"] == reader.backend_pid
        assert told["owner"]["application_name"] == "the owner"
        # Identical, but in use: nothing to make, and not a success either.
        assert cdcwatch("slot", "create", "-c", shop).code == 3
        with database.connect() as connection:
            row = connection.execute(
                "SELECT active_pid FROM pg_replication_slots WHERE slot_name = %s", [slot]
            ).fetchone()
            assert row == (reader.backend_pid,)
    finally:
        reader.finish()
