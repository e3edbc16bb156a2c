"""Order traffic: inserts, payments, extensions, cancellations, deletions, key changes, in small transactions."""

from __future__ import annotations

import contextlib
import random
import threading
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from collections.abc import Iterator

_INSERT = (
    "INSERT INTO orders (id, expires_at) SELECT %(id)s + n, clock_timestamp() + (%(due_ms)s + 40 * n) * interval '1 ms'"
    " FROM generate_series(0, %(rows)s - 1) AS n"
)
_CHANGES = (
    "UPDATE orders SET status = 'paid', version = version + 1 WHERE id = %(id)s AND status = 'pending'",
    """UPDATE orders SET expires_at = expires_at + interval '700 ms', version = version + 1
       WHERE id = %(id)s AND status = 'pending'""",
    # An application that moves the deadline and forgets the version.
    "UPDATE orders SET expires_at = expires_at + interval '300 ms' WHERE id = %(id)s AND status = 'pending'",
    "UPDATE orders SET note = repeat('n', 300), version = version + 1 WHERE id = %(id)s",
    "UPDATE orders SET status = 'cancelled' WHERE id = %(id)s AND status = 'pending'",
    "UPDATE orders SET id = -id WHERE id = %(id)s AND status = 'pending'",
    "DELETE FROM orders WHERE id = %(id)s",
    # Reinstated, and for so short a time that the close is near.
    """UPDATE orders SET status = 'pending', expires_at = clock_timestamp() + interval '200 ms', version = version + 1
       WHERE id = %(id)s AND status = 'cancelled'""",
)
_AGAIN_S = 0.1
_MOST_ROWS = 20


class Traffic:
    """Some writers, each with ids of its own."""

    def __init__(
        self, dsn: str, *, seed: int, writers: int = 2, rest_s: float = 0.006, outlives_outages: bool = False
    ) -> None:
        """`rest_s`: between two transactions of a writer at most. `outlives_outages`: a server that dies takes the
        connection along, not the writer; what became of the transaction under way is for the ledger to say."""
        self._dsn, self._seed, self._rest_s, self._outlives = dsn, seed, rest_s, outlives_outages
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._write, args=(n,)) for n in range(writers)]
        self.committed = 0
        self.errors: list[BaseException] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[Traffic]:
        """Writes until the end of the block; an error of a writer is raised there."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()
        if self.errors:
            raise self.errors[0]

    def _write(self, writer: int) -> None:
        choose = random.Random(self._seed * 100 + writer)
        first_id = 1 + writer * 10_000_000
        next_id = first_id
        try:
            while not self._stop.is_set():
                try:
                    with psycopg.connect(self._dsn, autocommit=True) as connection:
                        while not self._stop.is_set():
                            next_id = self._transaction(connection, choose, next_id, first_id)
                            self.committed += 1
                            self._stop.wait(choose.uniform(0, self._rest_s))
                except psycopg.OperationalError:
                    if not self._outlives:
                        raise
                    next_id += _MOST_ROWS  # whether it was committed or not
                    self._stop.wait(_AGAIN_S)
        except BaseException as error:  # noqa: BLE001
            self.errors.append(error)

    @staticmethod
    def _transaction(connection: psycopg.Connection[Any], choose: random.Random, next_id: int, first_id: int) -> int:
        rows = choose.choice((1, 1, 1, 2, 3, _MOST_ROWS))
        with contextlib.suppress(_Undone), connection.transaction():
            connection.execute(_INSERT, {"id": next_id, "rows": rows, "due_ms": choose.randint(50, 2500)})
            for _ in range(choose.choice((0, 1, 1, 2))):
                lately = max(first_id, next_id + rows - 150)
                connection.execute(choose.choice(_CHANGES), {"id": choose.randint(lately, next_id + rows - 1)})
            if choose.random() < 0.05:
                raise _Undone
        return next_id + rows


class _Undone(Exception):  # noqa: N818
    """Rolls a transaction back."""
