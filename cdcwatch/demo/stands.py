"""The shop's stands: a table of things that expire, and what expiring means there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from psycopg import sql

if TYPE_CHECKING:
    from typing import LiteralString


class Stand(NamedTuple):
    """One of them."""

    table: str
    deadline: str
    """The column."""
    open: str
    """The status in which the deadline is live."""
    closed: str
    """The status that a close writes."""
    also: str = ""
    """As of `close.also`."""

    @property
    def topic(self) -> str:
        """Of its events."""
        return f"{self.table}.deadlines"

    def statement(self, block: LiteralString) -> sql.Composed:
        """A block of sql/demo.sql, for this stand."""
        return sql.SQL(block).format(
            table=sql.Identifier(self.table),
            deadline=sql.Identifier(self.deadline),
            open=sql.Literal(self.open),
            closed=sql.Literal(self.closed),
        )


ORDERS: Final = Stand("orders", "expires_at", "pending", "expired")
RESERVATIONS: Final = Stand(
    "reservations", "reserved_until", "held", "released", "INSERT INTO seats SELECT id, 1 FROM closed"
)
COUPONS: Final = Stand("coupons", "valid_until", "issued", "lapsed")
ONE: Final = (ORDERS,)
SEVERAL: Final = (ORDERS, RESERVATIONS, COUPONS)
