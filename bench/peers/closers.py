"""What cdcwatch is compared with: `closers.py poll|heap DSN` closes orders with nothing but the table, until SIGTERM.

poll: one UPDATE of all that is due, every tenth of a second. heap: deadlines in memory, batches of due ones closed by
key; it finds new orders by asking for greater ids, which only works where ids grow and nothing else ever changes.
"""

from __future__ import annotations

import heapq
import os
import signal
import sys
import threading
import time

import psycopg

EVERY_S = 0.1
_BATCH_ROWS = 500
_NAP_S = 0.005
_CLOSE = "UPDATE orders SET status = 'expired', version = version + 1, closed_at = clock_timestamp()"
_CLOSE_DUE = f"{_CLOSE} WHERE status = 'pending' AND expires_at <= statement_timestamp()"
_CLOSE_BATCH = (
    f"{_CLOSE} WHERE id = ANY(%s::bigint[]) AND status = 'pending' AND expires_at <= clock_timestamp() RETURNING id"
)
_NEW = "SELECT extract(epoch FROM expires_at)::float8, id FROM orders WHERE id > %s ORDER BY id"


def poll(dsn: str) -> None:
    """At every full tenth of a second, so that a deadline can be laid between two."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        print("READY", flush=True)
        while True:
            time.sleep(EVERY_S - time.time() % EVERY_S)
            connection.execute(_CLOSE_DUE)


class Heap:
    """Deadlines in order, for one thread that finds new ones and two that close."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._lock = threading.Lock()
        self._deadlines: list[tuple[float, int]] = []

    def run(self) -> None:
        for _ in range(2):
            threading.Thread(target=self._close, daemon=True).start()
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            print("READY", flush=True)
            last_id = 0
            while True:
                for deadline in connection.execute(_NEW, [last_id]).fetchall():
                    last_id = deadline[1]
                    with self._lock:
                        heapq.heappush(self._deadlines, deadline)
                time.sleep(EVERY_S)

    def _close(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while True:
                batch = self._due()
                if not batch:
                    time.sleep(self._wait_s())
                    continue
                keys = sorted(key for _, key in batch)
                closed = {key for (key,) in connection.execute(_CLOSE_BATCH, [keys]).fetchall()}
                with self._lock:
                    for deadline in batch:
                        if deadline[1] not in closed:  # the database's clock says: not yet
                            heapq.heappush(self._deadlines, deadline)

    def _due(self) -> list[tuple[float, int]]:
        batch: list[tuple[float, int]] = []
        with self._lock:
            while self._deadlines and self._deadlines[0][0] <= time.time() and len(batch) < _BATCH_ROWS:
                batch.append(heapq.heappop(self._deadlines))
        return batch

    def _wait_s(self) -> float:
        with self._lock:
            return max(0.0, min(_NAP_S, self._deadlines[0][0] - time.time())) if self._deadlines else _NAP_S


def main() -> None:
    kind, dsn = sys.argv[1:]
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if kind == "poll":
        poll(dsn)
    else:
        Heap(dsn).run()


if __name__ == "__main__":
    main()
