"""Where events go, beside Kafka's topic: a journal, a stream, nowhere."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import redis

from cdcwatch.handoff.file.tail import FileTail
from cdcwatch.settings import FileSettings

if TYPE_CHECKING:
    from pathlib import Path

    from cdcwatch.local import LocalRedis


class Place(Protocol):
    """What the configuration says of it, and what is in it."""

    @property
    def server_pid(self) -> int:
        """Of the server that keeps it; 0: there is none."""
        ...

    def sections(self, delivery: str) -> dict[str, dict[str, str]]:
        """Of cdcwatch's configuration."""
        ...

    def count(self) -> int | None:
        """Committed events; None: nobody knows."""
        ...


class Journal:
    """`sink.kind = "file"`."""

    server_pid = 0

    def __init__(self, directory: Path) -> None:
        self._settings = FileSettings(path=str(directory / "deadlines.jsonl"))

    def sections(self, delivery: str) -> dict[str, dict[str, str]]:  # noqa: ARG002
        return {"sink": {"kind": "file"}, "file": {"path": self._settings.path}}

    def count(self) -> int:
        with contextlib.closing(FileTail(self._settings)) as tail:
            return sum(1 for _ in tail.so_far())


class Stream:
    """`sink.kind = "redis"`."""

    def __init__(self, server: LocalRedis, name: str) -> None:
        self._server, self._name = server, name

    @property
    def server_pid(self) -> int:
        return self._server.pid or 0

    def sections(self, delivery: str) -> dict[str, dict[str, str]]:  # noqa: ARG002
        return {"sink": {"kind": "redis"}, "redis": {"url": self._server.url, "stream": self._name}}

    def count(self) -> int:
        with redis.Redis.from_url(self._server.url) as client:
            return int(client.xlen(self._name))


class Nowhere:
    """`sink.kind = "none"`."""

    server_pid = 0

    def sections(self, delivery: str) -> dict[str, dict[str, str]]:  # noqa: ARG002
        return {"sink": {"kind": "none"}}

    def count(self) -> None:
        return None
