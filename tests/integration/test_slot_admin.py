"""`cdcwatch slot create|status|drop` and `check` on a real server."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg

from tests.command import cdcwatch, write_configuration
from tests.slots import slots_named

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from tests.services import Database


def test_create_status_drop(database: Database, slot: str, shop: Path) -> None:
    missing = cdcwatch("slot", "status", "-c", shop)
    assert (missing.code, missing.err) == (
        3,
        f"cdcwatch: there is no slot {slot}\nremedy: make it: cdcwatch slot create; where there was one,"
        " cdcwatch recover\n",
    )

    planned = cdcwatch("slot", "create", "--dry-run", "-c", shop)
    assert planned.code == 0, planned
    assert f"would make slot {slot} with the plugin wal2json" in planned.out

    with database.connect() as connection:
        assert slots_named(connection, slot) == []
        created = cdcwatch("slot", "create", "-c", shop)
        assert created.code == 0, created
        assert f"created slot {slot}" in created.out
        assert "max_slot_wal_keep_size" in created.out
        assert slots_named(connection, slot) == [("wal2json", database.name)]
        point = connection.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", [slot]
        ).fetchone()
        assert point is not None
        assert f"consistent point        {point[0]}\n" in created.out

        again = cdcwatch("slot", "create", "-c", shop)
        assert again.code == 0, again
        assert "is already there" in again.out
        assert "created" not in again.out

        status = cdcwatch("slot", "status", "--json", "-c", shop)
        assert status.code == 0, status
        told = json.loads(status.out)
        assert told["name"] == slot
        assert told["plugin"] == "wal2json"
        assert told["database"] == database.name
        assert told["active"] is False
        assert told["owner"] is None
        assert told["confirmed_flush_lsn"] == point[0]
        assert told["lag_bytes"] >= 0
        assert told["retained_bytes"] >= told["lag_bytes"]
        assert told["wal_status"] == "reserved"

        dropped = cdcwatch("slot", "drop", "--yes", "-c", shop)
        assert dropped.code == 0
        assert f"slot {slot} (database {database.name}, confirmed up to {point[0]}) holds " in dropped.out
        assert "  changes of the table    0\n" in dropped.out, "what is lost is shown though nobody is asked"
        assert dropped.out.endswith(f"\ndropped slot {slot}\n")
        assert slots_named(connection, slot) == []
    assert cdcwatch("slot", "drop", "--yes", "-c", shop).code == 3


def test_drop_asks_first(database: Database, slot: str, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import io
    import sys

    cdcwatch("slot", "create", "-c", shop)
    for answer, code in (("n\n", 1), ("", 2)):
        monkeypatch.setattr(sys, "stdin", io.StringIO(answer))
        ended = cdcwatch("slot", "drop", "-c", shop)
        assert ended.code == code, ended
        assert "Traceback" not in ended.said
        with database.connect() as connection:
            assert slots_named(connection, slot)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert cdcwatch("slot", "drop", "-c", shop).code == 0


def test_a_slot_of_another_plugin_or_database_is_not_ours(database: Database, slot: str, shop: Path) -> None:
    with database.connect() as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", [slot])
    ended = cdcwatch("slot", "create", "-c", shop)
    assert ended.code == 3
    assert "exists already: test_decoding" in ended.err
    foreign = write_configuration(
        shop.parent / "foreign.toml",
        psycopg.conninfo.make_conninfo(database.dsn, dbname="postgres"),
        f'[slot]\nname = "{slot}"\n',
    )
    refused = cdcwatch("slot", "drop", "--yes", "-c", foreign)
    assert refused.code == 3
    assert f"belongs to database {database.name}" in refused.err


def test_check_tells_each_precondition(database: Database, slot: str, shop: Path) -> None:
    ended = cdcwatch("check", "--json", "-c", shop)
    assert ended.code == 0, ended
    told = json.loads(ended.out)
    states = {check["name"]: check["state"] for check in told["checks"]}
    assert told["ok"] is True
    assert told["checks"][-1]["message"] == 'sink.kind = "none": no events are published'
    deaf = cdcwatch("check", "--role", "close", "-c", shop)
    assert deaf.code == 1
    assert "fail  sink           " in deaf.out
    assert {name for name, state in states.items() if state == "warn"} >= {"identity", "index", "slot"}
    with database.connect() as connection:
        for check in told["checks"]:
            if check["name"] in {"identity", "index"}:
                for statement in check["remedy"].partition(" -- ")[0].rstrip(";").split("; "):
                    connection.execute(statement)
        assert cdcwatch("slot", "create", "-c", shop).code == 0
        states = {
            check["name"]: check["state"] for check in json.loads(cdcwatch("check", "--json", "-c", shop).out)["checks"]
        }
        assert {states[name] for name in ("identity", "index", "slot")} == {"ok"}
        connection.execute("ALTER TABLE orders REPLICA IDENTITY NOTHING")
        failed = cdcwatch("check", "-c", shop)
        assert failed.code == 1
        assert "fail  table" in failed.out
        assert "remedy: ALTER TABLE public.orders REPLICA IDENTITY DEFAULT" in failed.out
        assert "\x1b" not in failed.out


def test_an_unreachable_database_exits_3(tmp_path: Path) -> None:
    shop = write_configuration(tmp_path / "shop.toml", "host=127.0.0.1 port=1 dbname=shop")
    for arguments in (["check"], ["slot", "create"], ["slot", "status"], ["slot", "drop", "--yes"], ["pending"]):
        ended = cdcwatch(*arguments, "-c", shop)
        assert ended.code == 3, ended
        assert ended.err.count("\n") == 2
