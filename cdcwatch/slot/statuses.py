"""Whether the configured statuses can stand in the status column: by its type, its enum, its CHECK constraints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from msgspec import Struct
from psycopg import sql
from psycopg.rows import class_row

from cdcwatch.queries import query

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdcwatch.settings import Settings
    from cdcwatch.slot.catalog import TableFacts


class StatusFacts(Struct, frozen=True):
    """What the column says of the configured statuses."""

    labels: tuple[str, ...] | None
    """Of an enum; None for another type."""
    unfit: tuple[str, ...]
    """Statuses that the column's type doesn't keep as they are written."""
    barred: tuple[tuple[str, str], ...]
    """Status and the CHECK constraint that refuses it; of those that a close writes."""
    never_open: bool
    """The statistics know every status there is, and none of table.open."""


class _StatusColumn(Struct, frozen=True):
    labels: list[str] | None
    constraint_names: list[str]
    constraint_texts: list[str]


def written_statuses(settings: Settings) -> list[str]:
    """What closes write."""
    close = settings.close
    if close.action == "update":
        return [close.status]
    return [close.status, close.claim.processing, close.claim.failed] if close.action == "claim" else []


def read_statuses(connection: psycopg.Connection[Any], table: TableFacts, settings: Settings) -> StatusFacts | None:
    """Asks the catalog and the type's own input; None without a status column. Reads no rows."""
    watched = table.watched
    if watched.status is None:
        return None
    written, opened = written_statuses(settings), sorted(watched.open)
    with connection.cursor(row_factory=class_row(_StatusColumn)) as cursor:
        column = cursor.execute(
            query("preflight", "status_column"), {"oid": watched.oid, "status": watched.status.name}
        ).fetchone()
    if column is None:
        return None
    wanted = list(dict.fromkeys([*opened, *written]))
    if column.labels is not None:
        unfit = [status for status in wanted if status not in column.labels]
    else:
        unfit = [status for status in wanted if not _fits(connection, status, watched.status.type)]
    barred = [
        (status, name)
        for status in written
        if status not in unfit
        for name, text in zip(column.constraint_names, column.constraint_texts, strict=True)
        if not _passes(connection, status, watched.status.type, watched.status.name, text)
    ]
    labels = tuple(column.labels) if column.labels is not None else None
    never_open = not unfit and _never_seen(connection, table, opened)
    return StatusFacts(labels, tuple(unfit), tuple(barred), never_open)


def _fits(connection: psycopg.Connection[Any], status: str, type_name: str) -> bool:
    return _true(
        connection,
        sql.SQL(query("preflight", "status_fits")).format(status=sql.Literal(status), type=sql.SQL(type_name)),
    )


def _passes(connection: psycopg.Connection[Any], status: str, type_name: str, column: str, constraint: str) -> bool:
    return _true(
        connection,
        sql.SQL(query("preflight", "status_passes")).format(
            status=sql.Literal(status),
            type=sql.SQL(type_name),
            column=sql.Identifier(column),
            constraint=sql.SQL(constraint),
        ),
    )


def _true(connection: psycopg.Connection[Any], statement: sql.Composed) -> bool:
    """Whether it isn't refused and isn't false. NULL passes, as it does for a CHECK."""
    try:
        with connection.transaction():
            connection.execute("SET TRANSACTION READ ONLY")
            row = connection.execute(statement).fetchone()
    except psycopg.errors.DataError:
        return False
    except psycopg.errors.InsufficientPrivilege:  # a function of the constraint that we may not call
        return True
    return row is None or row[0] is not False


def _never_seen(connection: psycopg.Connection[Any], table: TableFacts, statuses: Sequence[str]) -> bool:
    watched = table.watched
    row = connection.execute(
        query("preflight", "statuses_seen"),
        {
            "schema": watched.schema,
            "table": watched.name,
            "status": watched.status.name if watched.status else "",
            "statuses": statuses,
        },
    ).fetchone()
    return bool(row and row[0])
