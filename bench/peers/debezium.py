"""Debezium's embedded engine, in `debezium/SlotReader.java`: a pgoutput slot read into JSON, without a sink."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench.peers import Missing, stamp
from bench.servers import PUBLICATION
from cdcwatch.local.binaries import find_java
from cdcwatch.local.errors import LocalServiceError
from cdcwatch.local.jars import bring, cache

if TYPE_CHECKING:
    from bench.servers import Database

VERSION = "3.6.1"
TUNED = ("max.batch.size=16384", "max.queue.size=65536", "poll.interval.ms=10")
"""The best of what was tried for a backlog: larger batches and queue, a shorter poll than the default's 500 ms."""
AT_ONCE = ("poll.interval.ms=1",)
"""The quickest for one row at a time."""
_SOURCES = Path(__file__).with_name("debezium")
_COMPILE_TIMEOUT_S = 120


class Debezium:
    """Brought and compiled when it is made. Missing when that can't be done."""

    def __init__(self) -> None:
        compiler = shutil.which("javac")
        if compiler is None:
            raise Missing("no javac on PATH: install a JDK of version 17")
        source = _SOURCES / "SlotReader.java"
        try:
            self._java = find_java()
            self._jars = bring(_SOURCES / "pom.xml", f"debezium-{VERSION}", what=f"Debezium {VERSION}")
        except (LocalServiceError, subprocess.TimeoutExpired) as error:
            raise Missing(str(error)) from None
        self._classes = cache() / f"debezium-reader-{stamp(source)}"
        if self._classes.is_dir():
            return
        with tempfile.TemporaryDirectory(dir=cache(), prefix="unfinished-") as unfinished:
            made = Path(unfinished, "classes")
            done = subprocess.run(
                [compiler, "--release", "17", "-cp", f"{self._jars}/*", "-d", made, source],
                capture_output=True,
                timeout=_COMPILE_TIMEOUT_S,
                check=False,
            )
            if done.returncode:
                raise Missing(f"javac: {done.stderr.decode(errors='replace').strip()[:300]}")
            made.rename(self._classes)

    def command(self, base: Database, slot: str, events: int, *properties: str) -> list[str]:
        """Reads so many change events of public.orders and ends; with 0 it tells of each and goes on."""
        return [
            str(self._java),
            "-Xmx1g",
            *("-cp", f"{self._classes}:{self._jars}/*", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"),
            *("SlotReader", "127.0.0.1", str(base.server.port), base.name, slot, PUBLICATION, str(events)),
            *properties,
        ]
