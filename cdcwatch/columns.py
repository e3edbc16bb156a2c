"""The watched columns in SQL: a key's canonical text and a deadline's instant, the same in every statement.

https://www.psycopg.org/psycopg3/docs/api/sql.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from psycopg import sql

from cdcwatch.queries import expression

if TYPE_CHECKING:
    from typing import LiteralString

    from cdcwatch.table import Column, WatchedTable

_KEY_FORMS: Final[dict[str, LiteralString]] = {
    "date": "date_key",
    "timestamp without time zone": "date_key",
    "timestamp with time zone": "timestamptz_key",
    "bytea": "bytea_key",
    "boolean": "boolean_key",
}
_PLAIN: Final = frozenset(
    {
        *("smallint", "integer", "bigint", "numeric", "text", "character varying", "character", "name", "citext"),
        *("uuid", "inet", "cidr", "macaddr"),
    }
)
"""What no setting of a session changes the text of."""
_SLACK_DAYS: Final = 1
_NOW: Final = sql.SQL("statement_timestamp()")


def key_text(column: Column, place: sql.Composable) -> sql.Composable:
    """The text of a key column at `place`, as both output plugins send it: `cdcwatch.table.canonical_key` takes it."""
    form = _KEY_FORMS.get(column.kind, "plain_key" if column.kind in _PLAIN else "pinned_key")
    return sql.SQL(expression("columns", form)).format(column=place)


def deadline_instant(table: WatchedTable, place: sql.Composable) -> sql.Composable:
    """The deadline at `place` as a timestamptz."""
    return _local("local_deadline", table, column=place) if table.zone else place


def is_due(table: WatchedTable, place: sql.Composable, now: sql.Composable = _NOW) -> sql.Composable:
    """Whether the deadline at `place` has come, as a condition that an index of the column serves.

    `now` must not change within the statement, as clock_timestamp() does.
    """
    if not table.zone:
        return sql.SQL("{} <= {}").format(place, now)
    return sql.SQL("({} <= {} AND {} <= {})").format(place, last_local(table, now), deadline_instant(table, place), now)


def first_local(table: WatchedTable, instant: sql.Composable) -> sql.Composable:
    """Of a deadline without time zone: what no deadline at or after `instant` is before."""
    return _local("local_bound", table, instant=instant, days=sql.SQL(f"-{_SLACK_DAYS}"))


def last_local(table: WatchedTable, instant: sql.Composable) -> sql.Composable:
    """Of a deadline without time zone: what no deadline at or before `instant` is after."""
    return _local("local_bound", table, instant=instant, days=sql.SQL(f"{_SLACK_DAYS}"))


def page_mark(table: WatchedTable, place: sql.Composable) -> sql.Composable:
    """The deadline column at `place` as a timestamptz that `after_page` takes back."""
    return sql.SQL(expression("columns", "local_page")).format(column=place) if table.zone else place


def after_page(table: WatchedTable, mark: sql.Composable) -> sql.Composable:
    """What `page_mark` has marked, of the column's own type."""
    return _local("after_page", table, instant=mark) if table.zone else mark


def _local(form: LiteralString, table: WatchedTable, **parts: sql.Composable) -> sql.Composable:
    kind = sql.SQL("date" if table.deadline.kind == "date" else "timestamp")
    return sql.SQL(expression("columns", form)).format(zone=sql.Literal(table.zone), type=kind, **parts)
