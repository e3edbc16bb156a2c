"""H9, F7, G3, G8: columns that were renamed, retyped or generated, statuses that don't fit: told before the stream."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from tests.command import ORDERS, cdcwatch, write_configuration
from tests.slots import QUIET

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Postgres


def _checks(database: Database, path: Path, rest: str = "") -> dict[str, dict[str, str]]:
    shop = write_configuration(path / "shop.toml", database.dsn, QUIET + rest)
    return {one["name"]: one for one in json.loads(cdcwatch("check", "--json", "-c", shop).out)["checks"]}


def _made(database: Database, statements: str) -> psycopg.Connection[Any]:
    connection = database.connect()
    connection.execute(statements)  # type: ignore[call-overload]
    return connection


def test_h09_a_renamed_deadline_is_told_with_the_columns_there_are(database: Database, tmp_path: Path) -> None:
    with _made(database, ORDERS + "; ALTER TABLE orders RENAME expires_at TO expiry"):
        flaw = _checks(database, tmp_path)["table"]
    assert "no column 'expires_at' (table.deadline)" in flaw["message"]
    assert "id, status, expiry, version" in flaw["remedy"]


def test_h09_every_column_that_is_missing_is_told_at_once(database: Database, tmp_path: Path) -> None:
    with _made(database, ORDERS.replace("expires_at", "expiry").replace("version int", "revision int")):
        flaw = _checks(database, tmp_path, '[table]\nkey = ["number|no"]\n')["table"]
    for name in ("'number' or 'no' (table.key)", "'expires_at' (table.deadline)", "'version' (table.version)"):
        assert f"no column {name}" in flaw["message"]
    assert "(table.status)" not in flaw["message"]
    assert "set table.key and table.deadline and table.version to some of its columns: id, status" in flaw["remedy"]
    assert ', or set table.version = "";' in flaw["remedy"]


@pytest.mark.parametrize("kind", ["timestamp", "date", "text"])
def test_f07_a_deadline_without_a_zone_is_refused(database: Database, tmp_path: Path, kind: str) -> None:
    with _made(database, ORDERS.replace("timestamptz", kind)):
        flaw = _checks(database, tmp_path)["table"]
    assert "a deadline must be a timestamptz" in flaw["message"]


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_g08_a_generated_deadline_comes_only_from_wal2json(database: Database, tmp_path: Path, plugin: str) -> None:
    table = ORDERS.replace(
        "expires_at timestamptz NOT NULL",
        "placed_at timestamptz, expires_at timestamptz GENERATED ALWAYS AS (placed_at) STORED",
    )
    with _made(database, table):
        told = _checks(database, tmp_path, f'[slot]\nplugin = "{plugin}"\n')["columns"]
    assert told["state"] == ("ok" if plugin == "wal2json" else "fail")
    assert "expires_at" in told["message"] + told["remedy"] or plugin == "wal2json"


def test_an_enum_without_the_configured_status(database: Database, tmp_path: Path) -> None:
    table = ORDERS.replace("status text", "status order_status")
    with _made(database, f"CREATE TYPE order_status AS ENUM ('Pending', 'paid'); {table}"):
        flaw = _checks(database, tmp_path)["status"]
        assert flaw["state"] == "fail"
        assert "'pending', 'expired' is no label of its enum" in flaw["message"]
        assert "'Pending'" in flaw["remedy"]
        told = _checks(database, tmp_path, '[table]\nopen = ["Pending"]\n[close]\nstatus = "paid"\n')
        assert told["status"]["state"] == "ok"


def test_a_status_that_the_table_refuses_at_the_close(database: Database, tmp_path: Path) -> None:
    table = ORDERS.replace("status text NOT NULL", "status text NOT NULL CHECK (status IN ('pending', 'paid'))")
    with _made(database, table):
        flaw = _checks(database, tmp_path)["status"]
    assert flaw["state"] == "fail"
    assert "the constraint orders_status_check refuses 'expired'" in flaw["message"]


def test_a_status_longer_than_its_column(database: Database, tmp_path: Path) -> None:
    with _made(database, ORDERS.replace("status text", "status varchar(6)")):
        flaw = _checks(database, tmp_path)["status"]
    assert flaw["state"] == "fail"
    assert "'pending', 'expired' doesn't fit character varying(6)" in flaw["message"]


def test_a_status_that_no_order_has_is_told_without_showing_any(database: Database, tmp_path: Path) -> None:
    with _made(database, ORDERS) as connection:
        connection.execute(
            "INSERT INTO orders SELECT n, CASE n % 2 WHEN 0 THEN 'PENDING' ELSE 'secret' END, now()"
            " FROM generate_series(1, 500) n"
        )
        assert _checks(database, tmp_path)["status"]["state"] == "ok", "there are no statistics yet"
        connection.execute("ANALYZE orders")
        flaw = _checks(database, tmp_path)["status"]
    assert flaw["state"] == "warn"
    assert "by the statistics no order has the status pending" in flaw["message"]
    assert "secret" not in json.dumps(flaw)
    assert "GROUP BY 1" in flaw["remedy"]


def test_row_level_security_that_hides_orders(database: Database, role: str, tmp_path: Path) -> None:
    with _made(database, ORDERS) as connection:
        connection.execute(
            sql.SQL(
                "ALTER ROLE {0} REPLICATION; GRANT SELECT, UPDATE ON orders TO {0};"
                "ALTER TABLE orders ENABLE ROW LEVEL SECURITY; CREATE POLICY mine ON orders USING (version > 0)"
            ).format(sql.Identifier(role))
        )
        shop = write_configuration(
            tmp_path / "role.toml",
            psycopg.conninfo.make_conninfo(database.dsn, user=role),
            QUIET,
        )

        def told() -> dict[str, dict[str, str]]:
            checks = json.loads(cdcwatch("check", "--json", "-c", shop).out)["checks"]
            return {one["name"]: one for one in checks}

        flaw = told()["row_security"]
        assert flaw["state"] == "fail"
        connection.execute(flaw["remedy"].partition("; or ")[0])
        assert "row_security" not in told()
        connection.execute("CREATE POLICY narrow ON orders AS RESTRICTIVE USING (version > 0)")
        assert told()["row_security"]["state"] == "fail"
        connection.execute(flaw["remedy"].partition("; or ")[2])
        assert "row_security" not in told()


def test_an_invalid_index_and_one_that_is_not_partial(database: Database, tmp_path: Path) -> None:
    with _made(database, ORDERS + "; CREATE INDEX whole ON orders (expires_at)") as connection:
        flaw = _checks(database, tmp_path)["index"]
        assert flaw["state"] == "warn"
        assert "whole, which holds the closed ones too" in flaw["message"]
        connection.execute(flaw["remedy"])
        assert _checks(database, tmp_path)["index"]["state"] == "ok"
        connection.execute("INSERT INTO orders VALUES (1, 'a', now()), (2, 'a', now())")
        with pytest.raises(psycopg.errors.UniqueViolation):
            connection.execute("CREATE UNIQUE INDEX CONCURRENTLY broken ON orders (status)")
        flaw = _checks(database, tmp_path)["index"]
        assert flaw["remedy"] == "DROP INDEX CONCURRENTLY public.broken"
        connection.execute(flaw["remedy"])
        assert _checks(database, tmp_path)["index"]["state"] == "ok"


def test_g03_an_encoding_that_is_none(postgres: Postgres, tmp_path: Path) -> None:
    name = "test_sql_ascii"
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute(f"DROP DATABASE IF EXISTS {name}")  # type: ignore[call-overload]
        admin.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")  # type: ignore[call-overload]
        try:
            shop = write_configuration(tmp_path / "shop.toml", postgres.dsn(dbname=name), QUIET)
            told = cdcwatch("check", "-c", shop)
            assert "warn  encoding       the database's encoding is SQL_ASCII" in told.out
        finally:
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[call-overload]
