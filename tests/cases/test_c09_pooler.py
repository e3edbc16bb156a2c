"""C9: through a pooler there is no replication; closing works through one, in transaction mode too."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import psycopg
import pytest

from cdcwatch.local.process import free_port
from tests.command import cdcwatch, run_to_the_end, write_configuration
from tests.oracle.world import World
from tests.services import scratch_directory
from tests.slots import QUIET
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka

_CONFIGURATION = """
[databases]
* = host={host} port={port} user={user}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {own_port}
auth_type = any
pool_mode = transaction
default_pool_size = 4
unix_socket_dir =
logfile = {folder}/log
pidfile = {folder}/pid
"""


@contextlib.contextmanager
def pgbouncer(dsn: str) -> Iterator[str]:
    """A pooler in transaction mode before the server; its DSN."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("pgbouncer is not installed")
    parameters = psycopg.conninfo.conninfo_to_dict(dsn)
    port = free_port()
    with scratch_directory() as folder:
        folder.chmod(0o777)
        file = folder / "pgbouncer.ini"
        file.write_text(
            _CONFIGURATION.format(
                host=parameters["host"], port=parameters["port"], user=parameters["user"], own_port=port, folder=folder
            )
        )
        options = ["-u", "nobody"] if os.geteuid() == 0 else []
        process = subprocess.Popen(
            [program, "-q", *options, file], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        pooled = psycopg.conninfo.make_conninfo(dsn, host="127.0.0.1", port=port)

        def answers() -> bool:
            assert process.poll() is None, (folder / "log").read_text()
            return psycopg.pq.PGconn.ping(pooled.encode()) == psycopg.pq.Ping.OK

        try:
            wait_until(answers, 20, "pgbouncer answers")
            yield pooled
        finally:
            process.terminate()
            process.wait(120)


def test_c09_a_pooler_between_is_recognised(database: Database, slot: str, tmp_path: Path) -> None:
    rest = f'[slot]\nname = "{slot}"\n' + QUIET
    with pgbouncer(database.dsn) as pooled:
        shop = write_configuration(tmp_path / "pooled.toml", pooled, rest)
        for arguments, code in ((["check"], 1), (["slot", "create"], 3), (["run"], 3)):
            ended = run_to_the_end(*arguments, "-c", shop)
            assert ended.code == code, ended
            assert "connect directly" in ended.said
            assert "postgres.replication_dsn" in ended.said
        both = write_configuration(tmp_path / "both.toml", pooled, f'replication_dsn = "{database.dsn}"\n{rest}')
        checked = cdcwatch("check", "-c", both)
        assert checked.code == 0, checked
        assert "postgres.dsn goes through a pooler, the stream directly" in checked.out
        assert cdcwatch("slot", "create", "-c", both).code == 0
        assert cdcwatch("slot", "peek", "-c", both).code == 0
        looked = cdcwatch("slot", "peek", "-c", shop)
        assert looked.code == 3
        assert "connect directly" in looked.err


def test_c09_closing_works_through_a_pooler_in_transaction_mode(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pgbouncer(database.dsn) as pooled, World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        monkeypatch.setenv("CDCWATCH_POSTGRES__DSN", pooled)
        monkeypatch.setenv("CDCWATCH_POSTGRES__REPLICATION_DSN", database.dsn)
        with world.running():
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() + n * interval '5 ms'"
                " FROM generate_series(1, 100) n"
            )
            world.wait_nothing_due()
            world.wait_confirmed()
        world.judge()
