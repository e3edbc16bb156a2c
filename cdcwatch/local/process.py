"""One server process that we started: signalled and stopped by its own pid, gone when we are gone."""

from __future__ import annotations

import os
import queue
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from cdcwatch.local.errors import LocalServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_LAUNCHER = Path(__file__).with_name("launch.py")
_POLL_S = 0.02
_Start: TypeAlias = "Callable[[], subprocess.Popen[bytes]]"


def launched(command: Sequence[str | Path], *, user: str | None, death_signal: signal.Signals) -> list[str]:
    """`command`, to be run as `user` (None: as we are) and ended by `death_signal` when the starting thread ends."""
    return [
        sys.executable,
        "-I",
        "-S",
        str(_LAUNCHER),
        str(os.getpid()),
        str(int(death_signal)),
        user or "-",
        *map(str, command),
    ]


class OwnedProcess:
    """A server process started by us, in a session of its own so that Ctrl-C in the terminal reaches only us."""

    def __init__(
        self,
        command: Sequence[str | Path],
        *,
        user: str | None,
        death_signal: signal.Signals,
        directory: Path,
        log_path: Path,
        environment: Mapping[str, str],
    ) -> None:
        """Start `command` in `directory`, its output appended to `log_path`; OSError when it can't be started."""

        def start() -> subprocess.Popen[bytes]:
            with log_path.open("ab") as log:
                return subprocess.Popen(
                    launched(command, user=user, death_signal=death_signal),
                    cwd=directory,
                    env=dict(environment),
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )

        self._process = _lasting_thread.start(start)
        self.pid = self._process.pid
        self.log_path = log_path
        self._owner_pid = os.getpid()

    @property
    def running(self) -> bool:
        """Whether it runs still; false in a fork of the process that started it."""
        return os.getpid() == self._owner_pid and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """What it ended with, a signal as its negative number; None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens when the process has ended."""
        if self.running:
            self._process.send_signal(number)

    def wait(self, timeout_s: float) -> bool:
        """Whether it ended within `timeout_s`."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill_tree(self) -> None:
        """SIGKILL to the process and its children; returns once all of them are gone.

        The process is stopped first: it can then neither start another child nor free a child's pid for others.
        """
        if not self.running:
            return
        self.signal(signal.SIGSTOP)
        children = children_of(self.pid)
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        self._process.kill()
        self._process.wait()
        deadline = time.monotonic() + 10
        while any(is_alive(pid) for pid in children) and time.monotonic() < deadline:
            time.sleep(_POLL_S)

    def wait_ready(self, ready: Callable[[], bool], *, timeout_s: float, name: str) -> None:
        """Poll `ready` until it holds; LocalServiceError, and nothing left running, when it doesn't in `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        try:
            while not ready():
                self._require(self.running, f"{name} ended while starting")
                self._require(time.monotonic() < deadline, f"{name} was not ready in {timeout_s:g} s")
                time.sleep(_POLL_S)
        except BaseException:
            self.kill_tree()
            raise

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise LocalServiceError(f"{otherwise}: {last_line(self.log_path)}", remedy=f"read {self.log_path}")


def children_of(pid: int) -> list[int]:
    """The pids of the direct children of `pid`, as /proc has them."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        fields = _after_name(stat)
        if len(fields) > 1 and int(fields[1]) == pid:
            found.append(int(stat.parent.name))
    return found


def is_alive(pid: int) -> bool:
    """Whether `pid` is a process that runs; one that ended and was not yet waited for does not."""
    fields = _after_name(Path(f"/proc/{pid}/stat"))
    return bool(fields) and fields[0] not in {"Z", "X"}


def _after_name(stat: Path) -> list[str]:
    """The fields of a /proc/PID/stat after the name: state, parent's pid and so on; empty when it is gone."""
    try:
        return stat.read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def last_line(log_path: Path) -> str:
    """The last line that says something in a log; empty when there is none."""
    try:
        lines = log_path.read_text(errors="replace").split("\n")
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip()), "")


def free_port() -> int:
    """A TCP port free on the loopback interface, below the ports the kernel hands to outgoing connections.

    So that it is still free when a server that was killed is started again on it.
    """
    for port in random.SystemRandom().sample(range(16_000, 32_000), 200):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise LocalServiceError("no free TCP port between 16000 and 32000", remedy="end what holds them: ss -ltnp")


class _LastingThread:
    """A thread that starts processes and ends only with this one.

    The kernel's death signal follows the thread that started a child, so a server started on a short-lived thread
    would be ended with it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._orders: queue.SimpleQueue[tuple[_Start, Future[subprocess.Popen[bytes]]]] = queue.SimpleQueue()

    def start(self, start: _Start) -> subprocess.Popen[bytes]:
        """What `start` returns or raises, called on the lasting thread."""
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # the first call, here or in a fork
                self._thread = threading.Thread(target=self._serve, name="cdcwatch-local-starter", daemon=True)
                self._thread.start()
        started: Future[subprocess.Popen[bytes]] = Future()
        self._orders.put((start, started))
        return started.result()

    def _serve(self) -> None:
        while True:
            start, started = self._orders.get()
            try:
                started.set_result(start())
            except BaseException as error:  # noqa: BLE001 - handed to the caller
                started.set_exception(error)


_lasting_thread = _LastingThread()
