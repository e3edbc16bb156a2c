"""SIGKILL between a handler's effect and its record; SIGTERM while a handler works."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cdcwatch.consume import PostgresStore
from tests.consuming import Feed, committed, group_name
from tests.topic import read_topic
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests import services

ROOT = Path(__file__).parents[2]
NAMES = ["a", "b", "deadly", "c", "d"]


@contextmanager
def process(told: dict[str, Any]) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "tests.fault.consumer_process", json.dumps(told)]
    started = subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@pytest.fixture
def told(database: services.Database, kafka: services.Kafka, topic: str, redis_server: services.Redis, tmp_path: Path) -> dict[str, Any]:  # fmt: skip
    with database.connect() as connection:
        connection.execute("CREATE TABLE effects (event text NOT NULL)")
    store = PostgresStore(database.dsn)
    store.install()
    store.close()
    return {
        "dsn": database.dsn, "kafka": kafka.bootstrap_servers, "topic": topic, "group": group_name(),
        "redis": redis_server.url, "mark": str(tmp_path / "mark"),
    }  # fmt: skip


def effects(database: services.Database) -> Counter[str]:
    with database.connect() as connection:
        return Counter(name for (name,) in connection.execute("SELECT event FROM effects").fetchall())


@pytest.mark.parametrize(("mode", "deadly"), [("transaction", 1), ("postgres", 2), ("redis", 2)])
def test_killed_between_effect_and_record(
    database: services.Database, kafka: services.Kafka, topic: str, told: dict[str, Any], mode: str, deadly: int
) -> None:
    Feed(kafka, topic).tell([*NAMES, "a", "b"], partition=0)
    with process({**told, "mode": mode}) as first:
        assert first.wait(120) == -signal.SIGKILL
    expected = dict.fromkeys(NAMES, 1) | {"deadly": deadly}
    with process({**told, "mode": mode}) as second:
        wait_until(lambda: effects(database) == expected, 30, "all effects are there", every_s=0.1)
        wait_until(lambda: committed(kafka, topic, told["group"]) == 7, 30, "all is committed", every_s=0.2)
        second.send_signal(signal.SIGTERM)
        assert second.wait(120) == 0
    assert effects(database) == expected


def test_what_kills_its_process_each_time_becomes_a_dead_letter(
    database: services.Database, kafka: services.Kafka, topic: str, told: dict[str, Any]
) -> None:
    """In a transaction, which takes with it all that it wrote, the count of the attempt too."""
    Feed(kafka, topic).tell(["a", "killer", "b"], partition=0)
    for _ in range(3):
        with process({**told, "mode": "transaction"}) as killed:
            assert killed.wait(120) == -signal.SIGKILL
    with process({**told, "mode": "transaction"}) as last:
        wait_until(lambda: committed(kafka, topic, told["group"]) == 3, 30, "it goes on behind it", every_s=0.2)
        last.send_signal(signal.SIGTERM)
        assert last.wait(120) == 0
    assert effects(database) == {"a": 1, "b": 1}
    (letter,) = read_topic(kafka.bootstrap_servers, f"{topic}.{told['group']}.dead")
    assert (letter.key, dict(letter.headers)["dead_error"]) == (b"killer", b"the process died")


def test_sigterm_lets_the_handler_end_and_commits_what_it_did(
    database: services.Database, kafka: services.Kafka, topic: str, told: dict[str, Any]
) -> None:
    Feed(kafka, topic).tell(["a", "slow", "b", "c"], partition=0)
    with process({**told, "mode": "transaction"}) as first:
        wait_until(lambda: effects(database)["slow has begun"], 30, "the handler works", every_s=0.05)
        first.send_signal(signal.SIGTERM)
        assert first.wait(120) == 0
    assert effects(database) == {"a": 1, "slow has begun": 1, "slow": 1}
    assert committed(kafka, topic, told["group"]) == 2
