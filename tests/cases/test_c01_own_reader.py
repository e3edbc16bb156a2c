"""C1: psycopg has no replication API: our reader stands on its libpq layer, whichever implementation that has."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.command import cdcwatch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database

_READ = """
import sys, select, psycopg
from cdcwatch.lsn import format_lsn
from cdcwatch.slot.stream import PostgresSlot
dsn, slot = sys.argv[1:]
facts, stream = PostgresSlot(dsn, slot, plugin="wal2json").acquire({"format-version": "2", "include-lsn": "true"})
actions, seen = [], 0
while "C" not in actions:
    select.select([stream.fileno()], [], [], 20)
    for message in stream.read(1 << 20):
        if message[0] == ord("w"):
            actions.append(bytes(message[25:]).decode()[11])
stream.send_status(stream.received_lsn)
stream.close()
print(psycopg.pq.__impl__, "".join(actions), format_lsn(stream.received_lsn))
"""


@pytest.mark.parametrize("implementation", ["binary", "python"])
def test_c01_the_reader_works_on_every_implementation_of_libpq(
    database: Database, slot: str, shop: Path, implementation: str
) -> None:
    assert cdcwatch("slot", "create", "-c", shop).code == 0
    with database.connect() as connection:
        connection.execute("INSERT INTO orders SELECT n, 'pending', now() FROM generate_series(1, 3) n")
        done = subprocess.run(
            [sys.executable, "-c", _READ, database.dsn, slot],
            env={**os.environ, "PSYCOPG_IMPL": implementation},
            capture_output=True,
            text=True,
            check=False,
        )
        if "no pq wrapper available" in done.stderr or "libpq library not found" in done.stderr:
            pytest.skip(f"no {implementation} implementation of psycopg here")
        assert done.returncode == 0, done.stderr
        used, actions, received = done.stdout.split()
        assert (used, actions) == (implementation, "BIIIC")
        row = connection.execute(
            "SELECT confirmed_flush_lsn >= %s::pg_lsn FROM pg_replication_slots WHERE slot_name = %s", [received, slot]
        ).fetchone()
        assert row == (True,), "the last status was heard before the goodbye"
