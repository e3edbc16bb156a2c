"""What tests render as wal2json's lines is, byte for byte, what wal2json writes; and the decoder reads every row of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from psycopg import sql

from cdcwatch.decode.change import Begin, Change, Commit, Row, Truncate
from cdcwatch.decode.wal2json import Wal2JsonDecoder
from cdcwatch.instant import INFINITY_US, parse_instant
from cdcwatch.lsn import parse_lsn
from cdcwatch.table import Column, WatchedTable
from tests.wal2json import Digits, begin, commit, instant, render

if TYPE_CHECKING:
    import psycopg

    from cdcwatch.decode.change import Message
    from tests.services import Database

TABLE = WatchedTable(
    schema="My.Shop",
    name='Or,der "X" é*\\',
    oid=0,
    key=(Column("id", "bigint"),),
    deadline=Column('Expires "At"', "timestamp with time zone"),
    status=Column("status", "text"),
    version=Column("a.b", "integer"),
    open=frozenset({"pending"}),
    closed_status="expired",
)
DUE_US = parse_instant("2030-01-01 04:30:00.5+00")
NOTE = '},{"name":"status","value":"paid"'
ODD = 'é"\\\u2028\u007f\u0001\b\f\n\r\t/<😀'


@pytest.fixture
def connection(database: Database) -> Any:
    with database.connect(options="-c DateStyle=ISO -c TimeZone=UTC") as connection:
        name = sql.Identifier(TABLE.schema, TABLE.name)
        connection.execute('CREATE SCHEMA "My.Shop"')
        connection.execute(
            sql.SQL(
                'CREATE TABLE {} (id bigint PRIMARY KEY, status text, "Expires ""At""" timestamptz, "a.b" int,'
                " note text, paid bool, price numeric, raw bytea)"
            ).format(name)
        )
        connection.execute(sql.SQL("ALTER TABLE {} ALTER note SET STORAGE EXTERNAL").format(name))
        connection.execute("CREATE TABLE public.other (id int)")
        connection.execute("SELECT pg_create_logical_replication_slot(%s, 'wal2json')", [f"slot_{database.name}"])
        yield connection


def _lines(connection: psycopg.Connection[Any], table: WatchedTable = TABLE) -> list[bytes]:
    """What came since the last call."""
    options = [text for pair in Wal2JsonDecoder(table).options().items() for text in pair]
    rows = connection.execute(
        "SELECT data FROM pg_logical_slot_get_changes(%s, NULL, NULL, VARIADIC %s)",
        [f"slot_{connection.info.dbname}", options],
    )
    return [line.encode() for (line,) in rows]


def _read(lines: list[bytes], table: WatchedTable = TABLE) -> list[Message]:
    """Both ways of reading agree."""
    decoder = Wal2JsonDecoder(table)
    messages = [decoder.decode(line) for line in lines]
    assert messages == [decoder._parse(line) for line in lines]
    return [message for message in messages if message is not None]


def _insert(connection: psycopg.Connection[Any], *values: object) -> None:
    connection.execute(
        sql.SQL("INSERT INTO {} VALUES (%s, %s, %s, %s, %s, %s, %s, %s)").format(
            sql.Identifier(TABLE.schema, TABLE.name)
        ),
        values,
    )


def _columns(*values: object) -> dict[str, object]:
    names = ["id", "status", 'Expires "At"', "a.b", "note", "paid", "price", "raw"]
    return dict(zip(names, values, strict=True))


def _again(line: bytes, **parts: Any) -> bytes:
    """The same line rendered, with the transaction and the position that it has itself."""
    parsed = line.decode().split('"')
    action, xid, time, lsn = parsed[3], int(parsed[6].strip(":,")), parsed[9], parsed[13]
    return render(action, TABLE, xid=xid, time_us=parse_instant(time), lsn=parse_lsn(lsn), **parts)


def test_lines_are_rendered_as_they_are_written(connection: psycopg.Connection[Any]) -> None:
    name = sql.Identifier(TABLE.schema, TABLE.name)
    with connection.transaction():
        _insert(connection, 2**63 - 1, "pending", "2030-01-01 10:00:00.5+05:30", 0, NOTE, True, "1.10", b"\0\xff")
        _insert(connection, -(2**63), None, "infinity", None, ODD, None, "12345678901234567890.123456789", None)
        _insert(connection, 3, ODD, None, -1, "x" * 5000, False, "1" * 400, b"")
        connection.execute("INSERT INTO public.other VALUES (1)")
        connection.execute(sql.SQL("UPDATE {} SET status = 'paid' WHERE id = 3").format(name))
        connection.execute(sql.SQL("UPDATE {} SET id = 33, status = 'x' WHERE id = 3").format(name))
        connection.execute(sql.SQL("DELETE FROM {} WHERE id = 33").format(name))
        connection.execute(sql.SQL("TRUNCATE {}").format(name))
    lines = _lines(connection)
    first = _columns(2**63 - 1, "pending", instant(DUE_US), 0, NOTE, True, Digits("1.10"), "00ff")
    second = _columns(-(2**63), None, "infinity", None, ODD, None, Digits("12345678901234567890.123456789"), None)
    third = _columns(3, ODD, None, -1, "x" * 5000, False, Digits("1" * 400), "")
    paid = {column: value for column, value in third.items() if column != "note"} | {"status": "paid"}
    assert lines[1:-1] == [
        _again(lines[1], columns=first),
        _again(lines[2], columns=second),
        _again(lines[3], columns=third),
        _again(lines[4], columns=paid, identity={"id": 3}),
        _again(lines[5], columns=paid | {"id": 33, "status": "x"}, identity={"id": 3}),
        _again(lines[6], identity={"id": 33}),
        _again(lines[7]),
    ]
    begun, *changes, committed = _read(lines)
    assert isinstance(begun, Begin)
    assert isinstance(committed, Commit)
    assert Wal2JsonDecoder(TABLE)._boundaries.cut(lines[0]) == begun, "the usual form is the server's own"
    bounds = {"xid": begun.xid, "time_us": begun.time_us}
    assert lines[0] == begin(committed.commit_lsn, committed.end_lsn, **bounds)
    assert lines[-1] == commit(committed.commit_lsn, committed.end_lsn, **bounds)
    assert changes == [
        Change("insert", 2**63 - 1, Row(DUE_US, "pending", 0), None),
        Change("insert", -(2**63), Row(INFINITY_US, None, None), None),
        Change("insert", 3, Row(None, ODD, -1), None),
        Change("update", 3, Row(None, "paid", -1), None),
        Change("update", 33, Row(None, "x", -1), None, 3),
        Change("delete", 33, None, None),
        Truncate(),
    ]


@pytest.mark.parametrize("identity", ["full", "index"])
def test_old_rows_by_replica_identity(connection: psycopg.Connection[Any], identity: str) -> None:
    name = sql.Identifier(TABLE.schema, TABLE.name)
    if identity == "full":
        connection.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(name))
    else:
        for column in ("status", 'Expires "At"'):
            connection.execute(sql.SQL("ALTER TABLE {} ALTER {} SET NOT NULL").format(name, sql.Identifier(column)))
        connection.execute(sql.SQL('CREATE UNIQUE INDEX known ON {} (id, status, "Expires ""At""")').format(name))
        connection.execute(sql.SQL("ALTER TABLE {} REPLICA IDENTITY USING INDEX known").format(name))
    _insert(connection, 1, "pending", instant(DUE_US), 7, "x" * 5000, True, "1.10", b"\0")
    _lines(connection)
    with connection.transaction():
        connection.execute(sql.SQL('UPDATE {} SET "a.b" = 8').format(name))
        connection.execute(sql.SQL("UPDATE {} SET status = 'paid'").format(name))
        connection.execute(sql.SQL("UPDATE {} SET id = 2").format(name))
        connection.execute(sql.SQL("DELETE FROM {}").format(name))
    _, *changes, _ = _read(_lines(connection))

    def old(status: str, version: int) -> Row:
        return Row(DUE_US, status, version if identity == "full" else None)

    unchanged = old("pending", 7)
    assert changes == [
        Change("update", 1, Row(DUE_US, "pending", 8), unchanged),
        Change("update", 1, Row(DUE_US, "paid", 8), old("pending", 8)),
        Change("update", 2, Row(DUE_US, "paid", 8), old("paid", 8), 1),
        Change("delete", 2, None, old("paid", 8)),
    ]
