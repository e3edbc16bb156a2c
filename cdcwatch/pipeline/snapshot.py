"""Reads of the table under one snapshot, consistent with the stream that follows."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from cdcwatch.close.statements import escaped, identifier, raw
from cdcwatch.columns import deadline_instant, key_text
from cdcwatch.database import MangledText, connect, translated
from cdcwatch.deadline.event import Stamp
from cdcwatch.deadline.position import SnapshotVisibility
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.decode.change import Row
from cdcwatch.handoff.progress import SnapshotMark
from cdcwatch.headway import stage
from cdcwatch.lsn import parse_lsn
from cdcwatch.queries import query
from cdcwatch.table import canonical_key, key_texts

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from cdcwatch.deadline.event import Event, EventEncoder
    from cdcwatch.table import Key, WatchedTable

_log = logging.getLogger(__name__)

_FETCH_ROWS: Final = 5000


class Snapshot:
    """A read of the table under one snapshot."""

    def __init__(
        self, connection: psycopg.Connection[tuple[Any, ...]], table: WatchedTable, first: Snapshot | None = None
    ) -> None:
        """`first`: of another table in the same transaction: then it is one read, with one mark."""
        self._connection, self._table = connection, table
        self.mark: SnapshotMark
        self.time_us: int
        if first is not None:
            self.mark, self.time_us = first.mark, first.time_us
            return
        row = connection.execute(query("snapshot", "visibility"), binary=True).fetchone()
        if row is None:
            raise RuntimeError("a query without FROM gives a row")
        xmin, xmax, in_progress, lsn, self.time_us = row
        self.mark = SnapshotMark(parse_lsn(lsn), SnapshotVisibility(xmin, xmax, frozenset(in_progress)))

    @property
    def stamp(self) -> Stamp:
        """Of its events: no two reads that differ have one LSN."""
        return Stamp.of_snapshot(self.mark.lsn, self.time_us)

    def open_rows(self, partitions: Collection[int] | None = None) -> Iterator[tuple[Key, Row]]:
        """The orders that are told as open, with a deadline that comes, of all or of the partitions with these OIDs."""
        integer, width = self._table.has_integer_key, len(self._table.key)
        wanted = open_rows(self._table, partitions)
        with translated():
            plan = self._connection.execute(sql.SQL(query("snapshot", "estimate")).format(query=wanted)).fetchone()
        total = None if plan is None else float(plan[0][0]["Plan"]["Plan Rows"])
        with translated(), self._connection.cursor(name="cdcwatch_snapshot", binary=True) as cursor:
            cursor.itersize = _FETCH_ROWS
            left_out = 0
            cursor.execute(wanted)
            for values in _counted(cursor, self._table, total):
                *key, deadline_us, status, version = values
                if any(isinstance(text, MangledText) for text in key):
                    left_out += 1
                    continue
                yield canonical_key(key[:width], integer=integer), Row(deadline_us, status, version)
        if left_out:
            _log.warning("%d open orders have a key that is no UTF-8: the topic can't tell of them", left_out)

    def events(
        self, rule: DeadlineRule, encoder: EventEncoder, partitions: Collection[int] | None = None
    ) -> Iterator[Event]:
        """One `deadline.scheduled` an open order, of all or of the partitions with these OIDs."""
        stamp = self.stamp
        for key, row in self.open_rows(partitions):
            derived = rule.inserted(row, rule.live_us(row))
            if derived is not None:
                yield encoder.snapshot(key, derived, stamp)

    def rows_of(self, keys: Sequence[Key]) -> dict[Key, Row]:
        """The rows that these orders have, open or not. A key that the columns' types don't take has none."""
        columns = len(self._table.key)
        try:
            texts = [key_texts(key, columns) for key in keys]
            parameters = {f"key_{at}": list(column) for at, column in enumerate(zip(*texts, strict=True), 1)}
            with self._connection.transaction(), self._connection.cursor(binary=True) as cursor:
                found = cursor.execute(rows_of_keys(self._table), parameters).fetchall()
        except (psycopg.DataError, ValueError):
            if len(keys) == 1:
                return {}
            half = len(keys) // 2
            return {**self.rows_of(keys[:half]), **self.rows_of(keys[half:])}
        integer = self._table.has_integer_key
        return {canonical_key(row[:columns], integer=integer): Row(*row[columns:]) for row in found}


def _counted(rows: Iterable[tuple[Any, ...]], table: WatchedTable, total: float | None) -> Iterator[tuple[Any, ...]]:
    with stage(f"reading {table.qualified_name}", unit="rows", total=total) as reading:
        for row in rows:
            reading.done += 1
            yield row


@contextmanager
def snapshot_of(dsn: str, table: WatchedTable) -> Iterator[Snapshot]:
    """A REPEATABLE READ transaction on a connection of its own. UnavailableError, PreconditionError."""
    with snapshots_of(dsn, [table]) as (snapshot,):
        yield snapshot


@contextmanager
def snapshots_of(dsn: str, tables: Sequence[WatchedTable]) -> Iterator[list[Snapshot]]:
    """The same for several tables: what they say of one moment."""
    with translated(), connect(dsn, application_name="cdcwatch snapshot") as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        connection.execute(query("snapshot", "patient"))
        first = Snapshot(connection, tables[0])
        _outlive_a_crash(dsn)
        yield [first, *(Snapshot(connection, table, first) for table in tables[1:])]


def _outlive_a_crash(dsn: str) -> None:
    """Flushes the WAL of all that a snapshot shows.

    A crash could undo it otherwise (a commit that didn't wait), and give its transaction ids to others, of which the
    stream would then pass over what is taken for shown.
    """
    with connect(dsn, application_name="cdcwatch snapshot") as connection:
        connection.execute(query("snapshot", "flush"))


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
    return sql.SQL(query("snapshot", "open_rows")).format(
        **_columns(table),
        column=deadline,
        is_open=sql.SQL("{} IN ({})").format(
            sql.Identifier(table.status.name), sql.SQL(", ").join(sql.Literal(status) for status in sorted(table.told))
        )
        if table.status
        else sql.SQL("true"),
        is_wanted=sql.SQL("true")
        if partitions is None
        else sql.SQL("tableoid = ANY ({})").format(sql.Literal(sorted(partitions))),
    )


def rows_of_keys(table: WatchedTable) -> str:
    """The query for the rows of given keys, with the parameters `key_1` …: an array of texts for each key column."""
    wanted = [sql.SQL(f"_wanted_{at}") for at in range(1, len(table.key) + 1)]
    composed = sql.SQL(query("snapshot", "rows_of_keys")).format(
        **_columns(table, identifier),
        wanted=sql.SQL(", ").join(wanted),
        key_arrays=sql.SQL(", ").join(
            sql.SQL("{}::text[]::{}[]").format(sql.SQL(f"%(key_{at})s"), raw(escaped(column.type)))
            for at, column in enumerate(table.key, 1)
        ),
        same_key=sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(identifier(column.name), name)
            for column, name in zip(table.key, wanted, strict=True)
        ),
    )
    return composed.as_string()


def _columns(table: WatchedTable, name: Callable[[str], sql.Identifier] = sql.Identifier) -> dict[str, sql.Composable]:
    """What every read gives of a row, and of which table."""
    nothing = sql.SQL("NULL")
    return {
        "key_texts": sql.SQL(", ").join(key_text(column, name(column.name)) for column in table.key),
        "deadline": deadline_instant(table, name(table.deadline.name)),
        "status": sql.SQL("{}::text").format(name(table.status.name)) if table.status else nothing,
        "version": sql.SQL("{}::bigint").format(name(table.version.name)) if table.version else nothing,
        "table": sql.SQL("{}.{}").format(name(table.schema), name(table.name)),
    }
