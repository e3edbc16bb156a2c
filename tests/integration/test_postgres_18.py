"""What PostgreSQL 17 and 18 brought: failover slots, the idle limit, inactive_since; and no wal2json let in."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.command import ORDERS, cdcwatch, write_configuration
from tests.slots import QUIET
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database


@pytest.fixture
def published(database_18: Database, tmp_path: Path) -> Path:
    with database_18.connect() as connection:
        connection.execute(ORDERS)
    return write_configuration(
        tmp_path / "shop.toml",
        database_18.dsn,
        f'[slot]\nname = "slot_{database_18.name}"\nplugin = "pgoutput"\n' + QUIET,
    )


def test_a_failover_slot(database_18: Database, published: Path) -> None:
    created = cdcwatch("slot", "create", "--failover", "-c", published)
    assert created.code == 0, created
    assert "failover                yes" in created.out
    assert "synchronized_standby_slots is empty" in created.out
    with database_18.connect() as connection:
        row = connection.execute("SELECT failover FROM pg_replication_slots WHERE database = %s", [database_18.name])
        assert row.fetchone() == (True,)
        connection.execute("INSERT INTO orders VALUES (1, 'pending', '2030-01-01')")
    assert "scheduled 2030-01-01T00:00:00.000000Z" in cdcwatch("slot", "peek", "-c", published).out
    told = json.loads(cdcwatch("slot", "status", "--json", "--interval", "0", "-c", published).out)
    assert told["failover"] is True
    assert told["inactive_s"] >= 0
    assert "read by               nobody for" in cdcwatch("slot", "status", "--interval", "0", "-c", published).out


def test_older_servers_refuse_failover_before_anything_is_made(database: Database, slot: str, shop: Path) -> None:
    refused = cdcwatch("slot", "create", "--failover", "-c", shop)
    assert refused.code == 3
    assert "slot.failover needs PostgreSQL 17 or later" in refused.err
    with database.connect() as connection:
        assert not connection.execute("SELECT FROM pg_replication_slots WHERE slot_name = %s", [slot]).fetchall()


def test_the_idle_limit_is_told(database_18: Database, published: Path) -> None:
    with database_18.connect() as connection:
        try:
            connection.execute("ALTER SYSTEM SET idle_replication_slot_timeout = '2h'")
            connection.execute("SELECT pg_reload_conf()")
            wait_until(
                lambda: connection.execute("SHOW idle_replication_slot_timeout").fetchone() == ("2h",), 20, "reloaded"
            )
            told = cdcwatch("check", "-c", published)
            assert "warn  idle_limit     idle_replication_slot_timeout is 2 h" in told.out
        finally:
            connection.execute("ALTER SYSTEM RESET idle_replication_slot_timeout")
            connection.execute("SELECT pg_reload_conf()")


def test_wal2json_is_not_let_in_there(published: Path) -> None:
    shop = published.with_name("wal2json.toml")
    shop.write_text(published.read_text().replace("pgoutput", "wal2json"))
    told = cdcwatch("check", "-c", shop)
    assert told.code == 1
    assert (
        "remedy: ALTER SYSTEM SET output_plugin_libraries = 'pgoutput', 'test_decoding', 'wal2json';"
        " SELECT pg_reload_conf();" in told.out
    )


@pytest.mark.parametrize("kind", ["STORED", "VIRTUAL"])
def test_a_stored_generated_deadline_is_published_since_18(database_18: Database, published: Path, kind: str) -> None:
    with database_18.connect() as connection:
        connection.execute("ALTER TABLE orders DROP expires_at, ADD placed_at timestamptz")
        connection.execute(f"ALTER TABLE orders ADD expires_at timestamptz GENERATED ALWAYS AS (placed_at) {kind}")  # type: ignore[call-overload]
        created = cdcwatch("slot", "create", "-c", published)
        if kind == "VIRTUAL":
            assert created.code == 3
            assert "does not send the generated column expires_at" in created.err
            return
        assert created.code == 0, created
        connection.execute("INSERT INTO orders (id, status, placed_at) VALUES (1, 'pending', '2030-01-01')")
    assert "scheduled 2030-01-01T00:00:00.000000Z" in cdcwatch("slot", "peek", "-c", published).out
