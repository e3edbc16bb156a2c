"""The quickstart is run as it stands, on a server and a topic of its own; and so is all SQL of the documentation."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from jsonschema import Draft7Validator
from psycopg import sql

from tests.pages import PAGES, ROOT, Block, blocks
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdcwatch.local import LocalPostgres
    from tests.services import Kafka

SQL = [block for page in PAGES for block in blocks(page) if block.language == "sql"]
# By their first words; each with the reason.
NOT_RUN = {"SELECT cron.schedule(": "pg_cron is an extension that is not here"}
OF_POSTGRES_17 = "synchronized_standby_slots"
# What the pages' statements speak of, as a shop has it before.
SHOP = """
CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL, expires_at timestamptz NOT NULL, version int NOT NULL DEFAULT 0,
                     created_at timestamptz NOT NULL DEFAULT now());
INSERT INTO orders VALUES (1, 'pending', now() - interval '1 day'), (2, 'pending', now() - interval '1 s');
CREATE PUBLICATION cdcwatch_orders FOR TABLE orders (id, status, expires_at, version);
"""


def _environment(server: LocalPostgres) -> dict[str, str]:
    path = (str(Path(sys.executable).parent), str(server.binaries), os.environ["PATH"])
    where = {"PGHOST": "127.0.0.1", "PGPORT": str(server.port), "PGUSER": "postgres"}
    return {**os.environ, "PATH": os.pathsep.join(path), **where}


class Terminal:
    """Runs the blocks of a page in one directory, as somebody would who reads it."""

    def __init__(self, directory: Path, environment: Mapping[str, str]) -> None:
        self._directory, self._environment = directory, dict(environment)
        self._left: list[tuple[Block, subprocess.Popen[bytes], Path]] = []

    def run(self, block: Block) -> None:
        if block.language == "toml":
            (self._directory / block.words[0]).write_text(block.text)
            return
        kind, *words = block.words or ("",)
        if kind == "background":
            self._leave(block, words)
        elif kind == "until":
            wait_until(lambda: words[0] in self._output(block), 30, f"{block.place} shows {words[0]}", every_s=0.2)
        else:
            if kind == "stopped":
                self.stop()
            self._output(block)

    def _output(self, block: Block) -> str:
        ended = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.text],
            cwd=self._directory, env=self._environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.returncode == 0, f"{block.place}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def _leave(self, block: Block, words: list[str]) -> None:
        shown = self._directory / f"background.{len(self._left)}"
        command = ["bash", "-c", f"exec {block.text}"]
        with shown.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=self._directory, env=self._environment, stdout=file, stderr=subprocess.STDOUT
            )
        self._left.append((block, process, shown))
        if words:
            wait_until(
                lambda: words[0] in shown.read_text() or process.poll() is not None, 30, f"{block.place} says it"
            )
            assert process.poll() is None, shown.read_text()

    def shown(self, command: str) -> str:
        """What a command that was left running has printed."""
        return next(shown.read_text() for block, _, shown in self._left if block.text.startswith(command))

    def stop(self) -> None:
        """As Ctrl-C does; each must end well."""
        for block, process, shown in self._left:
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=120) == 0, f"{block.place}: {shown.read_text()}"
        self._left = []

    def kill(self) -> None:
        for _, process, _ in self._left:
            process.kill()
            process.wait()


def test_the_quickstart_can_be_followed(own_postgres: LocalPostgres, kafka: Kafka, topic: str, tmp_path: Path) -> None:
    steps = [one for one in blocks(ROOT / "docs/quickstart.md") if "setup" not in one.words]
    assert [one.words[0] for one in steps if one.words] == [
        "cdcwatch.toml",
        "background",
        "background",
        "until",
        "stopped",
    ]
    (tmp_path / "sql").symlink_to(ROOT / "sql")
    terminal = Terminal(
        tmp_path,
        {
            **_environment(own_postgres),
            "CDCWATCH_KAFKA__BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "CDCWATCH_KAFKA__TOPIC": topic,
            "CDCWATCH_TELEMETRY__LISTEN": "",
        },
    )
    try:
        for step in steps:
            if "stopped" in step.words:
                _told_of_all(terminal)
            terminal.run(step)
    finally:
        terminal.kill()
    with psycopg.connect(own_postgres.dsn(dbname="shop")) as connection:
        assert connection.execute("SELECT id, status FROM orders ORDER BY id").fetchall() == [
            (1, "expired"),
            (2, "paid"),
        ]
        assert connection.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)


def _told_of_all(terminal: Terminal) -> None:
    validator = Draft7Validator(json.loads((ROOT / "docs/schemas/deadline-event.schema.json").read_text()))

    def told() -> set[tuple[str, str]]:
        lines = [line for line in terminal.shown("cdcwatch events").splitlines() if line.startswith("{")]
        values = [json.loads(line) for line in lines]
        for value in values:
            validator.validate(value)
        return {(value["subject"], value["type"].removeprefix("deadline.")) for value in values}

    expected = {("1", "scheduled"), ("1", "expired"), ("2", "scheduled"), ("2", "cancelled")}
    wait_until(lambda: told() == expected, 20, "the topic has told of both orders", every_s=0.1)


def test_all_sql_runs(own_postgres: LocalPostgres, postgres_18: LocalPostgres) -> None:
    assert len(SQL) > 8
    run = [block for block in SQL if not any(block.text.startswith(words) for words in NOT_RUN)]
    newer = [block for block in run if OF_POSTGRES_17 in block.text]
    assert len(newer) == 1
    _run_on(postgres_18, newer)
    for page in sorted({block.page for block in run}):
        _run_on(own_postgres, [block for block in run if block.page == page and block not in newer])


def _run_on(server: LocalPostgres, those: list[Block]) -> None:
    """In a new shop, in order: a page ends with what removes everything."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("CREATE DATABASE shop")
        try:
            _psql(server, SHOP)
            _psql(server, f"\\i {ROOT}/sql/install.sql", "-v", "identity=on")
            _psql(server, f"\\i {ROOT}/sql/install_consume.sql")
            for block in those:
                _psql(server, block.text, place=block.place)
        finally:
            _clean(connection)


def _psql(server: LocalPostgres, text: str, *options: str, place: str = "") -> None:
    ended = subprocess.run(
        ["psql", "-X", "-q", "-d", "shop", "-v", "ON_ERROR_STOP=1", *options],
        input=text, env=_environment(server), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, f"{place}: {ended.stderr}"


def _clean(connection: psycopg.Connection[tuple[object, ...]]) -> None:
    connection.execute("ALTER SYSTEM RESET ALL")
    connection.execute("SELECT pg_reload_conf()")
    connection.execute("DROP DATABASE shop WITH (FORCE)")
    for (role,) in connection.execute("SELECT rolname FROM pg_roles WHERE rolname = 'cdcwatch'").fetchall():
        connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(str(role))))


@pytest.mark.parametrize("words", NOT_RUN)
def test_what_is_excepted_is_there(words: str) -> None:
    assert any(block.text.startswith(words) for block in SQL)
