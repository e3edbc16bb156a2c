"""C4: a slot that somebody reads is named with its owner, and never taken."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.command import cdcwatch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database


@pytest.fixture
def reader(database: Database, slot: str, shop: Path) -> Iterator[psycopg.pq.abc.PGconn]:
    """Somebody who reads the slot."""
    assert cdcwatch("slot", "create", "-c", shop).code == 0
    dsn = psycopg.conninfo.make_conninfo(database.dsn, replication="database", application_name="the owner")
    reader = psycopg.pq.PGconn.connect(dsn.encode())
    result = reader.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0".encode())
    assert result.status == psycopg.pq.ExecStatus.COPY_BOTH
    yield reader
    reader.finish()


@pytest.mark.parametrize(
    "arguments", [["drop", "--yes"], ["advance", "--to", "current", "--yes"], ["peek"], ["create"]], ids=lambda a: a[0]
)
def test_c04_every_command_refuses_and_names_the_owner(
    database: Database, slot: str, shop: Path, reader: psycopg.pq.abc.PGconn, arguments: list[str]
) -> None:
    refused = cdcwatch("slot", *arguments, "-c", shop)
    assert (refused.code, refused.out) == (3, "")
    assert f"read by pid {reader.backend_pid} (the owner" in refused.err
    with database.connect() as connection:
        row = connection.execute(
            "SELECT active_pid, confirmed_flush_lsn = restart_lsn OR active FROM pg_replication_slots"
            " WHERE slot_name = %s",
            [slot],
        ).fetchone()
    assert row == (reader.backend_pid, True)


def test_c04_status_and_list_name_the_owner(shop: Path, slot: str, reader: psycopg.pq.abc.PGconn) -> None:
    told = json.loads(cdcwatch("slot", "status", "--json", "--interval", "0", "-c", shop).out)
    assert told["active"] is True
    assert told["owner"] == {
        "pid": reader.backend_pid,
        "application_name": "the owner",
        "client_address": "127.0.0.1",
    }
    listed = cdcwatch("slot", "list", "--interval", "0", "-c", shop).out
    row = next(line for line in listed.splitlines() if line.startswith("*"))
    assert str(reader.backend_pid) in row.split()
    assert cdcwatch("check", "-c", shop).code == 0
