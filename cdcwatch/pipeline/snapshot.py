"""The first read of the table: every open order as a snapshot event, consistent with the stream that follows."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from psycopg import sql

from cdcwatch.columns import deadline_instant, key_text
from cdcwatch.database import MangledText, connect, translated
from cdcwatch.deadline.event import Event, Stamp
from cdcwatch.deadline.position import SnapshotVisibility
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.decode.change import Row
from cdcwatch.handoff.progress import SnapshotMark
from cdcwatch.lsn import parse_lsn
from cdcwatch.queries import query
from cdcwatch.table import canonical_key

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    import psycopg

    from cdcwatch.deadline.event import EventEncoder
    from cdcwatch.table import WatchedTable

_log = logging.getLogger(__name__)

_FETCH_ROWS: Final = 5000


class Snapshot:
    """A read of the table under one snapshot."""

    def __init__(
        self, connection: psycopg.Connection[tuple[Any, ...]], table: WatchedTable, id_lsn: int | None
    ) -> None:
        self._connection, self._table = connection, table
        row = connection.execute(query("snapshot", "visibility"), binary=True).fetchone()
        if row is None:
            raise RuntimeError("a query without FROM gives a row")
        xmin, xmax, in_progress, lsn, self._time_us = row
        self._id_lsn = parse_lsn(lsn) if id_lsn is None else id_lsn
        self.mark = SnapshotMark(parse_lsn(lsn), SnapshotVisibility(xmin, xmax, frozenset(in_progress)))

    def events(
        self, rule: DeadlineRule, encoder: EventEncoder, partitions: Collection[int] | None = None
    ) -> Iterator[Event]:
        """One `deadline.scheduled` an open order, of all or of the partitions with these OIDs."""
        stamp = Stamp.of_snapshot(self._id_lsn, self._time_us)
        integer, width = self._table.has_integer_key, len(self._table.key)
        with translated(), self._connection.cursor(name="cdcwatch_snapshot", binary=True) as cursor:
            cursor.itersize = _FETCH_ROWS
            left_out = 0
            cursor.execute(open_rows(self._table, partitions))
            for values in cursor:
                *key, deadline_us, status, version = values
                if any(isinstance(text, MangledText) for text in key):
                    left_out += 1
                    continue
                row = Row(deadline_us, status, version)
                derived = rule.inserted(row, rule.live_us(row))
                if derived is not None:
                    yield encoder.snapshot(canonical_key(key[:width], integer=integer), derived, stamp)
        if left_out:
            _log.warning("%d open orders have a key that is no UTF-8: the topic can't tell of them", left_out)


@contextmanager
def snapshot_of(dsn: str, table: WatchedTable, id_lsn: int | None = None) -> Iterator[Snapshot]:
    """A REPEATABLE READ transaction on a connection of its own. UnavailableError, PreconditionError.

    `id_lsn` stands in the ids: a position that a second try has too, so that it gives the same ids; None: its own.
    """
    with translated(), connect(dsn, application_name="cdcwatch snapshot") as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        yield Snapshot(connection, table, id_lsn)


@contextmanager
def orders_of(
    dsn: str, table: WatchedTable, encoder: EventEncoder, partitions: Collection[int]
) -> Iterator[tuple[int, Iterator[Event]]]:
    """The open orders of some partitions as events, and an LSN before which all that they show has committed."""
    with snapshot_of(dsn, table) as snapshot:
        yield snapshot.mark.lsn, snapshot.events(DeadlineRule(table), encoder, partitions)


def open_rows(table: WatchedTable, partitions: Collection[int] | None = None) -> sql.Composed:
    """The query for every open row that has a deadline, of the partitions with these OIDs alone where there are any."""
    deadline = sql.Identifier(table.deadline.name)
    nothing = sql.SQL("NULL")
    return sql.SQL(query("snapshot", "open_rows")).format(
        key_texts=sql.SQL(", ").join(key_text(column, sql.Identifier(column.name)) for column in table.key),
        column=deadline,
        deadline=deadline_instant(table, deadline),
        status=sql.SQL("{}::text").format(sql.Identifier(table.status.name)) if table.status else nothing,
        version=sql.SQL("{}::bigint").format(sql.Identifier(table.version.name)) if table.version else nothing,
        table=sql.Identifier(table.schema, table.name),
        is_open=sql.SQL("{} IN ({})").format(
            sql.Identifier(table.status.name), sql.SQL(", ").join(sql.Literal(status) for status in sorted(table.open))
        )
        if table.status
        else sql.SQL("true"),
        is_wanted=sql.SQL("true")
        if partitions is None
        else sql.SQL("tableoid = ANY ({})").format(sql.Literal(sorted(partitions))),
    )
