"""A5: making a slot waits for running transactions: bounded, explained, and leaving nothing."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg import sql

from cdcwatch.settings import PostgresSettings, Settings
from cdcwatch.slot.creation import create_slot
from tests.command import ORDERS, cdcwatch, start_cdcwatch
from tests.slots import settings_for, slots_named
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from cdcwatch.local import LocalPostgres
    from cdcwatch.slot.blockers import Blocker
    from tests.services import Database


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
            assert slots_named(connection, slot) == []
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

        created = create_slot(settings_for(database, slot, role), timeout_s=0, on_waiting=release)
        assert not created.was_there
        assert blocker.info.backend_pid in pids
        assert slots_named(admin, slot) == [("wal2json", database.name)]


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
        out, err = process.communicate(timeout=120)
        assert process.returncode == 4, err
        assert "created" not in out + err
        with database.connect() as connection:
            assert slots_named(connection, slot) == []


def test_a05_a_killed_creation_leaves_nothing(database: Database, slot: str, shop: Path) -> None:
    """The server itself notices that nobody waits any more."""
    with database.connect(autocommit=False) as blocker, database.connect() as connection:
        blocker.execute("INSERT INTO orders VALUES (1, 'pending', now())")
        process = start_cdcwatch("slot", "create", "-c", shop)
        assert process.stderr is not None
        assert "waiting for a transaction" in process.stderr.readline()
        process.kill()
        process.communicate(timeout=120)
        wait_until(lambda: not slots_named(connection, slot), 20, "the unfinished slot is gone")
