"""`cdcwatch top` on a running service: in a terminal, in a pipe, and when nobody answers."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
from typing import TYPE_CHECKING

import pytest

from cdcwatch.local.process import free_port
from tests.command import cdcwatch, write_configuration
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A command in a terminal of 80x24."""

    def __init__(self, *arguments: str | Path) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        self.before = termios.tcgetattr(theirs)
        self._theirs = theirs
        kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cdcwatch", *map(str, arguments)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**kept, "TERM": "xterm"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  so that ^C reaches it
        )
        self._said = b""

    def said(self) -> str:
        """All of it so far, without colours."""
        while select.select([self._ours], [], [], 0)[0]:
            with contextlib.suppress(OSError):
                self._said += os.read(self._ours, 1 << 16)
                continue
            break
        return _ESCAPES.sub("", self._said.decode(errors="replace")).replace("\r", "")

    def last(self) -> str:
        """The last frame."""
        return self.said().rpartition("cdcwatch 0.")[2]

    def type(self, key: str) -> None:
        os.write(self._ours, key.encode())

    def ended(self) -> int:
        """Its exit code, with the terminal as it was before."""
        wait_until(lambda: self.said() is not None and self.process.poll() is not None, 30, "it ends")
        assert termios.tcgetattr(self._theirs) == self.before
        os.close(self._theirs)
        os.close(self._ours)
        return int(self.process.returncode)


@pytest.fixture
def world(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> Iterator[World]:
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        world.listen()
        yield world


def test_top_shows_a_service_at_work_and_ends_in_order(world: World) -> None:
    with world.running():
        world.connection.execute(
            "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() + (n - 3) * interval '10 min'"
            " FROM generate_series(1, 7) n"
        )
        by_key, by_signal = Terminal("top", "-c", world.configuration), Terminal("top", "--url", world.address)
        wait_until(lambda: re.search(r"all is well[\s\S]*\b3 closed\b", by_key.last()), 60, "the closes are shown")
        wait_until(lambda: re.search(r"\d+\.?\d* closes/s", by_key.last()), 60, "and their rate")
        lines = by_key.last().splitlines()
        assert len(lines) <= 24
        assert [line for line in lines if len(line) > 80] == []
        wait_until(lambda: "closes/s" in by_signal.last(), 60, "the other shows it too")
        by_key.type("\x1b[Aq")  # an arrow is three bytes, and means nothing
        assert by_key.ended() == 0
        by_signal.type("\x03")
        assert by_signal.ended() == 0

        plain = cdcwatch("top", "--once", "-c", world.configuration)
        assert (plain.code, plain.err) == (0, "")
        assert "\x1b" not in plain.out
        assert re.search(r"closes/s[\s\S]*3 closed[\s\S]*Next deadlines", plain.out)
        assert plain.out.count("cdcwatch 0.") == 1
        piped = cdcwatch("top", "-c", world.configuration)
        assert piped.out.count("cdcwatch 0.") == 1, "no terminal: one snapshot"
        told = json.loads(cdcwatch("top", "--once", "--json", "--url", f"{world.address}/").out)
        assert told["ready"] is True
        assert told["rates"]["closed public.orders"] >= 0
        assert told["totals"]["closes_by_outcome"] == {"closed": 3}
        assert [one["key"] for one in told["next"]] == ["4", "5", "6", "7"]
        left = Terminal("top", "--interval", "0.2", "-c", world.configuration)
        wait_until(lambda: "all is well" in left.last(), 60, "it shows it")
    wait_until(lambda: re.search(r"! no answer since \d\d:\d\d:\d\d \(nobody answers\)", left.last()), 60, "it goes on")
    left.process.send_signal(signal.SIGTERM)
    assert left.ended() == 0


def test_what_is_not_there_is_one_line_and_a_remedy(tmp_path: Path) -> None:
    port = free_port()
    shop = write_configuration(tmp_path / "shop.toml", "dbname=x", f'[telemetry]\nlisten = "127.0.0.1:{port}"\n')
    ended = cdcwatch("top", "-c", shop)
    assert (ended.code, ended.out) == (3, "")
    assert ended.err.splitlines() == [
        f"cdcwatch: http://127.0.0.1:{port}/status: nobody answers",
        "remedy: is it running, with telemetry.listen as here? Name its port with --url http://HOST:PORT",
    ]
    assert cdcwatch("top", "--url", "127.0.0.1:9464").code == 2
    none = write_configuration(tmp_path / "none.toml", "dbname=x", '[telemetry]\nlisten = ""\n')
    assert cdcwatch("top", "-c", none).code == 2


@pytest.mark.parametrize("piece", [b"", b"a", b"a" * (1 << 20)], ids=["nothing", "drips", "floods"])
def test_something_else_on_the_port_is_given_up(monkeypatch: pytest.MonkeyPatch, piece: bytes) -> None:
    monkeypatch.setattr("cdcwatch.cli.top._ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        ended = threading.Event()

        def answer() -> None:
            client, _ = server.accept()
            with client, contextlib.suppress(OSError):
                client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while not ended.wait(0.02):
                    client.sendall(piece)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            said = cdcwatch("top", "--once", "--url", f"http://127.0.0.1:{server.getsockname()[1]}")
        finally:
            ended.set()
            thread.join()
    assert said.code == 3
    assert "no cdcwatch" in said.err or "did not answer in time" in said.err
