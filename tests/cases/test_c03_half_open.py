"""C3: a half-open connection: the network swallows every byte and says nothing."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdcwatch.database import connect
from cdcwatch.errors import UnavailableError
from cdcwatch.slot import stream
from cdcwatch.slot.stream import PostgresSlot, SlotBusyError
from tests.command import cdcwatch
from tests.fault.proxy import before, through
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka


def test_c03_a_half_open_stream_is_given_up_and_made_anew(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with before(database.dsn) as proxy, World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        patient = through(proxy, database.dsn, options="-c wal_sender_timeout=3s")
        monkeypatch.setenv("CDCWATCH_POSTGRES__REPLICATION_DSN", patient)
        with world.running():
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, clock_timestamp())")
            world.wait_nothing_due()
            world.wait_confirmed()
            proxy.half_open()
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (2, clock_timestamp())")
            wait_until(lambda: "nothing came from the server" in world.log.read_text(), 60, "the silence is noticed")
            world.wait_nothing_due()
            world.wait_confirmed()
        world.judge()


def test_c03_closing_goes_on_on_new_connections(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with before(database.dsn) as proxy, World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        monkeypatch.setenv("CDCWATCH_POSTGRES__REPLICATION_DSN", database.dsn)
        monkeypatch.setenv("CDCWATCH_POSTGRES__DSN", through(proxy, database.dsn))
        with world.running():
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, clock_timestamp())")
            world.wait_nothing_due()
            proxy.half_open()
            # One order, so that the time limit of one connection is enough to be rid of all of them.
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (2, clock_timestamp())")
            world.wait_nothing_due(25)
            assert "no answer for 15 s" in world.log.read_text()
            world.wait_confirmed()
        world.judge()


def test_c03_a_standby_s_half_open_connection_is_made_anew(
    database: Database, slot: str, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cdcwatch("slot", "create", "-c", shop).code == 0
    owner = psycopg.pq.PGconn.connect(psycopg.conninfo.make_conninfo(database.dsn, replication="database").encode())
    owner.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0".encode())
    monkeypatch.setattr(stream, "_ANSWER_TIMEOUT_S", 1.0)
    with before(database.dsn) as proxy:
        standby = PostgresSlot(through(proxy, database.dsn), slot, plugin="wal2json")
        with pytest.raises(SlotBusyError):
            standby.acquire({"include-xids": "1"})
        proxy.half_open()
        owner.finish()
        with pytest.raises(UnavailableError, match="no answer for 1 s"):
            standby.acquire({"include-xids": "1"})
        taken = []

        def takes_over() -> bool:
            # The server may not have noticed yet that the owner is gone.
            with contextlib.suppress(SlotBusyError):
                taken.append(standby.acquire({"include-xids": "1"})[1])
            return bool(taken)

        wait_until(takes_over, 20, "the standby has the slot")
        taken[0].close()


def ask(connection: psycopg.Connection[Any], *, in_transaction: bool) -> None:
    with connection.transaction() if in_transaction else contextlib.nullcontext():
        connection.execute("SELECT 1")


@pytest.mark.parametrize("in_transaction", [False, True])
def test_c03_a_statement_has_an_end(database: Database, in_transaction: bool) -> None:
    with before(database.dsn) as proxy:
        dsn = through(proxy, database.dsn)
        connection = connect(dsn, application_name="test", answer_timeout_s=0.5)
        with connection.cursor(binary=True) as cursor, connection.transaction():
            assert cursor.execute("SELECT 1").fetchone() == (1,)
        proxy.half_open()
        with pytest.raises(psycopg.OperationalError, match="no answer"):
            ask(connection, in_transaction=in_transaction)
        assert connection.closed
