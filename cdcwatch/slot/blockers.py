"""Running transactions that a slot in the making waits for, and that hold back what vacuum may remove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct
from psycopg.rows import class_row

from cdcwatch.database import translated
from cdcwatch.queries import query

if TYPE_CHECKING:
    import psycopg


class Blocker(Struct, frozen=True):
    """A transaction that has written."""

    pid: int | None
    """None for a prepared transaction."""
    age_s: float | None
    """None where this role may not see it."""
    application: str
    role_name: str
    database: str

    @property
    def who(self) -> str:
        """For people: `pid 4711, migrate, role app, database shop`."""
        process = f"pid {self.pid}" if self.pid is not None else "no process"
        application = self.application or "no application name"
        return f"{process}, {application}, role {self.role_name}, database {self.database}"


def read_blockers(connection: psycopg.Connection[Any], creator_pid: int = 0) -> tuple[Blocker, ...]:
    """Whom the backend `creator_pid` waits for, or would; the oldest first, ten at most."""
    with translated(), connection.cursor(row_factory=class_row(Blocker)) as cursor:
        return tuple(cursor.execute(query("slot", "blockers"), {"creator": creator_pid}))
