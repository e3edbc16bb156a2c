"""`raw.py CONFIGURATION CONNECTIONS`: the closing statement alone, over everything that is due; one line of JSON.

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

from cdcwatch.close.clock import SystemClock
from cdcwatch.close.update import PostgresTable
from cdcwatch.configuration import load_settings
from cdcwatch.instant import from_unix_us
from cdcwatch.pipeline.inquiry import Inquiry
from cdcwatch.pipeline.interpreter import tune

if TYPE_CHECKING:
    from cdcwatch.deadline.schedule import Due


def main() -> None:
    """Reads, closes, tells."""
    settings, connections = load_settings(Path(sys.argv[1]), {}), int(sys.argv[2])
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

    def close(at: int) -> None:
        share: list[list[Due]] = batches[at::connections]
        closed[at] = sum(len(tables[at].close(batch).closed) for batch in share)

    threads = [threading.Thread(target=close, args=[at]) for at in range(connections)]
    began_s = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps({"closed": sum(closed), "seconds": time.monotonic() - began_s}))


if __name__ == "__main__":
    main()
