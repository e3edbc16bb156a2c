"""The demo's world: servers in one directory, the shop's database, the slot, and `cdcwatch run` beside them.

Made with what operators use: sql/install.sql through psql, `cdcwatch slot create`, a configuration file.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import sql

from cdcwatch.configuration import is_key, load_settings
from cdcwatch.demo.interruption import end_children
from cdcwatch.demo.stands import ONE, RESERVATIONS
from cdcwatch.errors import CdcwatchError
from cdcwatch.local import LocalKafka, LocalPostgres, LocalServiceError
from cdcwatch.local.kafka import KAFKA_VERSION, bring_jars
from cdcwatch.local.process import OwnedProcess, free_port, last_line, launched
from cdcwatch.queries import query, script

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from cdcwatch.demo.interruption import Interruption
    from cdcwatch.demo.stands import Stand
    from cdcwatch.settings import Settings

DATABASE: Final = "shop"
OWNER: Final = "shop"
SERVICE_ROLE: Final = "cdcwatch"
_COMMAND_TIMEOUT_S: Final = 120
_READY_TIMEOUT_S: Final = 60
_STOP_TIMEOUT_S: Final = 50.0
"""The service itself gives up after 45 s."""
_LOOK_S: Final = 0.02
# So that a demo left alone over night doesn't fill the disk; a run of minutes keeps every event.
_KAFKA_PROPERTIES: Final = {"log.retention.bytes": str(256 << 20), "log.segment.bytes": str(64 << 20)}

_CONFIGURATION: Final = """\
# Written by `cdcwatch demo`.
[postgres]
dsn = {dsn}

[slot]
plugin = "{plugin}"

[close]
set = {{ closed_at = "clock_timestamp()" }}

[kafka]
bootstrap_servers = {bootstrap_servers}
create_topic = true
partitions = 3

[telemetry]
listen = {listen}
"""
_ENTRY: Final = """
[[table]]
name = "public.{stand.table}"
topic = "{stand.topic}"
deadline = "{stand.deadline}"
open = ["{stand.open}"]
[table.close]
status = "{stand.closed}"
set = {{ closed_at = "clock_timestamp()" }}
also = "{stand.also}"
"""


class World:
    """Start it once, close it in any state."""

    def __init__(
        self,
        directory: Path,
        tell: Callable[[str], None],
        plugin: str | None = None,
        stands: Sequence[Stand] = ONE,
    ) -> None:
        """Finds the programs and chooses ports. LocalServiceError when this machine lacks one.

        `plugin`: the slot's; None: wal2json where the server has it, else pgoutput, which every server has.
        """
        self.directory = directory
        self.configuration_path = directory / "demo.toml"
        self.telemetry_address = f"127.0.0.1:{free_port()}"
        self._tell, self.stands = tell, stands
        self._postgres = LocalPostgres(directory / "postgres")
        self._plugin = plugin or ("wal2json" if self._postgres.has_wal2json else "pgoutput")
        if self._plugin == "wal2json" and not self._postgres.has_wal2json:
            major = self._postgres.major
            raise LocalServiceError(
                f"PostgreSQL {major} in {self._postgres.binaries} has no wal2json",
                remedy=f"cdcwatch demo --plugin pgoutput, or apt-get install postgresql-{major}-wal2json",
            )
        self._psql = self._found_psql()
        self._kafka = LocalKafka(directory / "kafka", properties=_KAFKA_PROPERTIES)
        self._kafka_started: Future[None] | None = None
        self._service: OwnedProcess | None = None

    # -- where things are --------------------------------------------------------------------------------------------

    @property
    def dsn(self) -> str:
        """The shop's database as its owner, who is no superuser."""
        return self._postgres.dsn(DATABASE, OWNER)

    @property
    def admin_dsn(self) -> str:
        """The same as superuser."""
        return self._postgres.dsn(DATABASE)

    @property
    def title(self) -> str:
        """The versions of the servers."""
        return f"PostgreSQL {self._postgres.major} with {self._plugin}, Apache Kafka {KAFKA_VERSION}"

    @property
    def page_address(self) -> str:
        """Of the status page."""
        return f"http://{self.telemetry_address}/"

    def settings(self) -> Settings:
        """What the configuration file says."""
        return load_settings(self.configuration_path, {})

    # -- start -------------------------------------------------------------------------------------------------------

    def start(self, interruption: Interruption) -> None:
        """Returns once `cdcwatch run` is ready. Call it inside `interruption.starting()`."""
        self._tell(f"starting {self.title}")
        bring_jars()
        with ThreadPoolExecutor(1) as pool:
            self._kafka_started = pool.submit(self._kafka.start)
            try:
                self._postgres.start()
                self._make_shop()
                self._write_configuration()
                self._tell("making the slot")
                self._make_slot()
                self._kafka_started.result()
            except BaseException:
                # Whatever went wrong: the other start is not waited for.
                end_children(until=self._kafka_started.done)
                raise
        interruption.check()
        self._tell("starting cdcwatch run")
        self._start_service(interruption)
        self._tell(f"status page: {self.page_address}")

    def _make_shop(self) -> None:
        self._tell("making the shop: database, tables, indexes, roles")
        with psycopg.connect(self._postgres.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {OWNER} LOGIN")
            connection.execute(f"CREATE DATABASE {DATABASE} OWNER {OWNER}")
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for stand in self.stands:
                connection.execute(stand.statement(query("demo", "orders")))
        for stand in self.stands:
            chosen = (f"table={stand.table}", f"deadline={stand.deadline}", f"open={stand.open}")
            variables = [f"--variable={one}" for one in (f"role={SERVICE_ROLE}", "identity=on", *chosen)]
            command: list[str | Path] = [self._psql, "-X", "-d", self.admin_dsn, *variables, "-f", "-"]
            self._output("psql", command, given=script("install"))
        if RESERVATIONS in self.stands:
            with psycopg.connect(self.dsn, autocommit=True) as connection:
                seats = sql.SQL(query("demo", "seats"))
                connection.execute(seats.format(role=sql.Identifier(SERVICE_ROLE)))

    def _write_configuration(self) -> None:
        # A JSON text is a TOML text.
        values = {
            "plugin": self._plugin,
            "dsn": json.dumps(self._postgres.dsn(DATABASE, SERVICE_ROLE)),
            "bootstrap_servers": json.dumps(self._kafka.bootstrap_servers),
            "listen": json.dumps(self.telemetry_address),
        }
        entries = "".join(_ENTRY.format(stand=stand) for stand in self.stands) if len(self.stands) > 1 else ""
        self.configuration_path.write_text(_CONFIGURATION.format(**values) + entries, encoding="utf-8")

    def _make_slot(self) -> None:
        """As superuser: pgoutput's publication is made by whoever owns the table."""
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "cdcwatch",
            "slot",
            "create",
            "-c",
            str(self.configuration_path),
        ]
        self._output("cdcwatch slot", command, further={"CDCWATCH_POSTGRES__DSN": self.admin_dsn})

    def _start_service(self, interruption: Interruption) -> None:
        log_path = self.directory / "cdcwatch.log"
        self._service = OwnedProcess(
            [sys.executable, "-m", "cdcwatch", "run", "-c", str(self.configuration_path)],
            user=None,
            death_signal=signal.SIGKILL,
            directory=self.directory,
            log_path=log_path,
            environment=_environment(),
        )
        give_up_s = time.monotonic() + _READY_TIMEOUT_S
        while "READY\n" not in log_path.read_text(errors="replace"):
            interruption.check()
            self.require_service()
            if time.monotonic() > give_up_s:
                raise self._service_error(f"was not ready in {_READY_TIMEOUT_S} s")
            time.sleep(_LOOK_S)

    def require_service(self) -> None:
        """CdcwatchError when the service has ended by itself."""
        if self._service is not None and not self._service.running:
            raise self._service_error(f"ended with exit code {self._service.exit_code}")

    def _service_error(self, what: str) -> CdcwatchError:
        log_path = self.directory / "cdcwatch.log"
        return CdcwatchError(f"cdcwatch run {what}: {last_line(log_path)}", remedy=f"read {log_path}")

    # -- stop --------------------------------------------------------------------------------------------------------

    def stop_service(self, timeout_s: float = _STOP_TIMEOUT_S) -> int | None:
        """SIGTERM; the exit code, None when it had to be killed."""
        if self._service is None:
            return None
        self._service.signal(signal.SIGTERM)
        if self._service.wait(timeout_s):
            return self._service.exit_code
        self._service.kill_tree()
        return None

    def close(self) -> None:
        """Nothing of it runs afterwards."""
        try:
            self.stop_service(5)
        finally:
            try:
                self._kafka.close()
            finally:
                self._postgres.close()

    # -- commands ----------------------------------------------------------------------------------------------------

    def _found_psql(self) -> Path:
        """The installation's own psql, else the one on PATH."""
        psql = shutil.which("psql", path=f"{self._postgres.binaries}{os.pathsep}{os.environ.get('PATH', '')}")
        if psql is None:
            raise LocalServiceError(
                f"no psql in {self._postgres.binaries} and none on PATH",
                remedy=f"apt-get install postgresql-client-{self._postgres.major}",
            )
        return Path(psql)

    def _output(
        self, name: str, command: list[str | Path], *, given: str = "", further: Mapping[str, str] | None = None
    ) -> str:
        """What a short command prints; CdcwatchError with what it says last when it fails."""
        done = subprocess.run(
            launched(command, user=None, death_signal=signal.SIGKILL),
            cwd=self.directory,
            env={**_environment(), **(further or {})},
            input=given,
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise _failed(name, done.returncode, done.stderr)
        return done.stdout


def _failed(name: str, exit_code: int, said: str) -> CdcwatchError:
    """Our own commands say what is wrong and the remedy; psql marks its line as an error."""
    lines = said.strip().splitlines() or [f"exit code {exit_code}"]
    line = next((line for line in lines if "ERROR" in line or line.startswith("cdcwatch: ")), lines[-1])
    remedy = next((line for line in lines if line.startswith("remedy: ")), "run the demo again with --debug")
    return CdcwatchError(f"{name}: {line.removeprefix('cdcwatch: ')}", remedy=remedy.removeprefix("remedy: "))


def isolate() -> None:
    """Removes from this process what would lead its servers' clients elsewhere: libpq's and cdcwatch's variables."""
    for name in list(os.environ):
        if name.startswith("PG") or is_key(name):
            del os.environ[name]


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1"}
