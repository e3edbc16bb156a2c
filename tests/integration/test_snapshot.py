"""A read of the table and the stream that follows it call the same order the same, and leave none out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
import psycopg
import pytest
from msgspec.structs import replace

from cdcwatch.deadline.derivation import Derivation
from cdcwatch.deadline.event import EventEncoder
from cdcwatch.deadline.position import Position
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.decode.wal2json import Wal2JsonDecoder
from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.lsn import format_lsn, parse_lsn
from cdcwatch.pipeline.snapshot import snapshot_of
from cdcwatch.table import Column, WatchedTable
from tests.fakes.table import WATCHED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdcwatch.deadline.event import Event
    from cdcwatch.handoff.progress import SnapshotMark
    from tests.services import Database

TYPES = ["uuid", "numeric", "character(5)", "double precision", "date", "boolean", "smallint", "text", "money"]
VALUES = ["0C7E1F0E-6F0C-4A6B-9A53-8F3C2B1D4E5F", "1.10", "ab", "0.1", "2026-11-30", "true", "-3", 'a"b\\', "12.5"]


@pytest.fixture
def connection(database: Database) -> Iterator[psycopg.Connection[Any]]:
    with database.connect(options="-c DateStyle=ISO -c TimeZone=UTC") as connection:
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'wal2json')", [f"slot_{database.name}"])
        yield connection


def _watched(*key: Column, status: str) -> WatchedTable:
    return WatchedTable(
        schema="public",
        name="holds",
        oid=0,
        key=key,
        deadline=Column("expires_at", "timestamp with time zone"),
        status=Column("status", status),
        version=Column("version", "bigint"),
        open=frozenset({"pending", "on hold"}),
        closed_status="expired",
    )


def _make(connection: psycopg.Connection[Any], table: WatchedTable) -> None:
    columns = [*table.key, table.deadline, table.status, table.version]
    definitions = ", ".join(f"{column.name} {column.type}" for column in columns if column is not None)
    keys = ", ".join(column.name for column in table.key)
    connection.execute(f"CREATE TABLE holds ({definitions}, PRIMARY KEY ({keys}))".encode())


def _insert(connection: psycopg.Connection[Any], *values: object) -> None:
    connection.execute(f"INSERT INTO holds VALUES ({', '.join(['%s'] * len(values))})".encode(), values, prepare=False)


def _encoder(table: WatchedTable) -> EventEncoder:
    return EventEncoder(table, system_identifier="7", database="shop")


def _snapshot(database: Database, table: WatchedTable) -> tuple[list[Event], SnapshotMark]:
    with snapshot_of(database.dsn, table) as snapshot:
        return list(snapshot.events(DeadlineRule(table), _encoder(table))), snapshot.mark


def _streamed(
    connection: psycopg.Connection[Any], table: WatchedTable, mark: SnapshotMark | None = None
) -> list[Event]:
    decoder, derivation = Wal2JsonDecoder(table), Derivation(DeadlineRule(table), _encoder(table))
    derivation.restart(Position(), mark.visibility if mark else None)
    options = [text for pair in decoder.options().items() for text in pair]
    lines = connection.execute(
        "SELECT data FROM pg_logical_slot_get_changes(%s, NULL, NULL, VARIADIC %s)",
        [f"slot_{connection.info.dbname}", options],
    )
    for (line,) in lines:
        message = decoder.decode(line.encode())
        if message is not None:
            derivation.feed(message)
    return derivation.drain().events


def _comparable(event: Event) -> tuple[bytes | None, dict[str, Any]]:
    """Without what tells a snapshot event from the stream's."""
    value = orjson.loads(event.value)
    del value["id"], value["time"], value["data"]["commit_lsn"], value["data"]["snapshot"]
    return event.key, value


@pytest.mark.parametrize("status", ["text", "character(10)", "character varying(10)"])
@pytest.mark.parametrize("composite", [True, False])
def test_keys_and_rows_of_every_type_are_the_same(
    database: Database, connection: psycopg.Connection[Any], status: str, composite: bool
) -> None:
    columns = [Column(f"k{place}", type_name) for place, type_name in enumerate(TYPES)]
    for column, value in [(None, None)] if composite else list(zip(columns, VALUES, strict=True)):
        table = _watched(*(columns if column is None else [column]), status=status)
        _make(connection, table)
        keys = VALUES if column is None else [value]
        _insert(connection, *keys, "2030-01-01 10:00:00.5+05:30", "on hold", 2**53 + 1)
        read, _ = _snapshot(database, table)
        (streamed,) = _streamed(connection, table)
        assert [_comparable(event) for event in read] == [_comparable(streamed)]
        assert orjson.loads(read[0].value)["data"]["status"] == "on hold"
        connection.execute("DROP TABLE holds")
        _streamed(connection, table)


def test_only_open_rows_with_a_deadline_that_can_come(database: Database, connection: psycopg.Connection[Any]) -> None:
    table = _watched(Column("id", "bigint"), status="text")
    _make(connection, table)
    _insert(connection, 1, "2030-01-01 00:00:00+00", "pending", 0)
    _insert(connection, 2, "-infinity", "on hold", None)
    _insert(connection, 3, "infinity", "pending", 0)
    _insert(connection, 4, None, "pending", 0)
    _insert(connection, 5, "2030-01-01 00:00:00+00", "paid", 0)
    _insert(connection, 6, "2030-01-01 00:00:00+00", None, 0)
    _insert(connection, 2**63 - 1, "0044-03-15 10:00:00+00 BC", "pending", 0)
    events, mark = _snapshot(database, table)
    assert sorted(int(event.key or b"") for event in events) == [1, 2, 2**63 - 1]
    assert sorted(_comparable(event)[0] or b"" for event in _streamed(connection, table)) == sorted(
        event.key or b"" for event in events
    )
    assert {orjson.loads(event.value)["id"] for event in events} == {
        f"snapshot-{format_lsn(mark.lsn)}-{key}" for key in (1, 2, 2**63 - 1)
    }


def test_every_change_is_either_in_the_snapshot_or_in_the_stream(
    database: Database, connection: psycopg.Connection[Any]
) -> None:
    """Transactions committed before, committed after, rolled back, in savepoints, around the read."""
    table = _watched(Column("id", "bigint"), status="text")
    _make(connection, table)
    due = "2030-01-01 00:00:00+00"
    with psycopg.connect(database.dsn) as early, psycopg.connect(database.dsn) as late:
        _insert(early, 1, due, "pending", 0)  # has its id before, commits before
        _insert(late, 2, due, "pending", 0)  # has its id before, commits after
        with late.transaction():
            _insert(late, 3, due, "pending", 0)
        _insert(connection, 4, due, "pending", 0)
        early.commit()
        with snapshot_of(database.dsn, table) as snapshot:
            _insert(connection, 5, due, "pending", 0)
            late.commit()
            events = list(snapshot.events(DeadlineRule(table), _encoder(table)))
            mark = snapshot.mark
    _insert(connection, 6, due, "pending", 0)
    assert sorted(event.key or b"" for event in events) == [b"1", b"4"]
    assert [event.key for event in _streamed(connection, table, mark)] == [b"5", b"2", b"3", b"6"]


def test_from_a_close_on_that_the_read_came_too_late_for_the_stream_tells_all(
    database: Database, connection: psycopg.Connection[Any]
) -> None:
    """Closing may begin before the read that is published at last: with the broker away, or after a crash."""
    table = _watched(Column("id", "bigint"), status="text")
    _make(connection, table)
    for key in (1, 2, 3):
        _insert(connection, key, "2030-01-01 00:00:00+00", "pending", 0)
    connection.execute("UPDATE holds SET status = 'paid' WHERE id = 3")
    connection.execute("UPDATE holds SET status = 'expired' WHERE id = 1")
    connection.execute("UPDATE holds SET expires_at = '2031-01-01 00:00:00+00' WHERE id = 2")
    read, mark = _snapshot(database, table)
    mark = replace(mark, visibility=mark.visibility._replace(to_first_close=True))
    assert [event.key for event in read] == [b"2"]
    connection.execute("DELETE FROM holds WHERE id = 2")
    streamed = [(event.key, orjson.loads(event.value)["type"]) for event in _streamed(connection, table, mark)]
    assert streamed == [(b"1", "deadline.expired"), (b"2", "deadline.scheduled"), (b"2", "deadline.cancelled")]


def test_a_table_that_is_not_there_and_a_server_that_is_not(
    database: Database, connection: psycopg.Connection[Any]
) -> None:
    with pytest.raises(PreconditionError):
        _snapshot(database, WATCHED)
    with pytest.raises(UnavailableError), snapshot_of("host=127.0.0.1 port=1", WATCHED):
        pass


def test_what_a_snapshot_shows_outlives_a_crash(database: Database, connection: psycopg.Connection[Any]) -> None:
    """Otherwise its transaction ids could be given out again, to transactions that the stream then passes over."""
    _make(connection, replace(WATCHED, name="holds", version=Column("version", "bigint")))
    connection.execute("SET synchronous_commit = off")
    for number in range(20):
        connection.execute("INSERT INTO holds VALUES (%s, now(), 'pending', 1)", [number])
        with snapshot_of(database.dsn, WATCHED) as snapshot:
            row = connection.execute("SELECT pg_current_wal_flush_lsn()::text").fetchone()
            assert row is not None
            assert parse_lsn(row[0]) >= snapshot.mark.lsn
