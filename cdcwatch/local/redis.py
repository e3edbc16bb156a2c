"""A throwaway Redis server on the loopback interface, that keeps what it acknowledged."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from cdcwatch.local.errors import LocalServiceError
from cdcwatch.local.process import OwnedProcess, free_port, last_line

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import Self

_SETTINGS = {
    "bind": "127.0.0.1",
    "appendonly": "yes",
    "appendfsync": "always",
    "save": '""',
    "maxmemory-policy": "noeviction",
    "daemonize": "no",
}


class LocalRedis:
    """A server whose append-only file and log stand in one directory; the data there is used again.

    Not for use by several threads at once.
    """

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        binary: Path | None = None,
        start_timeout_s: float = 30,
    ) -> None:
        """Choose a port. LocalServiceError without a redis-server. `settings` are further lines of redis.conf."""
        self._binary = binary or find_redis()
        self.port = port or free_port()
        self.directory = directory.absolute()
        self.log_path = self.directory / "redis.log"
        self.settings = {**_SETTINGS, **(settings or {})}
        self._start_timeout_s = start_timeout_s
        self._process: OwnedProcess | None = None

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int | None:
        """The server's pid; None when it doesn't run."""
        return self._process.pid if self._process is not None and self._process.running else None

    def start(self) -> None:
        """Start, and wait until it has loaded what it kept and answers."""
        if self.pid is not None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        configuration = self.directory / "redis.conf"
        lines = {**self.settings, "port": str(self.port), "dir": str(self.directory)}
        configuration.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        self._process = OwnedProcess(
            [self._binary, configuration],
            user=None,
            death_signal=signal.SIGKILL,
            directory=self.directory,
            log_path=self.log_path,
            environment=os.environ,
        )
        atexit.register(self.close)
        self._process.wait_ready(self._answers, timeout_s=self._start_timeout_s, name="Redis")

    def stop(self, *, timeout_s: float = 30) -> None:
        """Shut down in order; LocalServiceError when it still runs after `timeout_s`."""
        if self._process is None:
            return
        self._process.signal(signal.SIGCONT)
        self._process.signal(signal.SIGTERM)
        if not self._process.wait(timeout_s):
            raise LocalServiceError(
                f"Redis did not stop in {timeout_s:g} s: {last_line(self.log_path)}", remedy=f"read {self.log_path}"
            )
        atexit.unregister(self.close)

    def kill(self) -> None:
        """SIGKILL, as a crash would look."""
        if self._process is not None:
            self._process.kill_tree()
            atexit.unregister(self.close)

    def close(self) -> None:
        """Stop, by force when it takes longer than 10 s."""
        try:
            self.stop(timeout_s=10)
        except LocalServiceError:
            self.kill()

    def restart(self) -> None:
        """Stop and start on the same port with what it kept; after `kill` or `stop` it only starts."""
        self.stop()
        self.start()

    def signal(self, number: signal.Signals) -> None:
        """Such as SIGSTOP and SIGCONT."""
        if self._process is not None:
            self._process.signal(number)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _answers(self) -> bool:
        """Whether it answers PING; an error means that it is loading, or wants a password that is not ours to know."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


def find_redis() -> Path:
    """The redis-server of CDCWATCH_REDIS_SERVER, or on PATH."""
    named = os.environ.get("CDCWATCH_REDIS_SERVER")
    found = shutil.which(named or "redis-server")
    if found is None:
        raise LocalServiceError(
            f"no {named or 'redis-server'} on this machine",
            remedy="apt-get install redis-server, or name one in CDCWATCH_REDIS_SERVER",
        )
    return Path(found)
