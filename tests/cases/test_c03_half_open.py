"""C3: a half-open connection: the network swallows every byte and says nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from cdcwatch.database import connect
from cdcwatch.errors import UnavailableError
from cdcwatch.slot import stream
from cdcwatch.slot.stream import PostgresSlot, SlotBusyError
from tests.command import cdcwatch
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka


class Swallower:
    """A TCP proxy whose connections can be frozen: bytes still go in, none comes out."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._frozen: list[threading.Event] = []
        self._sockets: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        """What is connected now is half-open from here on; new connections work."""
        for frozen in self._frozen:
            frozen.set()

    def close(self) -> None:
        for one in (self._listener, *self._sockets):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self._listener.accept()
                theirs = socket.create_connection(self._target)
                frozen = threading.Event()
                self._frozen.append(frozen)
                self._sockets += [ours, theirs]
                for source, sink in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self._relay, args=(source, sink, frozen), daemon=True).start()

    @staticmethod
    def _relay(source: socket.socket, sink: socket.socket, frozen: threading.Event) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if not frozen.is_set():
                    sink.sendall(data)


@contextlib.contextmanager
def swallower(dsn: str) -> Iterator[Swallower]:
    parameters = psycopg.conninfo.conninfo_to_dict(dsn)
    proxy = Swallower(str(parameters["host"]), int(parameters["port"]))
    try:
        yield proxy
    finally:
        proxy.close()


def test_c03_a_half_open_stream_is_given_up_and_made_anew(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with swallower(database.dsn) as proxy, World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        through = psycopg.conninfo.make_conninfo(
            database.dsn, host="127.0.0.1", port=proxy.port, options="-c wal_sender_timeout=3s"
        )
        monkeypatch.setenv("CDCWATCH_POSTGRES__REPLICATION_DSN", through)
        with world.running():
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, clock_timestamp())")
            world.wait_nothing_due()
            world.wait_confirmed()
            proxy.freeze()
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (2, clock_timestamp())")
            wait_until(lambda: "nothing came from the server" in world.log.read_text(), 60, "the silence is noticed")
            world.wait_nothing_due()
            world.wait_confirmed()
        world.judge()


def through(proxy: Swallower, dsn: str, **others: str) -> str:
    return psycopg.conninfo.make_conninfo(dsn, host="127.0.0.1", port=proxy.port, **others)


def test_c03_closing_goes_on_on_new_connections(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with swallower(database.dsn) as proxy, World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        monkeypatch.setenv("CDCWATCH_POSTGRES__REPLICATION_DSN", database.dsn)
        monkeypatch.setenv("CDCWATCH_POSTGRES__DSN", through(proxy, database.dsn))
        with world.running():
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, clock_timestamp())")
            world.wait_nothing_due()
            proxy.freeze()
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
    with swallower(database.dsn) as proxy:
        standby = PostgresSlot(through(proxy, database.dsn), slot, plugin="wal2json")
        with pytest.raises(SlotBusyError):
            standby.acquire({"include-xids": "1"})
        proxy.freeze()
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
    with swallower(database.dsn) as proxy:
        dsn = through(proxy, database.dsn)
        connection = connect(dsn, application_name="test", answer_timeout_s=0.5)
        with connection.cursor(binary=True) as cursor, connection.transaction():
            assert cursor.execute("SELECT 1").fetchone() == (1,)
        proxy.freeze()
        with pytest.raises(psycopg.OperationalError, match="no answer"):
            ask(connection, in_transaction=in_transaction)
        assert connection.closed
