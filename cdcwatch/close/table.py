"""The seam between closing and the database: what the workers and the window ask of a table.

`PostgresTable` is the real one; the simulation's fake keeps the same contract, and one test suite runs on both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cdcwatch.close.clock import ClockSample
    from cdcwatch.close.outcome import CloseReport, Unclosed
    from cdcwatch.deadline.schedule import Due


class Table(Protocol):
    """One connection to the watched table; used by one thread at a time.

    Every method raises UnavailableError when the database is away (then `disconnect`, and `connect` later), and
    another CdcwatchError when no retry is likely to help.
    """

    @property
    def disorder_us(self) -> int:
        """How far `open_deadlines` may be from the order of the deadlines."""

    def connect(self) -> None:
        """Connects; nothing when connected."""

    def disconnect(self) -> None:
        """Lets the connection go, broken or not. Never raises."""

    def close(self, batch: Sequence[Due]) -> CloseReport:
        """Closes what of the batch is open, due by the database's clock and unchanged; reports on every order.

        An error leaves it unknown whether the batch was closed; to close it again is safe. ConnectionBrokeError: the
        connection worked before this; one of the batch may be what breaks it.
        """

    def tell_given_up(self, given_up: Sequence[Unclosed], attempts: int) -> None:
        """Leaves a dead letter of each order, by way of the stream."""

    def sample_clock(self, count: int) -> list[ClockSample]:
        """Reads the database's clock `count` times."""

    def open_deadlines(self, after_us: int | None, through_us: int) -> Iterator[list[Due]]:
        """The open orders with `after_us < deadline <= through_us` in the order of their deadlines, in chunks.

        None: from the beginning, `-infinity` included. Orders of one deadline may stand in two chunks: whoever begins
        again after a failure begins just before the last deadline seen.
        """


class Overdue(NamedTuple):
    """An open order that is overdue in the table."""

    due: Due
    mark_us: int
    """Its place in the order of the pages: the deadline, where that has a time zone."""


class OverduePage(NamedTuple):
    """What one look found."""

    orders: list[Overdue]
    is_last: bool
    """There is no more."""


class Scan(Protocol):
    """One connection that looks for overdue orders: the table's own server, or a copy of it. Errors as of `Table`."""

    def connect(self) -> None:
        """Connects; nothing when connected."""

    def disconnect(self) -> None:
        """Lets the connection go, broken or not. Never raises."""

    def overdue(self, *, mark_us: int | None, since_us: int | None, grace_us: int, limit: int) -> OverduePage:
        """At most `limit` open orders that have been due for `grace_us` by that server's clock, oldest first.

        `mark_us`: of the last order of the page before, from which it begins, that order and others of its mark
        included. `since_us`: only deadlines after it; of several pages for the first. At most one of the two is given.
        """
