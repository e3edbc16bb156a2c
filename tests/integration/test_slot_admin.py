"""`cdcwatch slot create|status|drop` and `check` on a real server."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from cdcwatch.errors import PreconditionError
from cdcwatch.settings import PostgresSettings, Settings, SlotSettings
from cdcwatch.slot.creation import create_slot
from tests.command import ORDERS, cdcwatch, start_cdcwatch, write_configuration
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cdcwatch.local import LocalPostgres
    from cdcwatch.slot.blockers import Blocker
    from tests.services import Database


@pytest.fixture
def slot(database: Database) -> str:
    """A slot's name of this test's own, in a database with an orders table."""
    with database.connect() as connection:
        connection.execute(ORDERS)
    return f"slot_{database.name}"


@pytest.fixture
def shop(database: Database, slot: str, tmp_path: Path) -> Path:
    return write_configuration(tmp_path / "shop.toml", database.dsn, f'[slot]\nname = "{slot}"\n')


@pytest.fixture
def role(database: Database) -> Iterator[str]:
    """A role that may log in and nothing more."""
    name = f"role_{database.name}"
    with database.connect() as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        yield name
        connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))


def _slots(connection: psycopg.Connection[Any], name: str) -> list[tuple[Any, ...]]:
    return connection.execute(
        "SELECT plugin::text, database::text FROM pg_replication_slots WHERE slot_name = %s", [name]
    ).fetchall()


def _settings(database: Database, slot: str, user: str = "") -> Settings:
    dsn = psycopg.conninfo.make_conninfo(database.dsn, **({"user": user} if user else {}))
    return Settings(postgres=PostgresSettings(dsn=dsn), slot=SlotSettings(name=slot))


def test_create_status_drop(database: Database, slot: str, shop: Path) -> None:
    missing = cdcwatch("slot", "status", "-c", shop)
    assert (missing.code, missing.err) == (
        3,
        f"cdcwatch: there is no slot {slot}\nremedy: make it: cdcwatch slot create\n",
    )

    planned = cdcwatch("slot", "create", "--dry-run", "-c", shop)
    assert planned.code == 0, planned
    assert f"would make slot {slot} with the plugin wal2json" in planned.out

    with database.connect() as connection:
        assert _slots(connection, slot) == []
        created = cdcwatch("slot", "create", "-c", shop)
        assert created.code == 0, created
        assert f"created slot {slot}" in created.out
        assert "max_slot_wal_keep_size" in created.out
        assert _slots(connection, slot) == [("wal2json", database.name)]
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
        assert (dropped.code, dropped.out) == (0, f"dropped slot {slot}\n")
        assert _slots(connection, slot) == []
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
            assert _slots(connection, slot)
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    assert cdcwatch("slot", "drop", "-c", shop).code == 0


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


def test_a05_a_blocked_creation_names_whom_it_waits_for_and_leaves_nothing(
    database: Database, slot: str, shop: Path
) -> None:
    with database.connect(autocommit=False, application_name="the blocker") as blocker:
        blocker.execute("INSERT INTO orders VALUES (1, 'pending', now())")
        ended = cdcwatch("slot", "create", "--timeout", "2", "-c", shop)
        assert ended.code == 3, ended
        assert "no slot after 2 s" in ended.err
        assert "created" not in ended.said
        assert f"pid {blocker.info.backend_pid}, the blocker" in ended.err
        with database.connect() as connection:
            assert _slots(connection, slot) == []
        blocker.rollback()
    assert cdcwatch("slot", "create", "-c", shop).code == 0


def test_a05_prepared_transactions_block_without_a_pid(own_postgres: LocalPostgres) -> None:
    own_postgres.settings["max_prepared_transactions"] = "2"
    own_postgres.restart()
    dsn = own_postgres.dsn()
    named: list[Blocker] = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(ORDERS)
        connection.execute("BEGIN; INSERT INTO orders VALUES (1, 'pending', now())")
        connection.execute("PREPARE TRANSACTION 'forgotten'")

        def end(blockers: Any) -> None:
            named.extend(blockers)
            connection.execute("ROLLBACK PREPARED 'forgotten'")

        create_slot(Settings(postgres=PostgresSettings(dsn=dsn)), timeout_s=30, on_waiting=end)
    assert [(blocker.pid, blocker.application) for blocker in named] == [(None, "prepared transaction forgotten")]


def test_a05_the_wait_outlasts_the_time_limits_of_the_role(database: Database, slot: str, role: str) -> None:
    """The service's role gives up on locks after seconds; making a slot is waiting for the locks of transactions."""
    with database.connect() as admin, database.connect(autocommit=False) as blocker:
        admin.execute(
            sql.SQL(
                "ALTER ROLE {0} REPLICATION; GRANT SELECT, UPDATE ON orders TO {0};"
                " ALTER ROLE {0} SET lock_timeout = '100ms'; ALTER ROLE {0} SET statement_timeout = '300ms'"
            ).format(sql.Identifier(role))
        )
        blocker.execute("INSERT INTO orders VALUES (1, 'pending', now())")
        pids: list[int | None] = []

        def release(blockers: Any) -> None:
            pids.extend(found.pid for found in blockers)
            blocker.rollback()

        created = create_slot(_settings(database, slot, role), timeout_s=0, on_waiting=release)
        assert not created.was_there
        assert blocker.info.backend_pid in pids
        assert _slots(admin, slot) == [("wal2json", database.name)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a05_an_interrupted_creation_leaves_nothing(
    database: Database, slot: str, shop: Path, number: signal.Signals
) -> None:
    with database.connect(autocommit=False) as blocker:
        blocker.execute("INSERT INTO orders VALUES (1, 'pending', now())")
        process = start_cdcwatch("slot", "create", "-c", shop)
        assert process.stderr is not None
        assert "waiting for a transaction" in process.stderr.readline()
        process.send_signal(number)
        out, err = process.communicate(timeout=20)
        assert process.returncode == 4, err
        assert "created" not in out + err
        with database.connect() as connection:
            assert _slots(connection, slot) == []


def test_a05_a_killed_creation_leaves_nothing(database: Database, slot: str, shop: Path) -> None:
    """The server itself notices that nobody waits any more."""
    with database.connect(autocommit=False) as blocker, database.connect() as connection:
        blocker.execute("INSERT INTO orders VALUES (1, 'pending', now())")
        process = start_cdcwatch("slot", "create", "-c", shop)
        assert process.stderr is not None
        assert "waiting for a transaction" in process.stderr.readline()
        process.kill()
        process.communicate(timeout=20)
        wait_until(lambda: not _slots(connection, slot), 20, "the unfinished slot is gone")


def test_a06_slots_are_made_outside_of_transactions(database: Database, slot: str, shop: Path) -> None:
    """A transaction that has written can't make a slot; the command's own connection never is in one."""
    with database.connect(autocommit=False) as migration:
        migration.execute("CREATE TABLE migrated ()")
        with pytest.raises(psycopg.errors.ActiveSqlTransaction):
            migration.execute("SELECT pg_create_logical_replication_slot(%s, 'wal2json')", [slot])
    assert cdcwatch("slot", "create", "-c", shop).code == 0


def test_a03_a_role_without_replication_is_told_all_it_lacks(database: Database, slot: str, role: str) -> None:
    with pytest.raises(PreconditionError) as caught:
        create_slot(_settings(database, slot, role), timeout_s=5)
    assert f"{role} may not use replication slots" in str(caught.value)
    assert f"{role} lacks SELECT, UPDATE on public.orders" in str(caught.value)
    assert f"ALTER ROLE {role} REPLICATION" in caught.value.remedy
    with database.connect() as connection:
        connection.execute(f"ALTER ROLE {role} REPLICATION")
        with pytest.raises(PreconditionError) as caught:
            create_slot(_settings(database, slot, role), timeout_s=5)
        connection.execute(caught.value.remedy)  # one thing left: its remedy is a statement
        assert not create_slot(_settings(database, slot, role), timeout_s=5).was_there


def test_check_tells_each_precondition(database: Database, slot: str, shop: Path) -> None:
    ended = cdcwatch("check", "--json", "-c", shop)
    assert ended.code == 0, ended
    told = json.loads(ended.out)
    states = {check["name"]: check["state"] for check in told["checks"]}
    assert told["ok"] is True
    assert {name for name, state in states.items() if state == "warn"} >= {"identity", "index", "slot"}
    with database.connect() as connection:
        for check in told["checks"]:
            if check["name"] in {"identity", "index"}:
                for statement in check["remedy"].partition(" (as ")[0].split("; "):
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


def test_a01_a_plugin_that_is_not_let_in(own_postgres: LocalPostgres, tmp_path: Path) -> None:
    shop = write_configuration(tmp_path / "shop.toml", own_postgres.dsn())
    with psycopg.connect(own_postgres.dsn(), autocommit=True) as connection:
        if not connection.execute("SELECT FROM pg_settings WHERE name = 'output_plugin_libraries'").fetchall():
            pytest.skip("this minor release restricts no plugins")
        connection.execute(ORDERS)
        connection.execute("CREATE ROLE plain LOGIN REPLICATION; GRANT SELECT, UPDATE ON orders TO plain")
        connection.execute("ALTER SYSTEM SET output_plugin_libraries = 'pgoutput', 'test_decoding'")
        connection.execute("SELECT pg_reload_conf()")
        _wait_for_setting(connection, "pgoutput, test_decoding")

        refused = cdcwatch("slot", "create", "-c", shop)
        assert refused.code == 3
        remedy = refused.err.partition("remedy: ")[2].strip()
        assert remedy == (
            "ALTER SYSTEM SET output_plugin_libraries = 'pgoutput', 'test_decoding', 'wal2json'; SELECT pg_reload_conf();"
        )
        assert "EXTENSION" not in refused.err
        # A role that may not read the setting learns it from the server's refusal.
        plain = write_configuration(tmp_path / "plain.toml", own_postgres.dsn(user="plain"))
        told = cdcwatch("slot", "create", "-c", plain)
        assert told.code == 3
        assert 'library "wal2json" may not be used as an output plugin' in told.err
        assert remedy in told.err
        assert connection.execute("SELECT FROM pg_replication_slots").fetchall() == []

        for statement in remedy.rstrip(";").split("; "):
            connection.execute(statement)
        _wait_for_setting(connection, "pgoutput, test_decoding, wal2json")
        assert cdcwatch("slot", "create", "-c", plain).code == 0


def _wait_for_setting(connection: psycopg.Connection[Any], value: str) -> None:
    wait_until(
        lambda: connection.execute("SHOW output_plugin_libraries").fetchone() == (value,), 20, f"the setting is {value}"
    )


def test_a02_a_library_that_is_absent(own_postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """Told apart from one that is not let in; neither is an extension to create."""
    import msgspec

    # No settings file can name this plugin: it stands for a server on which ours is not installed.
    settings = Settings(postgres=PostgresSettings(dsn=own_postgres.dsn()))
    settings = msgspec.structs.replace(
        settings,
        slot=msgspec.structs.replace(settings.slot, plugin="decoderbufs"),  # type: ignore[arg-type]
    )
    with psycopg.connect(own_postgres.dsn(), autocommit=True) as connection:
        connection.execute(ORDERS)
        if connection.execute("SELECT FROM pg_settings WHERE name = 'output_plugin_libraries'").fetchall():
            connection.execute("ALTER SYSTEM SET output_plugin_libraries = 'decoderbufs'")
            connection.execute("SELECT pg_reload_conf()")
            _wait_for_setting(connection, "decoderbufs")
    with pytest.raises(PreconditionError, match="could not access file") as caught:
        create_slot(settings, timeout_s=5)
    assert "install the library of decoderbufs" in caught.value.remedy
    assert "no extension has to be created" in caught.value.remedy


def test_an_unreachable_database_exits_3(tmp_path: Path) -> None:
    shop = write_configuration(tmp_path / "shop.toml", "host=127.0.0.1 port=1 dbname=shop")
    for arguments in (["check"], ["slot", "create"], ["slot", "status"], ["slot", "drop", "--yes"], ["pending"]):
        ended = cdcwatch(*arguments, "-c", shop)
        assert ended.code == 3, ended
        assert ended.err.count("\n") == 2
