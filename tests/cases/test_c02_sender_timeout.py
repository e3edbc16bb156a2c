"""C2: the server drops a reader that is silent for wal_sender_timeout."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka


@pytest.fixture
def hasty(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """A server that waits for a reader's status no longer than a second."""
    dsn = psycopg.conninfo.make_conninfo(database.dsn, options="-c wal_sender_timeout=1s")
    monkeypatch.setenv("CDCWATCH_POSTGRES__REPLICATION_DSN", dsn)
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        yield world


def test_c02_status_goes_out_well_within_the_servers_patience(hasty: World) -> None:
    with hasty.running():
        told = set()

        def has_told_often() -> bool:
            told.update(
                hasty.connection.execute(
                    "SELECT sender.pid, sender.reply_time FROM pg_stat_replication sender"
                    " JOIN pg_replication_slots ON active_pid = sender.pid WHERE slot_name = %s",
                    [hasty.slot],
                )
            )
            return len(told) > 8

        wait_until(has_told_often, 30, "several times the server's patience has passed")
        assert len({pid for pid, _ in told}) == 1, "the connection was never dropped"


def test_c02_a_reader_that_was_dropped_comes_back_and_loses_nothing(hasty: World) -> None:
    with hasty.running() as process:
        process.signal(signal.SIGSTOP)
        wait_until(
            lambda: not hasty.scalar("SELECT active FROM pg_replication_slots WHERE slot_name = %s", hasty.slot),
            30,
            "the server gives the silent reader up",
        )
        hasty.connection.execute(
            "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() FROM generate_series(1, 20) n"
        )
        process.signal(signal.SIGCONT)
        hasty.wait_nothing_due()
        hasty.wait_confirmed()
    hasty.judge()
