"""What the database says of the demo: who waits, how late closes were, how far the slot is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from msgspec import Struct

from cdcwatch.database import connect, translated
from cdcwatch.demo.order import State
from cdcwatch.demo.tally import EXPIRED_STATUS
from cdcwatch.lsn import parse_lsn
from cdcwatch.queries import query

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cdcwatch.demo.stands import Stand


class Waiting(Struct, frozen=True):
    """Pending orders."""

    rows: int = 0
    soon_rows: int = 0
    """Due within a minute, or due already."""
    overdue_rows: int = 0

    @classmethod
    def total(cls, several: Sequence[Waiting]) -> Waiting:
        """Of several tables."""
        rows = [(one.rows, one.soon_rows, one.overdue_rows) for one in several]
        return cls(*(sum(column) for column in zip(*rows, strict=True)))


class Lateness(Struct, frozen=True):
    """Closed minus deadline, by the database's clock; None while nothing was closed."""

    closed_rows: int = 0
    early_rows: int = 0
    p50_ms: float | None = None
    p99_ms: float | None = None
    max_ms: float | None = None

    @classmethod
    def worst(cls, several: Sequence[Lateness]) -> Lateness:
        """Of several tables: of each figure the worst."""
        if len(several) == 1:
            return several[0]

        def most(values: Iterable[float | None]) -> float | None:
            return max((value for value in values if value is not None), default=None)

        return cls(
            sum(one.closed_rows for one in several),
            sum(one.early_rows for one in several),
            most(one.p50_ms for one in several),
            most(one.p99_ms for one in several),
            most(one.max_ms for one in several),
        )


class SlotPlace(Struct, frozen=True):
    """Where the slot stands."""

    confirmed_flush_lsn: int
    lag_bytes: int


class Figures:
    """One connection for questions. Errors as of `cdcwatch.database`."""

    def __init__(self, dsn: str, slot: str, stand: Stand) -> None:
        self._slot, self._stand = slot, stand
        self._connection = connect(dsn, application_name="cdcwatch demo")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def waiting(self) -> Waiting:
        """Pending orders now."""
        return Waiting(*self._row(self._stand.statement(query("demo", "waiting"))))

    def lateness(self, first_id: int = 0) -> Lateness:
        """Of the orders from `first_id` on."""
        return Lateness(*self._row(self._stand.statement(query("demo", "lateness")), {"first_id": first_id}))

    def slot(self) -> SlotPlace:
        """The slot now."""
        confirmed, lag_bytes = self._row(query("demo", "slot"), {"slot": self._slot})
        return SlotPlace(parse_lsn(confirmed), lag_bytes)

    def wal_end_lsn(self) -> int:
        """Every commit so far ends before it."""
        return parse_lsn(self._row(query("demo", "wal_end"))[0])

    def status_counts(self) -> dict[str, int]:
        """Rows by status; closed ones are `expired`, whatever the stand calls it."""
        with translated():
            found = dict(self._connection.execute(self._stand.statement(query("demo", "statuses"))).fetchall())
        if self._stand.closed in found:
            found[EXPIRED_STATUS] = found.pop(self._stand.closed)
        return found

    def seats_taken(self) -> tuple[int, int]:
        """By their ledger, and by the reservations."""
        ledger, held = self._row(query("demo", "seats_taken"))
        return int(ledger or 0), int(held)

    def rows(self) -> Iterator[tuple[int, State]]:
        """Every order, a few at a time."""
        with (
            translated(),
            self._connection.transaction(),
            self._connection.cursor("demo_rows", binary=True) as cursor,
        ):
            cursor.itersize = 5000
            for order_id, status, version, deadline_us in cursor.execute(self._stand.statement(query("demo", "rows"))):
                yield order_id, State(status, version, deadline_us)

    def _row(self, statement: Any, values: Any = None) -> tuple[Any, ...]:
        with translated(), self._connection.cursor(binary=True) as cursor:
            row = cursor.execute(statement, values).fetchone()
        if row is None:
            raise RuntimeError("a row that must be there is not")
        return row
