"""The next open deadlines, straight from the table: what will be closed, whether or not the stream has told it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace
from psycopg import sql

from cdcwatch.columns import deadline_instant, is_due, key_text
from cdcwatch.database import translated
from cdcwatch.queries import query
from cdcwatch.slot.facts import open_condition

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

    from cdcwatch.table import WatchedTable

MOST_OVERDUE_ROWS: Final = 10_000
"""Counting stops here."""


class PendingRow(Struct, frozen=True):
    """An open row. Instants are microseconds since 2000."""

    key: Mapping[str, str]
    deadline_us: int
    now_us: int
    """The database's clock when it was read."""
    version: int | None
    table: str = ""
    """Where several are shown."""


class Pending(Struct, frozen=True):
    """The nearest deadlines first, the overdue before all."""

    rows: tuple[PendingRow, ...]
    overdue_rows: int
    """At most `MOST_OVERDUE_ROWS`."""


def read_pending(connection: psycopg.Connection[Any], table: WatchedTable, limit_rows: int) -> Pending:
    """Two index scans that see the same rows, by the same clock; errors as of `cdcwatch.database`.

    `connection`: outside a transaction.
    """
    names = {
        "table": sql.Identifier(table.schema, table.name),
        "is_open": open_condition(table),
    }
    column = sql.Identifier(table.deadline.name)
    keys = sql.SQL(", ").join(key_text(column, sql.Identifier(column.name)) for column in table.key)
    version = sql.SQL("{}::int8").format(sql.Identifier(table.version.name)) if table.version else sql.NULL
    nearest = sql.SQL(query("look", "pending")).format(
        **names,
        column=column,
        deadline=deadline_instant(table, column),
        key=keys,
        version=version,
        limit=limit_rows,
    )
    with translated(), connection.transaction(), connection.cursor(binary=True) as cursor:
        cursor.execute(query("look", "one_snapshot"))
        rows = tuple(
            PendingRow(
                dict(zip((column.name for column in table.key), texts, strict=True)), deadline_us, now_us, row_version
            )
            for now_us, deadline_us, row_version, *texts in cursor.execute(nearest)
        )
        return Pending(rows, count_overdue(connection, table, MOST_OVERDUE_ROWS))


def count_overdue(connection: psycopg.Connection[Any], table: WatchedTable, limit_rows: int) -> int:
    """How many open rows were due when the transaction began, up to a limit; errors as of `cdcwatch.database`."""
    overdue = sql.SQL(query("look", "overdue")).format(
        table=sql.Identifier(table.schema, table.name),
        is_open=open_condition(table),
        is_due=is_due(table, sql.Identifier(table.deadline.name), sql.SQL("now()")),
        limit=limit_rows,
    )
    with translated():
        counted = connection.execute(overdue).fetchone()
    return counted[0] if counted else 0


def merged(found: Mapping[str, Pending], limit_rows: int) -> Pending:
    """Of several tables, by name, what comes first; of one it is that one."""
    if len(found) == 1:
        return next(iter(found.values()))
    rows = [replace(row, table=table) for table, one in found.items() for row in one.rows]
    rows.sort(key=lambda row: row.deadline_us)
    return Pending(tuple(rows[:limit_rows]), sum(one.overdue_rows for one in found.values()))
