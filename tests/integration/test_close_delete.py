"""`close.action = "delete"` on PostgreSQL: what refuses it, what goes with it, and how the stream tells it from other deletes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import orjson
import pytest
from msgspec.structs import replace
from psycopg.conninfo import make_conninfo

from cdcwatch.close.clock import SystemClock
from cdcwatch.close.outcome import CloseReport, Outcome
from cdcwatch.close.update import PostgresTable
from cdcwatch.deadline.schedule import Due
from cdcwatch.decode.change import Change
from cdcwatch.decode.note import Closing
from cdcwatch.settings import CloseSettings
from tests.cases.test_g03_encodings import ENCODINGS, encoded
from tests.integration.test_both_decoders import KEYS, PAST, _run, _schema, streams
from tests.orders import Orders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cdcwatch.table import WatchedTable
    from tests.services import Database, Postgres
    from tests.streams import Streams, Watched

__all__ = ["_schema", "streams"]
DELETE = CloseSettings(action="delete")
KEPT = "the DELETE removed no row: a trigger, or row-level security?"


def close_all(dsn: str, table: WatchedTable, **options: Any) -> CloseReport:
    """All that is open and due in the table is closed in one batch."""
    closing = PostgresTable(dsn, table, SystemClock(), **options)
    closing.connect()
    try:
        return closing.close([one for chunk in closing.open_deadlines(None, 10**15) for one in chunk])
    finally:
        closing.disconnect()


def told(watched: Watched) -> list[tuple[str, str, str | None]]:
    """What subscribers hear of what both plugins have read alike: type, key, and the deadline there was."""
    events = [orjson.loads(event.value) for event in watched.events(watched.read())]
    return [
        (event["type"].removeprefix("deadline."), event["subject"], event["data"]["previous_deadline"])
        for event in events
    ]


# ---- The stream.


@pytest.mark.parametrize(
    ("kind", "values", "texts"), KEYS, ids=[f"{place}-{kind}" for place, (kind, *_) in enumerate(KEYS)]
)
def test_keys_of_every_type_are_told_as_expired(
    streams: Streams,
    kind: str,
    values: list[str],
    texts: list[str] | None,
) -> None:
    _run(streams, [f"CREATE TABLE orders (id {kind} PRIMARY KEY, status text, expires_at timestamptz, version int)"])
    watched = streams.watch("case_.orders", close=DELETE)
    a, b, *_ = values
    _run(streams, [f"INSERT INTO orders VALUES ({a}, 'pending', '{PAST}', 0), ({b}, 'pending', '{PAST}', 0)"])
    watched.read()
    report = close_all(streams.dsn, watched.table)
    keys = {str(closed.key) for closed in report.closed}
    assert len(keys) == 2, report
    messages = watched.read()
    (note,) = [message for message in messages if isinstance(message, Closing)]
    assert note.keys == {message.key for message in messages if isinstance(message, Change)}
    assert {str(key) for key in note.keys} == keys == set((texts or values)[:2])
    events = [orjson.loads(event.value)["type"] for event in watched.events(messages)]
    assert events == ["deadline.expired"] * 2


ODD_SETTINGS = "-c IntervalStyle=iso_8601 -c extra_float_digits=0 -c DateStyle=German -c bytea_output=escape -c TimeZone=Asia/Kolkata"


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("interval", ["1 day 02:00:00", "-3 mons"]),
        ("real", ["3.0000001e+10", "0.1"]),
        ("double precision", ["0.30000000000000004", "1e+300"]),
        ("tstzrange", ['["2026-03-08 12:00:00+00","2026-03-09 12:00:00+00")', "empty"]),
    ],
)
def test_keys_are_told_alike_whatever_the_session_has_set(streams: Streams, kind: str, values: list[str]) -> None:
    _run(streams, [f"CREATE TABLE orders (id {kind} PRIMARY KEY, status text, expires_at timestamptz, version int)"])
    watched = streams.watch("case_.orders", close=DELETE)
    _run(streams, [f"INSERT INTO orders VALUES ('{value}', 'pending', '{PAST}', 0)" for value in values])
    watched.read()
    report = close_all(make_conninfo(streams.dsn, options=ODD_SETTINGS), watched.table)
    assert {closed.key for closed in report.closed} == set(values), report
    assert {(kind, key) for kind, key, _ in told(watched)} == {("expired", value) for value in values}


def test_a_key_of_several_columns(streams: Streams) -> None:
    _run(
        streams,
        [
            "CREATE TABLE orders (amount numeric, id uuid, region char(5), note text, expires_at timestamptz,"
            " at timestamptz, raw bytea, PRIMARY KEY (id, region, note, amount, at, raw))"
        ],
    )
    watched = streams.watch("case_.orders", close=DELETE, status="", version="")
    notes = ["''", "'a\",\"b'", "E'\\u2028\\x01\\n'", "'é😀'"]
    one = "1.10, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 'eu', {note}, '2020-01-01', '2026-03-08 08:00-04', 'a'"
    _run(streams, [f"INSERT INTO orders VALUES ({one.format(note=note)})" for note in notes])
    watched.read()
    assert len(close_all(streams.dsn, watched.table).closed) == 4
    assert [kind for kind, *_ in told(watched)] == ["expired"] * 4


@pytest.mark.parametrize("identity", ["default", "full"])
def test_of_one_transaction_only_what_was_due_and_locked_has_expired(streams: Streams, identity: str) -> None:
    """`also` and triggers delete other rows of the same table, and of the application's own deletes none is a close."""
    _run(
        streams,
        [
            "CREATE TABLE orders (id int PRIMARY KEY, part_of int, status text, expires_at timestamptz, version int)",
            f"ALTER TABLE orders REPLICA IDENTITY {identity}",
            "CREATE FUNCTION parts() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " DELETE FROM case_.orders WHERE part_of = old.id; RETURN old; END $$",
            "CREATE TRIGGER parts BEFORE DELETE ON orders FOR EACH ROW EXECUTE FUNCTION parts()",
        ],
    )
    watched = streams.watch("case_.orders", close=DELETE)
    _run(
        streams,
        [
            f"INSERT INTO orders VALUES (1, NULL, 'pending', '{PAST}', 0), (2, 1, 'pending', '2999-01-01 00:00+00', 0),"
            f" (3, NULL, 'pending', '2999-01-01 00:00+00', 0), (4, NULL, 'pending', '{PAST}', 0), (5, NULL, 'paid', '{PAST}', 0)",
        ],
    )
    watched.read()
    also = "DELETE FROM case_.orders WHERE id = 3; INSERT INTO case_.orders SELECT id, 1, 'pending', '2999-01-01 00:00+00' FROM closed WHERE id = 4"
    assert len(close_all(streams.dsn, watched.table, also=also).closed) == 2
    _run(streams, ["DELETE FROM orders WHERE id = 4", "DELETE FROM orders WHERE id = 5"])
    was, later = ("2020-01-01T00:00:00.000000Z", "2999-01-01T00:00:00.000000Z") if identity == "full" else (None, None)
    events = told(watched)
    assert events[0] == ("cancelled", "2", later), "the trigger's comes before the row it was raised for"
    assert sorted(events[1:3]) == [("expired", "1", was), ("expired", "4", was)]
    # What comes back in the same transaction is a new order, and so is what became of it.
    dead = [] if identity == "full" else [("cancelled", "5", None)]
    assert events[3:] == [("cancelled", "3", later), ("scheduled", "4", None), ("cancelled", "4", later), *dead]


def test_orders_in_partitions(streams: Streams) -> None:
    _run(
        streams,
        [
            "CREATE TABLE orders (id int PRIMARY KEY, expires_at timestamptz) PARTITION BY RANGE (id)",
            "CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (10)",
            "CREATE TABLE high PARTITION OF orders FOR VALUES FROM (10) TO (20)",
        ],
    )
    watched = streams.watch("case_.orders", close=DELETE, status="", version="")
    _run(streams, [f"INSERT INTO orders SELECT n, '{PAST}' FROM generate_series(0, 19) n"])
    assert len(close_all(streams.dsn, watched.table).closed) == 20
    events = told(watched)
    assert sorted(int(key) for kind, key, _ in events if kind == "expired") == list(range(20))
    assert watched.in_table() == {}


@pytest.mark.parametrize(("encoding", "word"), ENCODINGS)
def test_keys_in_another_encoding(postgres: Postgres, encoding: str, word: str) -> None:
    with encoded(postgres, encoding) as streams:
        watched = streams.watch("orders", close=DELETE)
        streams.connection.execute("INSERT INTO orders VALUES (%s, 'pending', '2020-01-01', 0)", [word])
        watched.read()
        assert len(close_all(streams.dsn, watched.table).closed) == 1
        assert told(watched) == [("expired", word, None)]


# ---- The statement.


class Made(NamedTuple):
    orders: Orders
    table: PostgresTable
    """A connection that closes."""
    due: Callable[[], list[Due]]
    """What is open."""


@pytest.fixture
def made(database: Database) -> Iterator[Callable[..., Made]]:
    """Makes tables of orders that closes delete."""
    opened = []

    def make(*, table: dict[str, Any] | None = None, **options: Any) -> Made:
        orders = Orders(database, deletes=True, **options)
        closing = orders.open_table(**(table or {}))
        opened.append((orders, closing))

        def due() -> list[Due]:
            return [one for chunk in closing.open_deadlines(None, 10**15) for one in chunk]

        return Made(orders, closing, due)

    yield make
    for orders, closing in opened:
        closing.disconnect()
        orders.connection.close()


def left(orders: Orders) -> list[Any]:
    return [key for (key,) in orders.connection.execute("SELECT id FROM orders ORDER BY id")]


def outcomes(report: CloseReport) -> dict[Any, Outcome]:
    return {one.due.key: one.outcome for one in report.unclosed}


def test_without_status_and_version(made: Callable[..., Made]) -> None:
    orders, table, due = made(status=None, version=None)
    orders.insert(1, 2, 3)
    orders.insert(4, due_in_s=3600)
    orders.insert(5, due_in_s=None)
    batch = due()
    assert [one.key for one in batch] == [1, 2, 3, 4]
    orders.connection.execute("UPDATE orders SET expires_at = expires_at + interval '1 h' WHERE id = 2")
    orders.connection.execute("DELETE FROM orders WHERE id = 3")
    report = table.close(batch)
    assert [one.key for one in report.closed] == [1]
    assert outcomes(report) == {2: Outcome.MOVED, 3: Outcome.GONE, 4: Outcome.NOT_DUE}
    assert left(orders) == [2, 4, 5]


@pytest.mark.parametrize("when", ["IMMEDIATE", "DEFERRED"])
def test_what_a_foreign_key_refuses_stands_alone(made: Callable[..., Made], when: str) -> None:
    orders, table, due = made()
    orders.insert(*range(20))
    orders.connection.execute(
        "CREATE TABLE payments (order_id bigint, FOREIGN KEY (order_id) REFERENCES orders DEFERRABLE INITIALLY"
        f" {when}); INSERT INTO payments VALUES (7), (13)"  # type: ignore[arg-type]
    )
    report = table.close(due())
    assert outcomes(report) == {7: Outcome.FAILED, 13: Outcome.FAILED}
    assert {one.error for one in report.unclosed} == {
        "SQLSTATE 23503 (ForeignKeyViolation, constraint payments_order_id_fkey)"
    }
    assert len(report.closed) == 18
    assert left(orders) == [7, 13]


def test_what_hangs_on_the_order_goes_with_it(made: Callable[..., Made]) -> None:
    orders, table, due = made()
    orders.insert(1, 2)
    orders.insert(3, due_in_s=3600)
    orders.connection.execute(
        "CREATE TABLE lines (order_id bigint REFERENCES orders ON DELETE CASCADE);"
        "CREATE TABLE notes (order_id bigint REFERENCES orders ON DELETE SET NULL);"
        "INSERT INTO lines VALUES (1), (1), (2), (3); INSERT INTO notes VALUES (1)"
    )
    assert len(table.close([one for one in due() if one.key != 3]).closed) == 2
    assert orders.connection.execute("SELECT array_agg(order_id) FROM lines").fetchone() == ([3],)
    assert orders.connection.execute("SELECT order_id FROM notes").fetchone() == (None,)


def test_a_row_that_somebody_is_about_to_refer_to_is_passed_by(made: Callable[..., Made], database: Database) -> None:
    orders, table, due = made()
    orders.insert(1, 2)
    orders.connection.execute("CREATE TABLE payments (order_id bigint REFERENCES orders)")
    batch = due()
    with database.connect(autocommit=False) as payer:
        payer.execute("INSERT INTO payments VALUES (1)")
        report = table.close(batch)
        assert [one.key for one in report.closed] == [2]
        assert outcomes(report) == {1: Outcome.LOCKED}


def test_a_row_that_a_trigger_keeps_has_failed(made: Callable[..., Made]) -> None:
    orders, table, due = made()
    orders.insert(1, 2, 3)
    orders.connection.execute(
        "CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;"
        "CREATE TRIGGER keep BEFORE DELETE ON orders FOR EACH ROW WHEN (old.id = 2) EXECUTE FUNCTION keep()"
    )
    report = table.close(due())
    assert [one.key for one in report.closed] == [1, 3]
    assert [(one.due.key, one.outcome, one.error) for one in report.unclosed] == [(2, Outcome.FAILED, KEPT)]
    assert report.error == KEPT


def test_row_level_security(made: Callable[..., Made], database: Database, role: str) -> None:
    """What policies hide or keep is told order by order: gone, held, or kept."""
    orders, _, due = made()
    orders.insert(1, 2, 3, 4)
    batch = due()
    orders.connection.execute(
        f"GRANT SELECT, DELETE, UPDATE (id) ON orders TO {role}; ALTER TABLE orders ENABLE ROW LEVEL SECURITY;"
        "CREATE POLICY seen ON orders FOR SELECT USING (id <> 2);"
        "CREATE POLICY locked ON orders FOR UPDATE USING (id <> 3);"
        "CREATE POLICY deleted ON orders FOR DELETE USING (id <> 4)"  # type: ignore[arg-type]
    )
    restricted = PostgresTable(make_conninfo(database.dsn, user=role), orders.watched, SystemClock())
    restricted.connect()
    try:
        report = restricted.close(batch)
    finally:
        restricted.disconnect()
    assert [one.key for one in report.closed] == [1]
    assert outcomes(report) == {2: Outcome.GONE, 3: Outcome.LOCKED, 4: Outcome.FAILED}
    assert report.error == KEPT
    assert left(orders) == [2, 3, 4]


def test_the_rows_are_found_by_the_key(made: Callable[..., Made]) -> None:
    orders, table, _ = made()
    orders.connection.execute(
        "INSERT INTO orders (id, status, expires_at, version)"
        " SELECT id, 'pending', clock_timestamp() - interval '1 s', 0 FROM generate_series(1, 50000) AS id; ANALYZE orders"
    )
    parameters = table._statements.close_parameters([Due(key, 0, 0) for key in range(100)])
    assert table._connection is not None
    plan = table._connection.execute("EXPLAIN " + table._statements.close_batch, parameters).fetchall()
    text = "\n".join(line for (line,) in plan)
    assert text.count("orders_pkey") == 2
    assert "Seq Scan" not in text


def test_nothing_is_noted_where_nothing_is_due(streams: Streams) -> None:
    _run(streams, ["CREATE TABLE orders (id int PRIMARY KEY, status text, expires_at timestamptz, version int)"])
    watched = streams.watch("case_.orders", close=DELETE)
    _run(streams, ["INSERT INTO orders VALUES (1, 'pending', '2999-01-01 00:00+00', 0), (2, 'paid', '2020-01-01', 0)"])
    watched.read()
    assert close_all(streams.dsn, replace(watched.table, open=frozenset({"pending"}))).closed == []
    assert watched.read() == []
