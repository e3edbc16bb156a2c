"""Any quoted identifier is captured by both plugins and closed: wal2json's filter, publications, the close's SQL (D1)."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from psycopg import sql

from cdcwatch.close.clock import SystemClock
from cdcwatch.close.update import PostgresTable
from cdcwatch.deadline.schedule import Due
from cdcwatch.decode.change import Change
from cdcwatch.instant import parse_instant
from tests import services
from tests.streams import Streams

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services import Postgres

# What means something to some parser, more often than chance would have it.
odd = st.sampled_from(
    [
        *"""'"\\.,*%{}()[]:;$&|<>=+-/ \t\n\r?!@#^~`éßŁ日😀İı\u2028\u00a0\x01\x7fAa_0""",
        "--",
        "/*",
        "%s",
        "{}",
        "$1",
        "pg_",
        "NULL",
    ]
)
letters = st.characters(exclude_categories=["Cs"], exclude_characters="\0")
names = st.lists(odd | letters, min_size=1, max_size=12).map("".join).filter(lambda name: len(name.encode()) <= 63)
DUE_US = parse_instant("2020-01-01 00:00:00+00")
# Names that PostgreSQL keeps for itself, and system columns.
RESERVED = {"ctid", "oid", "tableoid", "xmin", "xmax", "cmin", "cmax"}


@pytest.fixture(scope="module")
def streams(postgres: Postgres) -> Iterator[Streams]:
    with services.fresh_database(postgres) as database:
        streams = Streams(database)
        yield streams
        streams.close()


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@given(schema=names, table=names, columns=st.lists(names, min_size=4, max_size=4, unique=True))
@example("public", "orders", ["id", "status", "expires_at", "version"])
@example("My.Shop", 'Or,der "X" é*', ["Expires At", "a.b", "%s", 'the "id"'])
@example("a\\", "\\", ["\\", '"', "'", "%"])
@example(" ", "  ", [" ", "  ", "\t", "\n"])
@example("*", "*.*", ["*", ".", ",", "{}"])
@example("|", "||", ["|", "||", "a|", "|||"])
@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # a table each: looking for the shortest name takes minutes
)
def test_d01_any_name_is_watched_and_closed(streams: Streams, schema: str, table: str, columns: list[str]) -> None:
    if schema.startswith("pg_") or set(columns) & RESERVED:
        return
    connection = streams.connection
    mark = uuid.uuid4().hex
    key, status, deadline, version = (sql.Identifier(column) for column in columns)
    name = sql.Identifier(schema, table)
    # A neighbour whose name begins alike, and a namesake in another schema: neither is ours.
    near = sql.Identifier(schema, "n" + mark)
    made = sql.SQL("CREATE TABLE {} ({} int PRIMARY KEY, {} text, {} timestamptz, {} int)")
    connection.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(sql.Identifier(schema)))
    try:
        for one in (name, near):
            connection.execute(made.format(one, key, status, deadline, version))
        settled = [column.replace("|", "||") for column in columns]
        watched = streams.watch(
            f"{quoted(schema)}.{quoted(table)}", status=settled[1], deadline=settled[2], version=settled[3]
        )
        for one in (near, name):
            connection.execute(sql.SQL("INSERT INTO {} VALUES (1, 'pending', '2020-01-01 00:00+00', 0)").format(one))
        changes = [message for message in watched.read() if isinstance(message, Change)]
        assert [(change.kind, change.key, change.new) for change in changes] == [("insert", 1, (DUE_US, "pending", 0))]
        closing = PostgresTable(streams.dsn, watched.table, SystemClock(), also="SELECT FROM closed")
        closing.connect()
        try:
            assert [due for chunk in closing.open_deadlines(None, 0) for due in chunk] == []
            report = closing.close([Due(1, DUE_US, 0), Due(2, DUE_US, 0)])
            assert [closed.key for closed in report.closed] == [1]
        finally:
            closing.disconnect()
        (change,) = [message for message in watched.read() if isinstance(message, Change)]
        assert change.new == (DUE_US, "expired", 1)
    finally:
        for one in (name, near):
            connection.execute(sql.SQL("DROP TABLE IF EXISTS {}").format(one))
        for (publication,) in connection.execute("SELECT pubname FROM pg_publication").fetchall():
            connection.execute(sql.SQL("DROP PUBLICATION {}").format(sql.Identifier(publication)))
