"""Tuples put together as pgoutput puts them come back equal; any other bytes are a DecodeError at worst."""

from __future__ import annotations

import contextlib
import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cdcwatch.decode.change import Begin, Change, Commit, Row, Truncate, Unreadable
from cdcwatch.decode.pgoutput import PgoutputDecoder
from cdcwatch.errors import DecodeError
from cdcwatch.instant import INFINITY_US, NEGATIVE_INFINITY_US
from cdcwatch.table import Column
from tests.fakes.table import WATCHED
from tests.pgoutput import OIDS, begin, commit, relation, row_change, truncate
from tests.wal2json import instant

if TYPE_CHECKING:
    from cdcwatch.table import WatchedTable

FIRST_US, LAST_US = -211_813_488_000_000_000, 9_223_371_331_199_999_999
OID = WATCHED.oid
int8 = st.integers(-(2**63), 2**63 - 1)
int4 = st.integers(-(2**31), 2**31 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
instants = st.sampled_from([INFINITY_US, NEGATIVE_INFINITY_US, FIRST_US, LAST_US, 0]) | st.integers(FIRST_US, LAST_US)
rows = st.builds(Row, st.none() | instants, st.none() | texts, st.none() | int4)

COMPOSITE = replace(WATCHED, key=(Column("note", "text"), Column("id", "bigint")))
NAIVE = replace(WATCHED, deadline=Column("expires_at", "timestamp without time zone"), zone="Europe/Amsterdam")
DATED = replace(NAIVE, deadline=Column("expires_at", "date"))
BARE = replace(WATCHED, status=None, version=None, open=frozenset())


def values_of(row: Row, key: int, note: str | None, *, binary: bool) -> dict[str, bytes | None]:
    if binary:
        return {
            "id": struct.pack("!q", key),
            "note": None if note is None else note.encode(),
            "status": None if row.status is None else row.status.encode(),
            "expires_at": None if row.deadline_us is None else struct.pack("!q", row.deadline_us),
            "version": None if row.version is None else struct.pack("!i", row.version),
        }
    return {
        "id": str(key).encode(),
        "note": None if note is None else note.encode(),
        "status": None if row.status is None else row.status.encode(),
        "expires_at": None if row.deadline_us is None else instant(row.deadline_us).encode(),
        "version": None if row.version is None else str(row.version).encode(),
    }


@given(data=st.data(), key=int8, old_key=int8, new=rows, old=rows, note=texts, binary=st.booleans(), full=st.booleans())
@settings(max_examples=200, deadline=None)
def test_rows_come_back_equal(data, key, old_key, new, old, note, binary, full):
    table = data.draw(st.sampled_from([WATCHED, COMPOSITE]))
    order = data.draw(st.permutations(list(OIDS)))
    identity = list(OIDS) if full else [column.name for column in table.key]
    decoder = PgoutputDecoder(table, "p", binary=binary)
    assert decoder.decode(relation(OID, table, order, identity, full=full)) is None

    def tuple_of(row, row_key, only=None):
        values = values_of(row, row_key, note, binary=binary)
        return [None if only is not None and name not in only else values[name] for name in order]

    def named(row_key):
        from cdcwatch.table import canonical_key

        texts = [note, str(row_key)] if table is COMPOSITE else [str(row_key)]
        return canonical_key(texts, integer=table.has_integer_key)

    known = old if full else None
    assert decoder.decode(row_change("I", OID, new=tuple_of(new, key), binary=binary)) == Change(
        "insert", named(key), new, None
    )
    moved = named(old_key) if old_key != key else None
    old_tuple = tuple_of(old, old_key) if full else tuple_of(old, old_key, identity)
    line = row_change("U", OID, new=tuple_of(new, key), old=old_tuple, kind="O" if full else "K", binary=binary)
    assert decoder.decode(line) == Change("update", named(key), new, known, moved)
    line = row_change("D", OID, old=old_tuple, kind="O" if full else "K", binary=binary)
    assert decoder.decode(memoryview(line)) == Change("delete", named(old_key), None, known)
    assert decoder.decode(truncate(OID)) == Truncate()


def seldom_none(*values):
    return st.sampled_from([*values * 4, None])


usual_rows = st.builds(Row, seldom_none(5, -1, INFINITY_US), seldom_none("a", "ab", "abc"), seldom_none(1, -2))


@given(data=st.data(), order=st.permutations(list(OIDS)), identity=st.sampled_from(["key", "index", "full"]))
@settings(max_examples=100, deadline=None)
def test_a_row_means_the_same_whatever_was_read_before(data, order, identity):
    """Rows of a shape that is known are read another way, and shapes come in any order (pgoutput's templates)."""
    logged = {"key": ["id"], "index": ["id", "status", "expires_at"], "full": list(OIDS)}[identity]
    described = relation(OID, WATCHED, order, logged, full=identity == "full")
    kind = "O" if identity == "full" else "K"
    experienced = PgoutputDecoder(WATCHED, "p", binary=True)
    experienced.decode(described)
    keys, notes = st.integers(0, 2), seldom_none("", "x", "yz")
    for _ in range(30):
        values, olds = (
            values_of(data.draw(usual_rows), data.draw(keys), data.draw(notes), binary=True) for _ in range(2)
        )
        new, old = [values[name] for name in order], [olds[name] if name in logged else None for name in order]
        lines = [
            row_change("I", OID, new=new, binary=True),
            row_change("U", OID, new=new, binary=True),
            row_change("U", OID, new=new, old=old, kind=kind, binary=True),
            row_change("D", OID, old=old, kind=kind, binary=True),
            row_change("I", OID + 1, new=new, binary=True),
        ]
        line = data.draw(st.sampled_from(lines))
        newcomer = PgoutputDecoder(WATCHED, "p", binary=True)
        newcomer.decode(described)
        assert _read(experienced, line) == _read(newcomer, line)


def _read(decoder, line):
    try:
        return decoder.decode(line)
    except DecodeError as error:
        return str(error)


@given(lsn=st.integers(0, 2**64 - 1), time_us=int8, xid=st.integers(0, 2**32 - 1))
def test_bounds_come_back_equal(lsn, time_us, xid):
    decoder = PgoutputDecoder(WATCHED, "p", binary=True)
    assert decoder.decode(begin(lsn, time_us, xid)) == Begin(lsn, time_us, xid)
    assert decoder.decode(commit(lsn, lsn, time_us)) == Commit(lsn, lsn)


@pytest.mark.parametrize("binary", [True, False])
def test_what_the_identity_logs_fills_in_for_what_was_not_sent_again(binary):
    """An unchanged TOASTed value is marked in the new row, and whole in the old one where the identity has it (G2)."""
    order = list(OIDS)
    row = Row(5, "pending", 3)
    values = values_of(row, 7, "k" * 5000, binary=binary)
    whole = [values[name] for name in order]
    unchanged = [... if name == "note" else values[name] for name in order]
    decoder = PgoutputDecoder(COMPOSITE, "p", binary=binary)
    decoder.decode(relation(OID, COMPOSITE, order, order, full=True))
    line = row_change("U", OID, new=unchanged, old=whole, kind="O", binary=binary)
    assert decoder.decode(line) == Change("update", f'["{"k" * 5000}","7"]', row, row, None)
    assert isinstance(decoder.decode(row_change("U", OID, new=unchanged, binary=binary)), Unreadable)


def _messages(table: WatchedTable) -> list[bytes]:
    order = list(OIDS)
    values = values_of(Row(5, "pending", 3), 7, "x", binary=True)
    row = [values[name] for name in order]
    return [
        relation(OID, table, order, order, full=True),
        begin(1, 2, 3),
        commit(1, 2, 3),
        row_change("I", OID, new=row, binary=True),
        row_change("U", OID, new=row, binary=True),
        row_change("U", OID, new=[*row[:-1], ...], old=row, kind="O", binary=True),
        row_change("D", OID, old=row, kind="O", binary=True),
        *(row_change("I", OID, new=[*row[:at], ..., *row[at + 1 :]], binary=True) for at in range(len(row))),
        *(row_change("I", OID, new=[*row[:at], None, *row[at + 1 :]], binary=True) for at in range(len(row))),
        truncate(OID),
        truncate(8, OID),
    ]


MESSAGES = _messages(WATCHED)
FEEDS = [(table, binary) for table in (WATCHED, COMPOSITE, NAIVE, DATED, BARE) for binary in (True, False)]


def read_or_refused(message: bytes) -> None:
    """By decoders that know the relation and by those that don't."""
    for table, binary in FEEDS:
        decoder = PgoutputDecoder(table, "p", binary=binary)
        for knows in (False, True):
            if knows:
                decoder.decode(relation(OID, table, list(OIDS), list(OIDS), full=True))
            with contextlib.suppress(DecodeError):
                decoder.decode(message)
            # What it has learnt from that, a Relation message perhaps, it applies to what follows.
            for other in MESSAGES[3:7]:
                with contextlib.suppress(DecodeError):
                    decoder.decode(other)


@given(
    message=st.binary(max_size=200)
    | st.builds(
        lambda kind, rest: kind + rest, st.sampled_from([bytes([c]) for c in b"BCRIUDTYOM"]), st.binary(max_size=80)
    )
)
@example(b"")
@example(b"I")
@example(b"U\0\0\x40\0")
@example(b"T\xff\xff\xff\xff\0")
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_decode_error_at_worst(message):
    read_or_refused(message)


@given(message=st.sampled_from(MESSAGES), data=st.data())
@settings(max_examples=400, deadline=None)
def test_mutated_messages_are_a_decode_error_at_worst(message, data):
    mutated = bytearray(message)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated)))
        gone = data.draw(st.integers(0, 6))
        put = data.draw(
            st.binary(max_size=6)
            | st.sampled_from(
                [b"u", b"n", b"t", b"b", b"\0", b"\xff\xff\xff\xff", b"\x7f\xff", b"\x80\0", b"O", b"K", b"N", b"f"]
            )
        )
        mutated[at : at + gone] = put
    read_or_refused(bytes(mutated))


@given(message=st.sampled_from(MESSAGES), data=st.data())
@settings(max_examples=200, deadline=None)
def test_truncated_messages_are_a_decode_error_at_worst(message, data):
    read_or_refused(message[: data.draw(st.integers(0, len(message)))])


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: repr(message[:1]))
def test_messages_about_other_columns_than_ours_are_a_decode_error_at_worst(message):
    read_or_refused(message)


@pytest.mark.parametrize("width", [0, 3, 7, 9])
def test_an_instant_of_another_width_is_not_understood(width):
    decoder = PgoutputDecoder(WATCHED, "p", binary=True)
    decoder.decode(relation(OID, WATCHED, list(OIDS), ["id"]))
    values = values_of(Row(5, "pending", 3), 7, "x", binary=True) | {"expires_at": b"\1" * width}
    told = decoder.decode(row_change("I", OID, new=[values[name] for name in OIDS], binary=True))
    assert told.reason == "column 'expires_at' can't be understood"
