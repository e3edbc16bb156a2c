"""The proxy does what its faults say: the soak is worth no more than that."""

from __future__ import annotations

import socket
import socketserver
import threading
import time
from typing import TYPE_CHECKING

import pytest

from tests.fault.proxy import Proxy, Way
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        try:
            while data := self.request.recv(1 << 16):
                self.request.sendall(data)
        except OSError:
            self.server.resets.append(True)  # type: ignore[attr-defined]
        else:
            self.server.ends.append(True)  # type: ignore[attr-defined]


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Echo)
        self.ends: list[bool] = []
        self.resets: list[bool] = []


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        yield server
        server.shutdown()


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    with Proxy("127.0.0.1", server.server_address[1]) as proxy:
        yield proxy


class Client:
    def __init__(self, proxy: Proxy) -> None:
        self.socket = socket.create_connection(("127.0.0.1", proxy.port), timeout=60)

    def __enter__(self) -> Self:
        assert self.says(b"hello")
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def says(self, words: bytes, within_s: float = 20) -> bool:
        self.socket.sendall(words)
        return self.hears(words, within_s)

    def hears(self, words: bytes, within_s: float = 20) -> bool:
        self.socket.settimeout(within_s)
        heard = b""
        try:
            while len(heard) < len(words):
                piece = self.socket.recv(1 << 16)
                if not piece:
                    raise ConnectionResetError("the end came instead")
                heard += piece
        except TimeoutError:
            return False
        return heard == words

    def is_silent(self) -> bool:
        """No answer and no end; so short, as silence takes its time in every run."""
        return not self.hears(b"?", 0.1)


def test_it_lets_everything_through_and_the_end_too(proxy: Proxy, server: Server) -> None:
    with Client(proxy) as client:
        assert client.says(b"x" * 100_000)
        client.socket.shutdown(socket.SHUT_WR)
        assert client.socket.recv(1) == b""
    wait_until(lambda: server.ends, 10, "the server sees the end")
    wait_until(lambda: proxy.connection_count == 0, 10, "forgotten")


@pytest.mark.parametrize("way", list(Way))
def test_late_and_slow(proxy: Proxy, way: Way) -> None:
    with Client(proxy) as client:
        proxy.delay(0.2, [way])
        began_s = time.monotonic()
        assert client.says(b"late")
        assert time.monotonic() - began_s >= 0.2
        proxy.heal()
        proxy.throttle(10_000, [way])
        began_s = time.monotonic()
        assert client.says(b"x" * 3_000)
        assert time.monotonic() - began_s >= 0.3


@pytest.mark.parametrize("way", list(Way))
def test_a_stall_loses_nothing(proxy: Proxy, way: Way) -> None:
    with Client(proxy) as client:
        proxy.stall([way])
        client.socket.sendall(b"held up")
        assert client.is_silent()
        proxy.heal()
        assert client.hears(b"held up")


@pytest.mark.parametrize("way", list(Way))
def test_a_black_hole_takes_old_and_new_connections_for_good(proxy: Proxy, server: Server, way: Way) -> None:
    with Client(proxy) as old:
        proxy.black_hole([way])
        old.socket.sendall(b"lost")
        new = socket.create_connection(("127.0.0.1", proxy.port))
        new.sendall(b"lost")
        assert old.is_silent()
        proxy.heal()
        old.socket.sendall(b"and nothing behind a hole")
        assert old.is_silent()
        with Client(proxy):
            pass
        new.close()
        proxy.forget()
        with pytest.raises(ConnectionResetError):
            old.socket.recv(1)


def test_half_open_holds_what_is_there_and_swallows_its_end(proxy: Proxy, server: Server) -> None:
    with Client(proxy) as client:
        proxy.half_open()
        assert not client.says(b"lost", 0.1)
        with Client(proxy) as new:
            assert new.says(b"works")
    wait_until(lambda: server.ends, 10, "the new one's end")
    assert len(server.ends) == 1, "the server goes on believing in the other"
    wait_until(lambda: proxy.connection_count == 1, 10, "the proxy knows of the half-open one still")


def test_a_reset_reaches_both_sides(proxy: Proxy, server: Server) -> None:
    with Client(proxy) as client:
        proxy.reset()
        with pytest.raises(ConnectionResetError):
            client.socket.recv(1)
        wait_until(lambda: server.resets, 10, "the server sees it")
    with Client(proxy):
        pass


def test_a_server_that_is_away_is_a_connection_that_ends() -> None:
    with Proxy("127.0.0.1", 1) as proxy, socket.create_connection(("127.0.0.1", proxy.port), timeout=60) as client:
        assert client.recv(1) == b""
