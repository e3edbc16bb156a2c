"""A row of which a value can't be understood is told with its bytes, the same from both plugins; all else stops."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cdcwatch.decode.change import Change, Row, Unreadable
from cdcwatch.decode.pgoutput import PgoutputDecoder
from cdcwatch.decode.unreadable import MOST_INPUT_BYTES
from cdcwatch.decode.wal2json import Wal2JsonDecoder
from cdcwatch.errors import DecodeError
from cdcwatch.table import Column
from tests import pgoutput
from tests.fakes.table import WATCHED
from tests.wal2json import Digits, instant, render

DUE_US = 850_000_000_500_000
BAD = "p\xe9nding".encode("latin-1")
ORDERS = 16384
COLUMNS = ("id", "status", "expires_at", "version")
MARK = "§BAD§"  # what becomes of it stands for bytes that no text can hold
TEXT_KEY = replace(WATCHED, key=(Column("id", "text"),))
COMPOSITE = replace(WATCHED, key=(Column("id", "text"), Column("part", "bigint")))


def wal2json(action, table=WATCHED, *, identity=None, **row):
    values = {"id": 7, "status": "pending", "expires_at": instant(DUE_US), "version": 3, **row}
    values = {name: value for name, value in values.items() if value != "absent"}
    line = render(action, table, columns=None if action == "D" else values, identity=identity)
    return line.replace(MARK.encode(), BAD)


def read(line, table=WATCHED):
    """Cut or parsed, with whatever was remembered."""
    decoder = Wal2JsonDecoder(table)
    first = decoder._parse(line)
    assert decoder.decode(memoryview(line)) == decoder.decode(line) == first
    return first


def related(*, binary=True, full=False):
    decoder = PgoutputDecoder(WATCHED, "orders", binary=binary)
    decoder.decode(pgoutput.relation(ORDERS, WATCHED, COLUMNS, ["id"], full=full))
    return decoder


def values(*, binary=True, **row):
    """A tuple's, from texts and integers; bytes are as they are."""
    row = {"id": 7, "status": "pending", "expires_at": DUE_US, "version": 3, **row}

    def as_sent(name, value):
        if value is None or isinstance(value, bytes):
            return value
        if binary and isinstance(value, int):
            return value.to_bytes(4 if name == "version" else 8, "big", signed=True)
        return (instant(value) if name == "expires_at" and isinstance(value, int) else str(value)).encode()

    return [as_sent(name, value) for name, value in row.items()]


def inserted(*, oid=ORDERS, binary=True, **row):
    return pgoutput.row_change("I", oid, new=values(binary=binary, **row), binary=binary)


def changed(action, *, new=None, old=None, kind="K"):
    return pgoutput.row_change(action, ORDERS, new=new, old=old, kind=kind, binary=True)


@pytest.mark.parametrize(
    ("line", "table", "reason"),
    [
        (wal2json("I", status=MARK), WATCHED, "column 'status' is not valid UTF-8"),
        (wal2json("I", status=["pending"]), WATCHED, "column 'status' can't be understood"),
        (wal2json("I", id=MARK), TEXT_KEY, "key is not valid UTF-8"),
        (wal2json("I", id=MARK, part=1), COMPOSITE, "key is not valid UTF-8"),
        (wal2json("I", id=None), WATCHED, "key can't be understood"),
        (wal2json("I", id=None), TEXT_KEY, "key can't be understood"),
        (wal2json("I", expires_at="01/01/2030 05:30:00 IST"), WATCHED, "column 'expires_at' can't be understood"),
        (wal2json("I", expires_at=MARK), WATCHED, "column 'expires_at' can't be understood"),
        (wal2json("I", expires_at=7), WATCHED, "column 'expires_at' can't be understood"),
        (wal2json("I", version="three"), WATCHED, "column 'version' can't be understood"),
        (wal2json("I", version=Digits("1.5")), WATCHED, "column 'version' can't be understood"),
        (wal2json("U", identity={"id": 7}, status=MARK), WATCHED, "column 'status' is not valid UTF-8"),
        (
            wal2json("U", identity={"id": 7, "status": MARK, "expires_at": None}),
            WATCHED,
            "the old column 'status' is not valid UTF-8",
        ),
        (wal2json("U", identity={"id": MARK}), TEXT_KEY, "the old key is not valid UTF-8"),
        (wal2json("D", identity={"id": None}), WATCHED, "the old key can't be understood"),
        (wal2json("D", identity={}), WATCHED, "the old key is missing"),
        (
            wal2json("D", identity={"id": 7, "status": "x", "expires_at": "soon"}),
            WATCHED,
            "the old column 'expires_at' can't be understood",
        ),
        (render("D", WATCHED), WATCHED, "the list 'identity' is missing"),
        (render("I", WATCHED), WATCHED, "the list 'columns' is missing"),
    ],
)
def test_wal2jsons_line_is_told_with_its_reason_and_its_bytes(line, table, reason):
    assert read(line, table) == Unreadable(reason, "wal2json", line.hex(), False)


@pytest.mark.parametrize(
    "line",
    [
        wal2json("I", note=MARK),
        wal2json("U", identity={"id": 7}, note=MARK),
        wal2json("I", note=MARK).replace(BAD, b"\\ud800"),
        wal2json("I", **{"n" + MARK: 1}),
    ],
)
def test_what_is_wrong_with_a_column_that_nobody_watches_is_no_matter(line):
    assert read(line) == Change("insert" if b'"I"' in line else "update", 7, Row(DUE_US, "pending", 3), None)


def test_another_tables_row_is_passed_over_whatever_is_wrong_with_it():
    assert read(wal2json("I", replace(WATCHED, name="others"), status=MARK)) is None
    assert read(wal2json("I", replace(WATCHED, schema="archive"), id=None)) is None


def test_a_row_of_which_the_table_cannot_be_told_is_not_passed_over():
    line = wal2json("I").replace(b'"table":"orders",', b"")
    assert read(line) == Unreadable("it can't be understood", "wal2json", line.hex(), False)


@pytest.mark.parametrize("more", [0, 1, 10_000])
def test_the_bytes_are_bounded(more):
    line = wal2json("I", status=MARK)
    line += b" " * (MOST_INPUT_BYTES - len(line) + more)
    told = read(line)
    assert (told.input_hex, told.is_truncated) == (line[:MOST_INPUT_BYTES].hex(), more > 0)


@pytest.mark.parametrize(
    "line",
    [
        wal2json("I", status=MARK)[:-1],
        wal2json("I", status=MARK) + b"}",
        wal2json("I", status=MARK).replace(b'"I"', b'"X"'),
        wal2json("I", status=MARK).replace(b'"I"', b'"B"'),
        wal2json("I", status=MARK).replace(b'"I"', b'"IU"'),
        BAD,
    ],
)
def test_a_line_that_is_not_whole_or_no_row_stops(line):
    with pytest.raises(DecodeError) as caught:
        Wal2JsonDecoder(WATCHED).decode(line)
    assert caught.value.remedy


def test_a_deadline_column_that_is_gone_stops_whatever_else_is_wrong():
    with pytest.raises(DecodeError, match="no column 'expires_at'"):
        Wal2JsonDecoder(WATCHED).decode(wal2json("I", expires_at="absent", status=MARK))


@pytest.mark.parametrize("text", ["2030-01-01 00:00:00", "2030-01-01 00:00:00.5", "2030-01-01"])
@pytest.mark.parametrize("where", ["columns", "identity"])
def test_a_deadline_of_another_type_stops(text, where):
    """It is so in every row: the column was retyped."""
    old = {"id": 7, "status": "pending", "expires_at": text}
    line = wal2json("I", expires_at=text) if where == "columns" else wal2json("D", identity=old)
    with pytest.raises(DecodeError, match="of another type") as caught:
        Wal2JsonDecoder(WATCHED).decode(line)
    assert "2030" not in str(caught.value)


@pytest.mark.parametrize(
    ("message", "reason", "options"),
    [
        (inserted(status=BAD), "column 'status' is not valid UTF-8", {}),
        (inserted(status=BAD, binary=False), "column 'status' is not valid UTF-8", {"binary": False}),
        (inserted(id=None), "key can't be understood", {}),
        (inserted(id="seven", binary=False), "key can't be understood", {"binary": False}),
        (inserted(version="three", binary=False), "column 'version' can't be understood", {"binary": False}),
        (inserted(expires_at="soon", binary=False), "column 'expires_at' can't be understood", {"binary": False}),
        (changed("U", new=values(status=BAD)), "column 'status' is not valid UTF-8", {}),
        (
            changed("U", old=values(status=BAD), new=values(), kind="O"),
            "the old column 'status' is not valid UTF-8",
            {"full": True},
        ),
        (changed("D", old=values(status=BAD), kind="O"), "the old column 'status' is not valid UTF-8", {"full": True}),
        (changed("D", old=[None] * 4), "the old key can't be understood", {}),
    ],
)
def test_pgoutputs_message_is_told_with_its_reason_and_its_bytes(message, reason, options):
    assert related(**options).decode(memoryview(message)) == Unreadable(reason, "pgoutput", message.hex(), False)


def test_pgoutputs_messages_are_bounded_too():
    message = inserted(status=b"\xff" * 5000)
    told = related().decode(message)
    assert (told.input_hex, told.is_truncated) == (message[:MOST_INPUT_BYTES].hex(), True)


@pytest.mark.parametrize(
    "message",
    [
        inserted(status=BAD)[:-6],
        inserted(oid=4711, status=BAD),
        inserted(status=BAD).replace(b"N", b"X", 1),
        b"Z" + inserted(status=BAD)[1:],
    ],
)
def test_a_message_that_is_not_whole_or_of_no_known_relation_stops(message):
    with pytest.raises(DecodeError):
        related().decode(message)


def test_good_rows_around_a_bad_one_are_read():
    decoder = related()
    good = inserted()
    row = Row(DUE_US, "pending", 3)
    deleted = changed("D", old=values(status=None, expires_at=None, version=None))
    told = [decoder.decode(message) for message in (good, inserted(status=BAD), good, deleted)]
    assert told[0] == told[2] == Change("insert", 7, row, None)
    assert isinstance(told[1], Unreadable)
    assert told[3] == Change("delete", 7, None, None)
