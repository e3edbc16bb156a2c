"""A throwaway PostgreSQL server with logical decoding, on the loopback interface."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from psycopg import pq
from psycopg.conninfo import make_conninfo

from cdcwatch.local.binaries import find_postgres
from cdcwatch.local.errors import LocalServiceError
from cdcwatch.local.process import OwnedProcess, free_port, is_alive, launched
from cdcwatch.local.service import LocalService

if TYPE_CHECKING:
    from collections.abc import Mapping

StopMode = Literal["smart", "fast", "immediate"]

_STOP_SIGNAL = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
_UNPRIVILEGED_USERS = ("postgres", "nobody")
_COMMAND_TIMEOUT_S = 120
_CONFIGURATION = "cdcwatch.conf"
_PLUGINS = "pgoutput, test_decoding, wal2json"


class LocalPostgres(LocalService):
    """A server with logical decoding.

    Started by root it runs as the user postgres, as PostgreSQL refuses root. Everyone on this machine may connect
    as anyone: it is for demonstrations and tests.
    """

    name = "PostgreSQL"

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        fsync: bool = True,
        settings: Mapping[str, str] | None = None,
        start_timeout_s: float = 60,
    ) -> None:
        """Choose binaries and port; `settings` are further parameters. LocalServiceError without binaries."""
        super().__init__(directory, log="postgres.log", start_timeout_s=start_timeout_s)
        self._server = find_postgres()
        self.binaries = self._server.directory
        self.major = self._server.major
        self.has_wal2json = self._server.has_wal2json
        self.port = port or free_port()
        self.settings: dict[str, str] = {**_settings(self.port, fsync=fsync), **(settings or {})}
        """Written at each start and by `reload`; change it in between."""
        self._data = self.directory / "data"
        self._user = _server_user()
        self._knows_plugin_setting: bool | None = None

    def dsn(self, dbname: str = "postgres", user: str = "postgres") -> str:
        """Connection parameters for libpq."""
        return make_conninfo(host="127.0.0.1", port=self.port, user=user, dbname=dbname)

    def stop(self, mode: StopMode = "fast", *, timeout_s: float = 60) -> None:
        """Shut down as `pg_ctl stop -m mode` does; LocalServiceError when it still runs after `timeout_s`."""
        remedy = "end its clients, or stop it with mode fast or immediate"
        self._end(_STOP_SIGNAL[mode], timeout_s, how=f" ({mode})", remedy=remedy)

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop and start on the same port; after `kill` or `stop` it only starts."""
        self.stop(mode)
        self.start()

    def reload(self) -> None:
        """Write `settings` and have the server read them; it does so within moments, not at once."""
        self._configure()
        if self._process is not None:
            self._process.signal(signal.SIGHUP)

    def _launched(self) -> OwnedProcess:
        """Makes the database cluster when there is none."""
        self._initialise()
        self._clear_stale_pid_file()
        self._configure()
        return OwnedProcess(
            [self._server.program("postgres"), "-D", self._data],
            user=self._user,
            death_signal=signal.SIGQUIT,  # the immediate shutdown: it waits for no client
            directory=self.directory,
            log_path=self.log_path,
            environment=_environment(),
        )

    def _answers(self) -> bool:
        return pq.PGconn.ping(self.dsn().encode()) == pq.Ping.OK

    def _initialise(self) -> None:
        """Make the data directory, complete or not at all."""
        version_file = self._data / "PG_VERSION"
        if version_file.exists():
            made_by = version_file.read_text().strip()
            if made_by != str(self.major):
                raise LocalServiceError(
                    f"{self._data} was made by PostgreSQL {made_by}, the server is {self.major}",
                    remedy=f"remove {self.directory} or choose another directory",
                )
            return
        unfinished = self.directory / "data.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        self._give(unfinished)
        self._require_reachable(unfinished)
        options = ["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync"]
        done = self._run("initdb", "-D", str(unfinished), *options)
        if done.returncode != 0:
            raise LocalServiceError(
                f"initdb failed: {done.stdout.decode(errors='replace').strip()[-300:]!r}",
                remedy=f"look at {self.directory}",
            )
        with (unfinished / "postgresql.conf").open("a") as file:
            file.write(f"include_if_exists '{_CONFIGURATION}'\n")
        unfinished.rename(self._data)

    def _clear_stale_pid_file(self) -> None:
        """Remove the pid file of a server that was killed: its pid may be another process's by now."""
        pid_file = self._data / "postmaster.pid"
        if not pid_file.exists():
            return
        pid = int(pid_file.read_text().split("\n", 1)[0] or 0)
        if is_alive(pid) and _works_in(pid, self._data):
            raise LocalServiceError(
                f"a server with pid {pid} already runs in {self._data}",
                remedy=f"stop it (kill -INT {pid}) or choose another directory",
            )
        pid_file.unlink(missing_ok=True)

    def _configure(self) -> None:
        """Write `settings`, and permission for wal2json where the server asks for it."""
        settings = dict(self.settings)
        if self.has_wal2json and self._restricts_plugins():
            settings.setdefault("output_plugin_libraries", _PLUGINS)
        path = self._data / _CONFIGURATION
        path.write_text("".join(f"{name} = {_quoted(value)}\n" for name, value in settings.items()))
        self._give(path)

    def _restricts_plugins(self) -> bool:
        """Whether this minor release knows `output_plugin_libraries`; older ones would not start with it."""
        if self._knows_plugin_setting is None:
            done = self._run("postgres", "-C", "output_plugin_libraries", "-D", str(self._data))
            self._knows_plugin_setting = done.returncode == 0
        return self._knows_plugin_setting

    def _run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run a short command of the installation as the server's user; both its streams are in `stdout`."""
        return subprocess.run(
            launched([self._server.program(program), *arguments], user=self._user, death_signal=signal.SIGKILL),
            cwd=self.directory,
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )

    def _give(self, path: Path) -> None:
        if self._user is not None:
            shutil.chown(path, self._user, pwd.getpwnam(self._user).pw_gid)

    def _require_reachable(self, path: Path) -> None:
        """The server's user must be allowed into every directory on the way to its data."""
        if self._user is None:
            return
        for parent in path.parents:
            if not parent.stat().st_mode & 0o001:
                raise LocalServiceError(
                    f"the user {self._user}, as which PostgreSQL runs, may not enter {parent}",
                    remedy=f"chmod o+x {parent}, or choose a directory below /tmp or /var/tmp",
                )


def _settings(port: int, *, fsync: bool) -> dict[str, str]:
    return {
        "listen_addresses": "127.0.0.1",
        "port": str(port),
        "unix_socket_directories": "",
        "wal_level": "logical",
        "max_wal_senders": "20",
        "max_replication_slots": "40",
        "max_connections": "200",
        "shared_buffers": "256MB",
        "fsync": "on" if fsync else "off",
        "logging_collector": "off",
        "log_line_prefix": "%m [%p] %q%a ",
    }


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _server_user() -> str | None:
    """As whom the server runs: None, as we are, unless we are root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    for user in _UNPRIVILEGED_USERS:
        if user in known:
            return user
    raise LocalServiceError(
        "PostgreSQL refuses to run as root, and there is no user postgres", remedy="useradd --system postgres"
    )


def _environment() -> dict[str, str]:
    """Ours without libpq's and the server's variables, and with plain messages."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}


def _works_in(pid: int, directory: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").samefile(directory)
    except OSError:
        return False
