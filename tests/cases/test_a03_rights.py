"""A3: REPLICATION, free slots and walsenders, rights on the table: one report."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest

from cdcwatch.errors import PreconditionError
from cdcwatch.slot.creation import create_slot
from tests.command import ORDERS, cdcwatch, write_configuration
from tests.slots import QUIET, settings_for

if TYPE_CHECKING:
    from pathlib import Path

    from cdcwatch.local import LocalPostgres
    from tests.services import Database


def test_a03_a_role_without_replication_is_told_all_it_lacks(database: Database, slot: str, role: str) -> None:
    with pytest.raises(PreconditionError) as caught:
        create_slot(settings_for(database, slot, role), timeout_s=5)
    assert f"{role} may not use replication slots" in str(caught.value)
    assert f"{role} lacks SELECT, UPDATE on public.orders" in str(caught.value)
    assert f"ALTER ROLE {role} REPLICATION" in caught.value.remedy
    with database.connect() as connection:
        connection.execute(f"ALTER ROLE {role} REPLICATION")
        with pytest.raises(PreconditionError) as caught:
            create_slot(settings_for(database, slot, role), timeout_s=5)
        connection.execute(caught.value.remedy)  # one thing left: its remedy is a statement
        assert not create_slot(settings_for(database, slot, role), timeout_s=5).was_there


def test_a03_no_slot_and_no_walsender_left(own_postgres: LocalPostgres, tmp_path: Path) -> None:
    own_postgres.settings["max_replication_slots"] = "1"
    own_postgres.settings["max_wal_senders"] = "1"
    own_postgres.restart()
    dsn = own_postgres.dsn()
    shop = write_configuration(tmp_path / "shop.toml", dsn, QUIET)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(ORDERS)
        connection.execute("SELECT pg_create_physical_replication_slot('standby')")
    taken = psycopg.pq.PGconn.connect(psycopg.conninfo.make_conninfo(dsn, replication="database").encode())
    try:
        told = {one["name"]: one for one in json.loads(cdcwatch("check", "--json", "-c", shop).out)["checks"]}
        assert {name for name, one in told.items() if one["state"] == "fail"} == {"slots", "walsenders", "replication"}
        assert "1 of 1 replication slots are in use" in told["slots"]["message"]
        assert "ALTER SYSTEM SET max_replication_slots = 6" in told["slots"]["remedy"]
        assert "ALTER SYSTEM SET max_wal_senders = 6" in told["walsenders"]["remedy"]
        refused = cdcwatch("slot", "create", "-c", shop)
        assert refused.code == 3
        assert "3 preconditions are not met" in refused.err
    finally:
        taken.finish()


def test_a03_wal_level_and_a_standby_are_told_before_anything_is_tried(
    own_postgres: LocalPostgres, tmp_path: Path
) -> None:
    own_postgres.settings["wal_level"] = "replica"
    own_postgres.restart()
    shop = write_configuration(tmp_path / "shop.toml", own_postgres.dsn(), QUIET)
    with psycopg.connect(own_postgres.dsn(), autocommit=True) as connection:
        connection.execute(ORDERS)
    refused = cdcwatch("slot", "create", "-c", shop)
    assert refused.code == 3
    assert "wal_level is replica" in refused.err
    assert "remedy: ALTER SYSTEM SET wal_level = 'logical'; then restart the server" in refused.err
