"""`psycopg2_reader.py DSN SLOT END_LSN`: psycopg2's replication cursor on a wal2json slot, every line by json.loads.

Ends with the first commit that ends at END_LSN or later, which it confirms; before that, every 10,000 changes.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

import psycopg2
from psycopg2.extras import LogicalReplicationConnection, StopReplication

from cdcwatch.lsn import parse_lsn

_CONFIRM_EVERY_CHANGES = 10_000
_OPTIONS = {"format-version": "2", "include-lsn": "1", "add-tables": "public.orders"}


class _Reader:
    """Takes the messages of the stream."""

    def __init__(self, end_lsn: int) -> None:
        self._end_lsn = end_lsn
        self._changes = self._confirmed = 0

    def __call__(self, message: Any) -> None:
        line = json.loads(message.payload)
        action = line["action"]
        if action in "IUD":
            self._changes += 1
        elif action == "C":
            lsn = parse_lsn(line["nextlsn"])
            if lsn >= self._end_lsn:
                self._end(message, lsn)
            if self._changes - self._confirmed >= _CONFIRM_EVERY_CHANGES:
                message.cursor.send_feedback(flush_lsn=lsn)
                self._confirmed = self._changes

    @staticmethod
    def _end(message: Any, lsn: int) -> NoReturn:
        message.cursor.send_feedback(flush_lsn=lsn, force=True)
        raise StopReplication


def main() -> None:
    """Until the end."""
    dsn, slot, end_lsn = sys.argv[1:]
    connection = psycopg2.connect(dsn, connection_factory=LogicalReplicationConnection)
    cursor = connection.cursor()
    cursor.start_replication(slot_name=slot, decode=True, options=_OPTIONS)
    try:
        cursor.consume_stream(_Reader(parse_lsn(end_lsn)))
    except StopReplication:
        connection.close()


if __name__ == "__main__":
    main()
