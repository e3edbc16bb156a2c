"""River, a job queue in PostgreSQL: one job an order, due at its deadline; built from `river/` by Go."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from bench.peers import Missing, stamp
from cdcwatch.local.jars import cache

VERSION = "0.51.2"
_SOURCES = Path(__file__).with_name("river")
_BUILD_TIMEOUT_S = 600


class River:
    """Built when it is made. Missing when that can't be done."""

    def __init__(self) -> None:
        compiler = shutil.which("go")
        if compiler is None:
            raise Missing("no go on PATH: install Go 1.26")
        name = f"river-{stamp(*(_SOURCES / file for file in ('main.go', 'go.mod', 'go.sum')))}"
        self._program = cache() / name
        if self._program.exists():
            return
        cache().mkdir(parents=True, exist_ok=True)
        unfinished = self._program.with_suffix(".unfinished")
        try:
            done = subprocess.run(
                [compiler, "build", "-C", _SOURCES, "-o", unfinished, "."],
                capture_output=True,
                timeout=_BUILD_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise Missing(f"go build took more than {_BUILD_TIMEOUT_S} s") from None
        if done.returncode:
            raise Missing(f"go build: {done.stderr.decode(errors='replace').strip()[-300:]}")
        unfinished.rename(self._program)

    def work(self, dsn: str) -> list[str]:
        """The service that closes."""
        return [str(self._program), "work", dsn]

    def enqueue(self, dsn: str) -> list[str]:
        """Makes the jobs."""
        return [str(self._program), "enqueue", dsn]
