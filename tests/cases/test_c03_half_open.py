"""C3: a half-open connection: the network swallows every byte and says nothing."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import psycopg

from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

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
