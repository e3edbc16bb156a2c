"""`close.action = "update"` and "delete": the close as one statement that checks everything again in the database.

No session state is kept, so that it works through a pooler in transaction mode. Row values never reach the log.
https://www.postgresql.org/docs/current/sql-select.html#SQL-FOR-UPDATE-SHARE
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any, Final

import psycopg

from cdcwatch import failpoints
from cdcwatch.close.clock import ClockSample
from cdcwatch.close.outcome import Closed, CloseReport, CurrentRow, Outcome, Unclosed, classify
from cdcwatch.close.statements import CloseStatements
from cdcwatch.close.table import Overdue, OverduePage
from cdcwatch.database import Instant, MangledText, NoAnswerError, connect, explain, named
from cdcwatch.deadline.schedule import Due
from cdcwatch.decode.note import PREFIX, CloseFailure
from cdcwatch.errors import ConnectionBrokeError, UnavailableError
from cdcwatch.instant import DAY_US, FIRST_US, NEGATIVE_INFINITY_US
from cdcwatch.queries import query
from cdcwatch.table import canonical_key, key_texts
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cdcwatch.close.clock import Clock
    from cdcwatch.table import Key, WatchedTable

_log = logging.getLogger(__name__)

PAGE_ROWS: Final = 20_000
DISORDER_US: Final = 2 * DAY_US
"""More than any zone has ever put back its clocks."""
# Loading holds the agenda's lock for a chunk, during which no order can be taken: about two milliseconds.
_CHUNK_ROWS: Final = 2_000
# The statements that one batch may cost when orders in it fail: enough to single out 1 in 20 of 500. Bounded, so that
# what was closed is reported, and what became due meanwhile gets its turn.
_BISECT_STATEMENTS: Final = 256
# And how long, once some of it was settled.
_BISECT_US: Final = 10_000_000
# Statements that fail after longer are few rather than short: a time limit, a lock that was waited for.
_SLOW_US: Final = 200_000
_SLOW_PARTS: Final = 8
# How long a closing statement may take: a batch takes milliseconds, so this is a connection that nothing comes out of.
_ANSWER_TIMEOUT_S: Final = 15.0

# Nothing is wrong with the order: another transaction was in the way.
GAVE_WAY: Final = frozenset({"40001", "40P01", "55P03"})
# A right, a table or a column that is gone; the server's disk full, its memory, its files: every order meets it, and
# nothing is learnt from giving each of them up.
_TABLES_FAULT: Final = frozenset({"42501", "42P01", "42703", "53100", "53200", "58030"})
# With a missing right's SQLSTATE, but about one row: a policy's WITH CHECK. The server's function, in any language.
_ROWS_POLICY: Final = "ExecWithCheckOptions"
_READ_ONLY: Final = "25006"
_ENDED: Final = frozenset({"FATAL", "PANIC"})
_ALSO: Final = "close.also: "
_PASSED_OVER: Final = "the UPDATE changed no row: a trigger?"
_KEPT: Final = "the DELETE removed no row: a trigger, or row-level security?"


class PostgresTable:
    """The watched table on a connection of its own. Keeps the `Table` contract."""

    def __init__(
        self,
        dsn: str,
        table: WatchedTable,
        clock: Clock,
        *,
        changes: Mapping[str, str] | None = None,
        also: str = "",
        application_name: str = "cdcwatch close",
        page_rows: int = PAGE_ROWS,
        answer_timeout_s: float = _ANSWER_TIMEOUT_S,
    ) -> None:
        """`changes` is `close.set`, `also` is `close.also`. Does not connect."""
        self._dsn = dsn
        self._table = table
        self._clock = clock
        self._also = also.strip()
        self._application_name = application_name
        self._page_rows = page_rows
        self._answer_timeout_s = answer_timeout_s
        self._has_warned = False
        self._passed_over = _KEPT if table.deletes else _PASSED_OVER
        self._statements = CloseStatements(table, changes=changes or {}, has_also=bool(self._also), page_rows=page_rows)
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    @property
    def disorder_us(self) -> int:
        """Pages of local times go by the clocks of the zone, which are put back at times."""
        return DISORDER_US if self._table.zone else 0

    def connect(self) -> None:
        """Connects; nothing when connected. UnavailableError, ConfigurationError or PreconditionError.

        Asks something, too: a pooler lets in before it has a server, and no order should be what finds that out.
        """
        if self._connection is None:
            self._connection = connect(
                self._dsn, application_name=self._application_name, answer_timeout_s=self._answer_timeout_s
            )
            try:
                self._rows(query("close", "read_clock"))
            except BaseException:
                self.disconnect()
                raise

    def disconnect(self) -> None:
        """Lets the connection go, broken or not."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def close(self, batch: Sequence[Due]) -> CloseReport:
        """Closes a batch; halves it when it fails (or eighths, when that took long), until what fails stands alone.

        What that leaves no time for is deferred: an order is never called failed for the company it was in.
        ConnectionBrokeError when the connection is lost, UnavailableError when the server takes no writes. Any other
        error is taken for that of an order: a trigger may raise every SQLSTATE, those of foreign servers too.
        """
        report = CloseReport()
        began_us = self._clock.monotonic_us()
        passed: list[Due] = []
        parts: list[Sequence[Due]] = [batch] if batch else []
        statements = 0
        while parts:
            part = parts.pop()
            begun_us = self._clock.monotonic_us()
            is_late = begun_us - began_us > _BISECT_US
            if statements >= _BISECT_STATEMENTS or (is_late and (report.closed or report.unclosed)):
                report.unclosed += [Unclosed(due, Outcome.DEFERRED) for due in part]
                continue
            statements += 1
            try:
                failpoints.reached("close.begun", len(part))
                closed, passed_over = self._close(part)
                failpoints.reached("close.committed", len(part))
            except psycopg.Error as error:
                report.error = said = _place(error) + named(self._unless_away(error))
                if len(part) > 1:
                    is_slow = self._clock.monotonic_us() - begun_us > _SLOW_US
                    smaller = _divided(part, _SLOW_PARTS if is_slow else 2)
                    # What hangs makes the others wait: they go first. Unless all is slow, when one must come to an end.
                    parts = [*smaller, *parts] if is_slow and not is_late else parts + smaller
                elif error.sqlstate in GAVE_WAY:
                    report.unclosed.append(Unclosed(part[0], Outcome.LOCKED))
                else:
                    is_rows_policy = error.diag.source_function == _ROWS_POLICY
                    is_tables_fault = error.sqlstate in _TABLES_FAULT and not is_rows_policy
                    report.unclosed.append(Unclosed(part[0], Outcome.FAILED, None, said, is_tables_fault))
            else:
                report.closed += closed
                if passed_over:
                    report.error = said = self._passed_over
                    report.unclosed += [
                        Unclosed(due, Outcome.FAILED, None, said) for due in part if due.key in passed_over
                    ]
                if len(closed) + len(passed_over) < len(part):
                    keys = passed_over.union(one.key for one in closed)
                    passed += [due for due in part if due.key not in keys]
        if passed:
            report.unclosed += self._read_again(passed)
        return report

    def tell_given_up(self, given_up: Sequence[Unclosed], attempts: int) -> None:
        """Writes a transactional logical message of each: the reader of the stream makes dead letters of them.

        A server that refuses that is only complained of: the orders are tried again, and can't wait for it.
        """
        width, oid = len(self._table.key), self._table.oid
        notes = [
            CloseFailure(
                oid, tuple(key_texts(one.due.key, width)), one.due.deadline_us, one.due.version, attempts, one.error
            ).to_json()
            for one in given_up
        ]
        try:
            self._connected().execute(query("close", "leave_notes"), {"prefix": PREFIX, "notes": notes})
        except psycopg.Error as error:
            _log.warning("no dead letter of %s: %s", counted(len(notes), "order"), named(self._unless_away(error)))

    def sample_clock(self, count: int) -> list[ClockSample]:
        """Reads the database's clock `count` times."""
        samples = []
        for _ in range(count):
            before_us = self._clock.monotonic_us()
            ((database_us,),) = self._rows(query("close", "read_clock"))
            samples.append(ClockSample(before_us, database_us, self._clock.monotonic_us()))
        return samples

    def open_deadlines(self, after_us: int | None, through_us: int) -> Iterator[list[Due]]:
        """The open orders with `after_us < deadline <= through_us` in the order of their deadlines, in chunks.

        Pages by deadline: no transaction stays open, however slowly they are taken in.
        """
        if after_us is None or (after_us < FIRST_US + DAY_US * 2 and self._table.zone):
            # No local time stands a day before the calendar begins.
            statement, after_us = self._statements.first_of_all, NEGATIVE_INFINITY_US
        else:
            statement = self._statements.first_page
        bounds = {"after": Instant(after_us), "through": Instant(through_us)}
        while True:
            rows = self._rows(statement, bounds)
            for start in range(0, len(rows), _CHUNK_ROWS):
                chunk = self._dues(rows[start : start + _CHUNK_ROWS])
                if chunk:
                    yield chunk
            if len(rows) < self._page_rows:
                return
            statement = self._statements.next_page
            bounds[self._statements.page_parameter] = Instant(rows[-1][-1])

    def _dues(self, rows: list[tuple[Any, ...]]) -> list[Due]:
        """Of rows with the key columns, deadline, version and mark."""
        if self._table.has_integer_key:
            return [Due(key, deadline_us, version) for key, deadline_us, version, _ in rows]
        return [Due(self._key(row), row[-3], row[-2]) for row in self._with_keys(rows)]

    def overdue(self, *, mark_us: int | None, since_us: int | None, grace_us: int, limit: int) -> OverduePage:
        """A page of what has been due for `grace_us`, oldest first; as of `Scan`. Closes nothing, locks nothing."""
        bounds: dict[str, object] = {"grace_us": grace_us, "limit": limit}
        statement = self._statements.overdue
        if mark_us is not None:
            statement, bounds["mark"] = self._statements.overdue_from_mark, Instant(mark_us)
        elif since_us is not None:
            statement, bounds["since"] = self._statements.overdue_since, Instant(since_us)
        rows = self._rows(statement, bounds)
        named = self._with_keys(rows)
        orders = [Overdue(Due(self._key(row), row[-3], row[-2]), row[-1]) for row in named]
        return OverduePage(orders, is_last=len(rows) < limit)

    def _run_also(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        try:
            # Without parameters and in text: the simple protocol, which takes several statements.
            connection.execute(self._also)
        except psycopg.Error as error:
            error.add_note(_ALSO)
            raise

    def _with_keys(self, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """Without those whose key is no text: no statement could name them."""
        if self._table.has_integer_key:
            return rows
        width = len(self._table.key)
        named = [row for row in rows if not any(isinstance(text, MangledText) for text in row[:width])]
        if len(named) < len(rows) and not self._has_warned:
            self._has_warned = True
            _log.warning("%d open orders have a key that is no UTF-8: they can't be closed", len(rows) - len(named))
        return named

    def _close(self, batch: Sequence[Due]) -> tuple[list[Closed], set[Key]]:
        """One statement, or one transaction with `also`; what was closed, and what was locked and yet not changed.

        Raises psycopg's errors.
        """
        connection = self._connected()
        parameters = self._statements.close_parameters(batch)
        if not self._also:
            return self._close_rows(connection, parameters)
        with connection.transaction():
            connection.execute(self._statements.make_closed, {})
            closed, passed_over = self._close_rows(connection, parameters)
            if closed:
                self._run_also(connection)
            failpoints.reached("close.uncommitted", len(closed))
        return closed, passed_over

    def _close_rows(
        self, connection: psycopg.Connection[tuple[Any, ...]], parameters: Mapping[str, object]
    ) -> tuple[list[Closed], set[Key]]:
        rows = connection.execute(self._statements.close_batch, parameters, binary=True).fetchall()
        closed = [Closed(self._key(row), *row[-3:]) for row in rows if row[-1] is not None]
        return closed, {self._key(row) for row in rows if row[-1] is None} if len(closed) < len(rows) else set()

    def _read_again(self, passed: Sequence[Due]) -> list[Unclosed]:
        rows = self._rows(self._statements.read_again, self._statements.key_parameters(due.key for due in passed))
        found = {self._key(row): CurrentRow(*row[-4:]) for row in rows}
        return [
            Unclosed(due, classify(due, row, self._table), row)
            for due, row in ((due, found.get(due.key)) for due in passed)
        ]

    def _rows(self, statement: str, parameters: Mapping[str, object] | None = None) -> list[tuple[Any, ...]]:
        try:
            return self._connected().execute(statement, parameters, binary=True).fetchall()
        except psycopg.Error as error:
            raise explain(self._unless_away(error), named(error)) from error

    def _key(self, row: Sequence[Any]) -> Key:
        if self._table.has_integer_key:
            key: int = row[0]
            return key
        return canonical_key(row[: len(self._table.key)], integer=False)

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None:
            raise UnavailableError("PostgreSQL: not connected", remedy="it connects again by itself")
        return self._connection

    def _unless_away(self, error: psycopg.Error) -> psycopg.Error:
        """The error, unless it shows that the database is away, which the connection decides: then UnavailableError.

        Not the SQLSTATE: a trigger raises 08001 when *its* server is away, and 25006 for reasons of its own.
        """
        lost = self._connection is None or self._connection.closed
        if lost or error.diag.severity_nonlocalized in _ENDED:
            why = f": {named(error)}" if error.sqlstate else f": {error}" if isinstance(error, NoAnswerError) else ""
            raise ConnectionBrokeError(
                f"PostgreSQL: the connection broke{why}", remedy="see that the server is up and reachable"
            ) from error
        if error.sqlstate == _READ_ONLY and not self._takes_writes():
            raise UnavailableError(
                "PostgreSQL: this server takes no writes", remedy="name the primary: target_session_attrs=read-write"
            ) from error
        return error

    def _takes_writes(self) -> bool:
        ((takes_writes,),) = self._rows(query("close", "takes_writes"))
        return bool(takes_writes)


def _divided(part: Sequence[Due], into: int) -> list[Sequence[Due]]:
    """Its parts, the first one last."""
    size = -(-len(part) // into)
    return [part[start : start + size] for start in range(0, len(part), size)][::-1]


def _place(error: BaseException) -> str:
    """What of the close failed, where it is not the close itself."""
    return _ALSO if _ALSO in getattr(error, "__notes__", ()) else ""
