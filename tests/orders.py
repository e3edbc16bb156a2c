"""Watched tables on a real PostgreSQL, described without the catalog."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from psycopg import sql
from psycopg.conninfo import make_conninfo

from cdcwatch.close.clock import SystemClock
from cdcwatch.close.statements import identifier
from cdcwatch.close.update import PostgresTable
from cdcwatch.queries import script
from cdcwatch.table import ClaimStatuses, Column, WatchedTable

if TYPE_CHECKING:
    import psycopg

    from tests.services import Database

KEY = (Column("id", "bigint"),)
STATUS = Column("status", "text")
VERSION = Column("version", "integer")


class Orders:
    """A table of orders: made, described, and reachable as a `Table`."""

    def __init__(
        self,
        database: Database,
        *,
        name: str = "orders",
        key: tuple[Column, ...] = KEY,
        status: Column | None = STATUS,
        version: Column | None = VERSION,
        deadline: str = "expires_at",
        deadline_type: str = "timestamp with time zone",
        zone: str = "",
        open: tuple[str, ...] = ("pending",),  # noqa: A002
        closed_status: str = "expired",
        claim: ClaimStatuses | None = None,
        deletes: bool = False,
        extra: str = "",
    ) -> None:
        self.database = database
        self.connection = database.connect()
        self.watched = WatchedTable(
            schema="public",
            name=name,
            oid=0,
            key=key,
            deadline=Column(deadline, deadline_type),
            status=status,
            version=version,
            open=frozenset(open) if status else frozenset(),
            closed_status=closed_status,
            zone=zone,
            claim=claim,
            deletes=deletes,
        )
        columns = [sql.SQL("{} {}").format(sql.Identifier(c.name), sql.SQL(c.type)) for c in key]
        columns.append(sql.SQL("{} {}").format(sql.Identifier(deadline), sql.SQL(deadline_type)))
        columns += [
            sql.SQL("{} {}").format(sql.Identifier(c.name), sql.SQL(c.type)) for c in (status, version) if c is not None
        ]
        columns.append(sql.SQL("closed_at timestamptz"))
        if extra:
            columns.append(sql.SQL(extra))
        self.connection.execute(
            sql.SQL("CREATE TABLE {} ({}, PRIMARY KEY ({}))").format(
                sql.Identifier(name),
                sql.SQL(", ").join(columns),
                sql.SQL(", ").join(sql.Identifier(c.name) for c in key),
            )
        )

    def insert(self, *keys: Any, due_in_s: float | None = -1, status: str = "pending", version: int = 0) -> None:
        """Orders due `due_in_s` from now by the database's clock; a key of several columns is a tuple."""
        table = self.watched
        for key in keys:
            values: dict[str, Any] = dict(
                zip((c.name for c in table.key), key if isinstance(key, tuple) else (key,), strict=True)
            )
            if table.status:
                values[table.status.name] = status
            if table.version:
                values[table.version.name] = version
            self.connection.execute(
                sql.SQL("INSERT INTO {} ({}, {}) VALUES ({}, clock_timestamp() + %s * interval '1 s')").format(
                    identifier(table.name),
                    sql.SQL(", ").join(map(identifier, values)),
                    identifier(table.deadline.name),
                    sql.SQL(", ").join([sql.Placeholder()] * len(values)),
                ),
                [*values.values(), due_in_s],
            )

    def statuses(self) -> list[str]:
        """In the order of the key."""
        query = sql.SQL("SELECT status::text FROM {} ORDER BY {}").format(
            sql.Identifier(self.watched.name),
            sql.SQL(", ").join(sql.Identifier(c.name) for c in self.watched.key),
        )
        return [status for (status,) in self.connection.execute(query)]

    def make_claims(self) -> None:
        """The table of claims."""
        make_claims(self.connection)

    def open_table(self, **options: Any) -> PostgresTable:
        """A connected PostgresTable; the caller disconnects it. A statement that would wait for ever is cancelled."""
        dsn = make_conninfo(self.database.dsn, options="-c statement_timeout=15s")
        table = PostgresTable(dsn, self.watched, SystemClock(), **options)
        table.connect()
        return table


def make_claims(connection: psycopg.Connection[Any]) -> None:
    """`cdcwatch.claims`, as the script makes it."""
    schema = re.search(r"^CREATE TABLE IF NOT EXISTS cdcwatch.claims.*?;", script("install"), re.DOTALL | re.MULTILINE)
    assert schema is not None
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS cdcwatch; {schema[0]}")  # type: ignore[call-overload]
