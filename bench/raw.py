"""`raw.py CONFIGURATION CONNECTIONS [plain]`: a closing statement alone, over all that is due; one line of JSON.

Ours, or with `plain` an UPDATE of the same rows by key and version, which locks in no order and tells a count only.

The table must hold the due orders already, and nobody else may write. Each connection has a thread and its share of the
batches, made before the clock starts.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from cdcwatch.close.clock import SystemClock
from cdcwatch.close.update import PostgresTable
from cdcwatch.configuration import load_settings
from cdcwatch.instant import from_unix_us
from cdcwatch.pipeline.inquiry import Inquiry
from cdcwatch.pipeline.interpreter import tune

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdcwatch.deadline.schedule import Due

_PLAIN = """
UPDATE orders AS o SET status = 'expired', version = o.version + 1, closed_at = clock_timestamp()
FROM unnest(%s::bigint[], %s::int[]) AS wanted (id, version)
WHERE o.id = wanted.id AND o.version = wanted.version AND o.status = 'pending' AND o.expires_at <= clock_timestamp()
"""


def _plain(dsn: str) -> Callable[[Sequence[Due]], int]:
    connection = psycopg.connect(dsn, autocommit=True)

    def close(batch: Sequence[Due]) -> int:
        return connection.execute(_PLAIN, ([due.key for due in batch], [due.version for due in batch])).rowcount

    return close


def _ours(table: PostgresTable) -> Callable[[Sequence[Due]], int]:
    return lambda batch: len(table.close(batch).closed)


def main() -> None:
    """Reads, closes, tells."""
    settings, connections = load_settings(Path(sys.argv[1]), {}), int(sys.argv[2])
    is_plain = sys.argv[3:] == ["plain"]
    tune()
    (watched,) = Inquiry(settings).surroundings().tables
    tables = [
        PostgresTable(settings.postgres.dsn, watched, SystemClock(), changes=settings.close.set)
        for _ in range(connections)
    ]
    for table in tables:
        table.connect()
    due = [one for chunk in tables[0].open_deadlines(None, from_unix_us(time.time_ns() // 1000)) for one in chunk]
    size = settings.close.batch_rows
    batches = [due[start : start + size] for start in range(0, len(due), size)]
    closed = [0] * connections
    closers = [_plain(settings.postgres.dsn) if is_plain else _ours(table) for table in tables]

    def close(at: int) -> None:
        share: list[list[Due]] = batches[at::connections]
        closed[at] = sum(closers[at](batch) for batch in share)

    threads = [threading.Thread(target=close, args=[at]) for at in range(connections)]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"closed": sum(closed), "seconds": time.monotonic() - began_s}))


if __name__ == "__main__":
    main()
