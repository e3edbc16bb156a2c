"""What the database says of the demo: who waits, how late closes were, how far the slot is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from cdcwatch.database import connect, translated
from cdcwatch.demo.order import State
from cdcwatch.lsn import parse_lsn
from cdcwatch.queries import query

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Waiting:
    """Pending orders."""

    rows: int = 0
    soon_rows: int = 0
    """Due within a minute, or due already."""
    overdue_rows: int = 0


@dataclass(frozen=True, slots=True)
class Lateness:
    """Closed minus deadline, by the database's clock; None while nothing was closed."""

    closed_rows: int = 0
    early_rows: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None


@dataclass(frozen=True, slots=True)
class SlotPlace:
    """Where the slot stands."""

    confirmed_flush_lsn: int
    lag_bytes: int


class Figures:
    """One connection for questions. Errors as of `cdcwatch.database`."""

    def __init__(self, dsn: str, slot: str) -> None:
        self._slot = slot
        self._connection = connect(dsn, application_name="cdcwatch demo")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def waiting(self) -> Waiting:
        """Pending orders now."""
        return Waiting(*self._row(query("demo", "waiting")))

    def lateness(self, first_id: int = 0) -> Lateness:
        """Of the orders from `first_id` on."""
        return Lateness(*self._row(query("demo", "lateness"), {"first_id": first_id}))

    def slot(self) -> SlotPlace:
        """The slot now."""
        confirmed, lag_bytes = self._row(query("demo", "slot"), {"slot": self._slot})
        return SlotPlace(parse_lsn(confirmed), lag_bytes)

    def wal_end_lsn(self) -> int:
        """Every commit so far ends before it."""
        return parse_lsn(self._row(query("demo", "wal_end"))[0])

    def status_counts(self) -> dict[str, int]:
        """Rows by status."""
        with translated():
            return dict(self._connection.execute(query("demo", "statuses")).fetchall())

    def rows(self) -> Iterator[tuple[int, State]]:
        """Every order, a few at a time."""
        with (
            translated(),
            self._connection.transaction(),
            self._connection.cursor("demo_rows", binary=True) as cursor,
        ):
            cursor.itersize = 5000
            for order_id, status, version, deadline_us in cursor.execute(query("demo", "rows")):
                yield order_id, State(status, version, deadline_us)

    def _row(self, statement: Any, values: Any = None) -> tuple[Any, ...]:
        with translated(), self._connection.cursor(binary=True) as cursor:
            row = cursor.execute(statement, values).fetchone()
        if row is None:
            raise RuntimeError("a row that must be there is not")
        return row
