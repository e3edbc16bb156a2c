"""A throwaway Redis server on the loopback interface, that keeps what it acknowledged."""

from __future__ import annotations

import os
import shutil
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from cdcwatch.local.errors import LocalServiceError
from cdcwatch.local.process import OwnedProcess, free_port
from cdcwatch.local.service import LocalService

if TYPE_CHECKING:
    from collections.abc import Mapping

_SETTINGS = {
    "bind": "127.0.0.1",
    "appendonly": "yes",
    "appendfsync": "always",
    "save": '""',
    "maxmemory-policy": "noeviction",
    "daemonize": "no",
}


class LocalRedis(LocalService):
    """A server with an append-only file."""

    name = "Redis"

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
        super().__init__(directory, log="redis.log", start_timeout_s=start_timeout_s)
        self._binary = binary or find_redis()
        self.port = port or free_port()
        self.settings = {**_SETTINGS, **(settings or {})}

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"redis://127.0.0.1:{self.port}/0"

    def _launched(self) -> OwnedProcess:
        configuration = self.directory / "redis.conf"
        lines = {**self.settings, "port": str(self.port), "dir": str(self.directory)}
        configuration.write_text("".join(f"{name} {value}\n" for name, value in lines.items()))
        return OwnedProcess(
            [self._binary, configuration],
            user=None,
            death_signal=signal.SIGKILL,
            directory=self.directory,
            log_path=self.log_path,
            environment=os.environ,
        )

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
