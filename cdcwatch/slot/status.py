"""The slot's state: where it stands, what it holds, who reads it.

https://www.postgresql.org/docs/current/view-pg-replication-slots.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from psycopg.rows import class_row

from cdcwatch.database import translated
from cdcwatch.queries import query

if TYPE_CHECKING:
    import psycopg

_PAST_THRESHOLD: Final = frozenset({"unreserved", "lost"})


class SlotStatus(Struct, frozen=True):
    """A row of pg_replication_slots with its owner. LSNs are PostgreSQL's text; None where the server doesn't tell."""

    name: str
    kind: str
    """`logical` or `physical`."""
    plugin: str | None
    database: str | None
    connected_database: str
    """Where the question was asked."""
    active: bool
    owner_pid: int | None
    owner_application: str | None
    owner_address: str | None
    confirmed_flush_lsn: str | None
    restart_lsn: str | None
    lag_bytes: int | None
    """From what is confirmed to the end of the WAL."""
    retained_bytes: int | None
    """WAL on the server's disk that is there for this slot."""
    wal_status: str | None
    """`reserved`, `extended`, `unreserved` or `lost`; None before PostgreSQL 13."""
    safe_wal_bytes: int | None
    """What may still be written until the slot is in danger; None without a limit."""
    invalidation_reason: str | None
    keep_bytes: int | None
    """max_slot_wal_keep_size; None without a limit."""
    catalog_xmin_age: int | None = None
    """Transactions since the oldest that the slot keeps the catalog's old rows for."""
    failover: bool = False
    """Synchronised to standbys; PostgreSQL 17 and later."""
    inactive_s: float | None = None
    """How long nobody has read it; None while somebody does, and before PostgreSQL 17."""
    server_lsn: str | None = None
    """The end of the WAL when it was asked."""

    @property
    def is_lost(self) -> bool:
        """Whether the slot can never be read again."""
        return self.wal_status == "lost" or self.invalidation_reason is not None

    @property
    def is_past_threshold(self) -> bool:
        """Whether WAL that the slot needs is gone, or goes at the next checkpoint."""
        return self.is_lost or self.wal_status in _PAST_THRESHOLD

    @property
    def owner(self) -> str:
        """Who reads it, for people: `pid 4711 (cdcwatch, 10.0.0.3)`."""
        details = ", ".join(part for part in (self.owner_application, self.owner_address) if part)
        return f"pid {self.owner_pid}{f' ({details})' if details else ''}" if self.owner_pid else "nobody"


def read_all(connection: psycopg.Connection[Any]) -> list[SlotStatus]:
    """Every logical slot of the server that outlives its connection, of all databases."""
    with translated(), connection.cursor(row_factory=class_row(SlotStatus)) as cursor:
        return cursor.execute(query("slot", "slot_status"), {"slot": None}).fetchall()


def read_status(connection: psycopg.Connection[Any], slot: str) -> SlotStatus | None:
    """The slot `slot`; None when there is none of that name in the whole server."""
    with translated(), connection.cursor(row_factory=class_row(SlotStatus)) as cursor:
        return cursor.execute(query("slot", "slot_status"), {"slot": slot}).fetchone()
