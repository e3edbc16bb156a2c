"""sql/install.sql through psql: run twice, then used as the role it makes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import cdcwatch as package
from cdcwatch.settings import PostgresSettings, Settings, SlotSettings, TableSettings
from cdcwatch.slot.admin import drop_slot
from cdcwatch.slot.creation import create_slot
from cdcwatch.slot.preflight import preflight
from tests.command import ORDERS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services import Database

SCRIPT = Path(package.__file__).parent.parent / "sql" / "install.sql"
PSQL = shutil.which("psql")

pytestmark = pytest.mark.skipif(PSQL is None, reason="needs psql")


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    name = f"role of {database.name}"
    yield name
    with database.connect() as connection:
        connection.execute(f'DROP OWNED BY "{name}"; DROP ROLE "{name}"')


def _install(database: Database, **variables: str) -> subprocess.CompletedProcess[str]:
    assert PSQL is not None
    named = [f"-v{name}={value}" for name, value in variables.items()]
    return subprocess.run(
        [PSQL, "-X", "-d", database.dsn, "-f", SCRIPT, *named], capture_output=True, text=True, check=False, timeout=60
    )


def _described(connection: psycopg.Connection[Any], role: str) -> list[tuple[Any, ...]]:
    """What the script made: indexes with their oids, rights, the role's settings."""
    return connection.execute(
        """SELECT indexrelid::text, pg_get_indexdef(indexrelid), indisvalid::text, indisreplident::text
             FROM pg_index WHERE indrelid = 'orders'::regclass
           UNION ALL SELECT relacl::text, '', '', relreplident::text FROM pg_class WHERE relname = 'orders'
           UNION ALL SELECT rolconfig::text, rolcanlogin::text, rolreplication::text, rolsuper::text
                       FROM pg_roles WHERE rolname = %s
           UNION ALL SELECT nspacl::text, '', '', '' FROM pg_namespace WHERE nspname = 'cdcwatch' ORDER BY 1, 2""",
        [role],
    ).fetchall()


def test_running_it_twice_changes_nothing_and_the_role_can_do_its_work_and_no_more(
    database: Database, role: str
) -> None:
    with database.connect() as connection:
        connection.execute(ORDERS)
        connection.execute("INSERT INTO orders VALUES (1, 'pending', now())")
        first = _install(database, role=role, identity="on")
        assert (first.returncode, first.stderr) == (0, ""), first
        assert first.stdout == f"prepared public.orders for the role {role}\n"
        made = _described(connection, role)
        second = _install(database, role=role, identity="on")
        assert (second.returncode, second.stderr) == (0, ""), second
        assert _described(connection, role) == made
        assert any("(expires_at) WHERE (status = 'pending'::text)" in str(row[1]) for row in made)
        assert any("lock_timeout=5s" in str(row[0]) and "statement_timeout=60s" in str(row[0]) for row in made)

    dsn = psycopg.conninfo.make_conninfo(database.dsn, user=role)
    settings = Settings(postgres=PostgresSettings(dsn=dsn), slot=SlotSettings(name=f"slot_{database.name}"))
    with psycopg.connect(dsn, autocommit=True) as worker:
        checks = {check.name: check for check in preflight(worker, settings)}
        assert {name for name, check in checks.items() if check.state == "fail"} == set()
        assert checks["identity"].state == checks["index"].state == checks["rights"].state == "ok"
        assert not create_slot(settings, timeout_s=20).was_there
        drop_slot(settings)
        closed = worker.execute(
            "WITH due AS (SELECT id FROM orders WHERE status = 'pending' AND expires_at <= statement_timestamp()"
            " ORDER BY id FOR UPDATE SKIP LOCKED)"
            " UPDATE orders SET status = 'expired', version = version + 1 FROM due WHERE orders.id = due.id"
        )
        assert closed.rowcount == 1
        for forbidden in ("DELETE FROM orders", "INSERT INTO orders VALUES (2, 'pending', now())", "TRUNCATE orders"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                worker.execute(forbidden)


def test_an_interrupted_build_is_repaired(database: Database, role: str) -> None:
    with database.connect() as connection:
        connection.execute(ORDERS)
        connection.execute("CREATE INDEX orders_cdcwatch_open ON orders (expires_at) WHERE status = 'pending'")
        connection.execute("UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'orders_cdcwatch_open'::regclass")
        assert _install(database, role=role).returncode == 0
        assert connection.execute(
            "SELECT indisvalid FROM pg_index WHERE indexrelid = 'orders_cdcwatch_open'::regclass"
        ).fetchone() == (True,)


def test_other_names_and_nullable_columns(database: Database, role: str) -> None:
    variables = {
        "role": role, "schema": "My Shop", "table": 'Or"der', "key": "I d", "status": "S", "deadline": "E", "open": "it's",
    }  # fmt: skip
    with database.connect() as connection:
        connection.execute('CREATE SCHEMA "My Shop"')
        connection.execute('CREATE TABLE "My Shop"."Or""der" ("I d" int PRIMARY KEY, "S" text, "E" timestamptz, v int)')
        refused = _install(database, identity="on", **variables)
        assert refused.returncode == 3
        remedy = refused.stderr.partition("NOT NULL columns: ")[2].splitlines()[0]
        assert remedy.endswith('ALTER COLUMN "S" SET NOT NULL, ALTER COLUMN "E" SET NOT NULL')
        connection.execute(remedy)
        assert _install(database, identity="on", **variables).returncode == 0
        table = TableSettings(name='"My Shop"."Or""der"', status="S", deadline="E", version="v", open=("it's",))
        checks = {check.name: check.state for check in preflight(connection, Settings(table=table))}
        assert checks["identity"] == checks["index"] == "ok"


def test_a_partitioned_table_gets_role_and_rights_and_is_told_of_the_rest(database: Database, role: str) -> None:
    with database.connect() as connection:
        connection.execute(ORDERS.rstrip() + " PARTITION BY RANGE (id)")
        refused = _install(database, role=role, identity="on")
        assert refused.returncode == 3
        assert "public.orders is partitioned" in refused.stderr
        assert "docs/runbook.md, 'Partitioned tables'" in refused.stderr
        may = connection.execute("SELECT has_table_privilege(%s, 'orders', 'SELECT, UPDATE')", [role]).fetchone()
        assert may == (True,)


def test_a_name_that_is_wrong_makes_nothing_and_another_open_status_is_told(database: Database, role: str) -> None:
    with database.connect() as connection:
        connection.execute(ORDERS)
        refused = _install(database, role=role, deadline="due_at")
        assert "public.orders has no column due_at: name it by -v deadline=…" in refused.stderr
        assert refused.returncode != 0
        assert connection.execute("SELECT count(*) FROM pg_roles WHERE rolname = %s", [role]).fetchall() == [(0,)]
        assert _install(database, role=role, open="held").returncode == 0
        again = _install(database, role=role)
        assert again.returncode != 0
        assert "the index public.orders_cdcwatch_open is of an earlier run with another condition" in again.stderr
        connection.execute("DROP INDEX orders_cdcwatch_open")
        assert _install(database, role=role).returncode == 0
