"""A10: a slot made long before its consumer keeps WAL for ever: said at creation, and alarmed by its status."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg

from tests.command import ORDERS, cdcwatch, write_configuration
from tests.slots import QUIET

if TYPE_CHECKING:
    from pathlib import Path

    from cdcwatch.local import LocalPostgres
    from tests.services import Database


def test_a10_creation_tells_how_much_an_unread_slot_keeps(own_postgres: LocalPostgres, tmp_path: Path) -> None:
    shop = write_configuration(tmp_path / "shop.toml", own_postgres.dsn(), QUIET)
    with psycopg.connect(own_postgres.dsn(), autocommit=True) as connection:
        connection.execute(ORDERS)
        created = cdcwatch("slot", "create", "-c", shop)
        assert "max_slot_wal_keep_size  -1 (no limit)" in created.out
        assert "warn  retention" in created.out
        remedy = next(line for line in created.out.splitlines() if "max_slot_wal_keep_size = '<SIZE>'" in line)
        for statement in remedy.partition("remedy: ")[2].replace("<SIZE>", "50GB").rstrip(";").split("; "):
            connection.execute(statement)  # type: ignore[call-overload]
    assert "lost in               never (no limit): the disk fills up instead" not in created.out


def test_a10_thresholds_alarm_before_it_hurts(database: Database, slot: str, shop: Path) -> None:
    assert cdcwatch("slot", "create", "-c", shop).code == 0
    with database.connect() as connection:
        connection.execute("INSERT INTO orders SELECT n, 'pending', now() FROM generate_series(1, 2000) n")
        connection.execute("SELECT pg_switch_wal()")
    quiet = ("slot", "status", "-c", shop, "--interval", "0", "--min-time-left", "0")
    assert cdcwatch(*quiet).code == 0
    for option in ("--max-lag", "--max-retained"):
        alarmed = cdcwatch(*quiet, option, "10kB")
        assert alarmed.code == 1, alarmed
        assert "alarm" in alarmed.out
        assert f"slot {slot}" in alarmed.err
        assert "remedy: start cdcwatch run" in alarmed.err
    assert cdcwatch(*quiet, "--require-reader").code == 1
    told = json.loads(cdcwatch(*quiet, "--json", "--max-lag", "10kB", "--require-reader").out)
    assert [alarm["what"] for alarm in told["alarms"]] == ["lag", "inactive"]
    with database.connect() as connection:
        assert connection.execute(
            "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", [slot]
        ).fetchone() == (1,)
