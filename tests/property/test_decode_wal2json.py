"""Rows rendered as wal2json renders them come back equal, by either way of reading; anything else is a DecodeError."""

from __future__ import annotations

import contextlib

from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cdcwatch.decode.change import Begin, Change, Commit, Row
from cdcwatch.decode.wal2json import Wal2JsonDecoder
from cdcwatch.errors import DecodeError
from cdcwatch.instant import INFINITY_US, NEGATIVE_INFINITY_US
from cdcwatch.table import Column, canonical_key
from tests.fakes.table import WATCHED
from tests.wal2json import Digits, begin, commit, instant, render

FIRST_US, LAST_US = -211_813_488_000_000_000, 9_223_371_331_199_999_999
int8 = st.integers(-(2**63), 2**63 - 1)
# What PostgreSQL's text can hold; pieces of a line among it more often than chance would have them.
pieces = st.sampled_from(
    ['},{"name":"status","value":"', '"', "\\", "}", "{", "]", "[", ",", ":", '],"identity":[{', "é", "\u2028"]
)
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20) | st.lists(
    pieces, max_size=5
).map("".join)
instants = st.sampled_from([INFINITY_US, NEGATIVE_INFINITY_US, FIRST_US, LAST_US, 0]) | st.integers(FIRST_US, LAST_US)
near = st.integers(800_000_000, 900_000_000).map(lambda second: second * 1_000_000)
rows = st.builds(Row, st.none() | instants | near, st.none() | texts | st.just("pending"), st.none() | int8)
digits = st.decimals(allow_nan=False, allow_infinity=False).map(lambda number: Digits(f"{number:f}"))
others = st.dictionaries(
    texts.map(lambda name: f"other {name}"), st.none() | st.booleans() | int8 | digits | texts, max_size=4
)
names = st.lists(texts.filter(bool), min_size=5, max_size=5, unique=True)
KEY_TYPES = [("bigint",), ("text",), ("numeric",), ("bigint", "text"), ("text", "numeric")]
KEY_VALUES = {"bigint": int8, "text": texts, "numeric": digits}


@st.composite
def tables(draw):
    """A table with any names, any kind of key, with and without status and version."""
    schema, name, deadline, status, version = draw(names)
    types = draw(st.sampled_from(KEY_TYPES))
    plain = draw(st.booleans())
    return replace(
        WATCHED,
        schema="public" if plain else schema,
        name="orders" if plain else name,
        key=tuple(Column(f"key {place}", type_name) for place, type_name in enumerate(types)),
        deadline=Column("expires_at" if plain else deadline, "timestamp with time zone"),
        status=draw(st.sampled_from([Column("status" if plain else status, "text")] * 3 + [None])),
        version=draw(st.sampled_from([Column("version" if plain else version, "bigint")] * 3 + [None])),
    )


def read(table, line):
    """What the decoder says, whichever way it read; both ways must say the same."""
    decoder = Wal2JsonDecoder(table)
    parsed = decoder._parse(line)
    assert decoder.decode(line) == parsed
    assert decoder.decode(memoryview(line)) == parsed  # the second time it knows where the columns stand
    return parsed


def as_columns(draw, table, key, row, other):
    """The columns of one row version, in any order."""
    values = {column.name: value for column, value in zip(table.key, key, strict=True)}
    values[table.deadline.name] = None if row.deadline_us is None else instant(row.deadline_us)
    if table.status:
        values[table.status.name] = row.status
    if table.version:
        values[table.version.name] = row.version
    values = {**other, **values}
    return {name: values[name] for name in draw(st.permutations(list(values)))}


def known(table, row, *, version=True):
    """What a decoder can know of the row."""
    return Row(
        row.deadline_us, row.status if table.status else None, row.version if table.version and version else None
    )


def key_of(table, values):
    return canonical_key([str(value) for value in values], integer=table.has_integer_key)


@given(data=st.data(), table=tables(), new=rows, old=rows, other=others)
@settings(max_examples=100, deadline=None)
def test_rows_come_back_equal(data, table, new, old, other):
    drawn_key = st.tuples(*(KEY_VALUES[column.type] for column in table.key))
    key = data.draw(drawn_key)
    old_key = data.draw(st.just(key) | drawn_key)
    canonical, canonical_old = key_of(table, key), key_of(table, old_key)
    columns = as_columns(data.draw, table, key, new, other)
    assert read(table, render("I", table, columns=columns)) == Change("insert", canonical, known(table, new), None)

    before = as_columns(data.draw, table, old_key, old, other)
    key_only = {column.name: before[column.name] for column in table.key}
    changed = canonical_old if canonical_old != canonical else None
    assert read(table, render("U", table, columns=columns, identity=key_only)) == Change(
        "update", canonical, known(table, new), None, changed
    )
    assert read(table, render("U", table, columns=columns, identity=before)) == Change(
        "update", canonical, known(table, new), known(table, old), changed
    )
    indexed = {name: value for name, value in before.items() if not table.version or name != table.version.name}
    assert read(table, render("U", table, columns=columns, identity=indexed)) == Change(
        "update", canonical, known(table, new), known(table, old, version=False), changed
    )
    assert read(table, render("D", table, identity=before)) == Change("delete", canonical_old, None, known(table, old))
    assert read(table, render("D", table, identity=key_only)) == Change("delete", canonical_old, None, None)


@given(
    key=int8, new=rows, old=rows, note=texts, order=st.permutations(["id", "status", "expires_at", "version", "note"])
)
@settings(max_examples=150, deadline=None)
def test_the_usual_line_is_cut_and_the_cut_is_right(key, new, old, note, order):
    new, old = (
        Row(row.deadline_us or 0, (row.status or "pending").replace("\\", "").replace('"', ""), row.version or 0)
        for row in (new, old)
    )
    decoder = Wal2JsonDecoder(WATCHED)

    def columns(row):
        values = {
            "id": key,
            "note": note,
            "status": row.status,
            "expires_at": instant(row.deadline_us),
            "version": row.version,
        }
        return {name: values[name] for name in order}

    usual = not any(ord(character) < 0x20 for character in new.status + old.status)
    for line, expected in (
        (render("I", WATCHED, columns=columns(new)), Change("insert", key, new, None)),
        (render("U", WATCHED, columns=columns(new), identity={"id": key}), Change("update", key, new, None)),
        (render("U", WATCHED, columns=columns(new), identity=columns(old)), Change("update", key, new, old)),
    ):
        cut = decoder._cutter.cut(line)
        assert cut == expected or (cut is None and not usual)
        assert decoder._parse(line) == expected


lsns = st.integers(0, 2**64 - 1)
transactions = st.tuples(lsns, lsns, st.integers(0, 2**32 - 1), instants | near | near.map(lambda us: us + 1_000))


@given(its=st.lists(transactions, min_size=1, max_size=6))
@settings(max_examples=150, deadline=None)
def test_bounds_are_cut_and_the_cut_is_right(its):
    """One after the other through one decoder, as it remembers the last."""
    decoder = Wal2JsonDecoder(WATCHED)
    for commit_lsn, end_lsn, xid, time_us in its:
        bounds = {"xid": xid, "time_us": time_us}
        first, last = begin(commit_lsn, end_lsn, **bounds), commit(commit_lsn, end_lsn, **bounds)
        assert decoder.decode(last) == Commit(commit_lsn, end_lsn)  # its begin was not seen
        assert decoder.decode(first) == Begin(commit_lsn, time_us, xid)
        assert decoder.decode(last) == Commit(commit_lsn, end_lsn)
        usual = 0 <= time_us < 86_400_000_000 * 365 * 7999
        cut = decoder._boundaries.cut(first)
        assert cut == Begin(commit_lsn, time_us, xid) or (cut is None and not usual)
        assert decoder._boundaries.cut(last) == Commit(commit_lsn, end_lsn) or not usual
        assert decoder._parse(first) == Begin(commit_lsn, time_us, xid)
        assert decoder._parse(last) == Commit(commit_lsn, end_lsn)


@given(data=st.data(), action=st.sampled_from([begin, commit]))
@settings(max_examples=500, deadline=None)
def test_bounds_that_both_ways_can_read_mean_the_same_to_both(data, action):
    """One piece of the line is exchanged for another; the pair's other half came before."""
    decoder = Wal2JsonDecoder(WATCHED)
    decoder.decode(begin(0x1_0000_0010, 0x1_0000_0048))
    line = action(0x1_0000_0010, 0x1_0000_0048)
    pieces = [b'"B"', b'"C"', b"727", b"2026-12-0", b"10", b".123456", b"+00", b"1/10", b"1/48", b"lsn", b"xid", b"}"]
    piece = data.draw(st.sampled_from([piece for piece in pieces if piece in line] + [b'"lsn"']))
    others = [b"", b"0", b"007", b"-1", b"null", b'"x"', b'"C"', b'"B"', b"ff/ff", b"1/100000000", b"61", b" ", b"}}"]
    others += [b"2026-02-30", b".5", b".1234567", b"+05:30", b"\\u0031", b",", b'"nextlsn"', b"99999999999"]
    put = data.draw(st.sampled_from(others))
    changed = line.replace(piece, put, 1)
    cut = decoder._boundaries.cut(changed)
    if cut is not None:
        assert cut == decoder._parse(changed)


LINES = [
    begin(0x1_0000_0010, 0x1_0000_0048),
    commit(0x1_0000_0010, 0x1_0000_0048),
    render("T", WATCHED),
    *(
        render(action, WATCHED, columns=columns, identity=identity)
        for columns in [
            {"id": 7, "status": "pending", "expires_at": "2026-11-30 10:15:00.5+00", "version": 3, "note": "x"}
        ]
        for action, columns, identity in [
            ("I", columns, None),
            ("U", columns, {"id": 7}),
            ("U", columns, columns),
            ("D", None, columns),
        ]
    ),
]
COMPOSITE = replace(WATCHED, key=(Column("id", "numeric"), Column("note", "text")))


def read_or_refused(line):
    for table in (WATCHED, COMPOSITE):
        with contextlib.suppress(DecodeError):
            Wal2JsonDecoder(table).decode(line)


@given(line=st.binary(max_size=200))
@example(b"")
@example(b'{"action":"')
@example(b'{"action":"I')
@example(b'{"action":"C')
@example(b'{"action":"B')
@example(b"[" * 100_000)
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_decode_error_at_worst(line):
    read_or_refused(line)


@given(line=st.sampled_from(LINES), data=st.data())
@settings(max_examples=300, deadline=None)
def test_mutated_lines_are_a_decode_error_at_worst(line, data):
    mutated = bytearray(line)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutated)))
        gone = data.draw(st.integers(0, 12))
        put = data.draw(
            st.binary(max_size=4)
            | st.sampled_from(
                [b"null", b"true", b"[]", b"{}", b"9" * 30, b'"', b"\\", b"\\ud800", b"1e999", b"-", b"]}", b"}]"]
            )
        )
        mutated[at : at + gone] = put
    read_or_refused(bytes(mutated))


@given(line=st.sampled_from(LINES), data=st.data())
@settings(max_examples=200, deadline=None)
def test_truncated_lines_are_a_decode_error_at_worst(line, data):
    read_or_refused(line[: data.draw(st.integers(0, len(line)))])


@given(line=st.sampled_from(LINES[3:]), data=st.data())
@settings(max_examples=500, deadline=None)
def test_a_line_that_both_ways_can_read_means_the_same_to_both(line, data):
    """One value of the line is exchanged for any JSON."""
    decoder = Wal2JsonDecoder(WATCHED)
    values = [b"7}", b'"pending"', b'"2026-11-30 10:15:00.5+00"', b"3}", b'"x"', b'"public"', b'"orders"']
    value = data.draw(st.sampled_from(values))
    put = data.draw(
        st.sampled_from(
            [b"null", b"true", b"[]", b"{}", b"1.5", b"-7", b"0", b'""', b'"infinity"', b'"a\\"b"', b'"1"', b"1e2"]
        )
    )
    changed = line.replace(value, put + (b"}" if value.endswith(b"}") else b""))
    cut = decoder._cutter.cut(changed)
    if cut is not None:
        assert cut == decoder._parse(changed)
