import json
import struct

import pytest
from msgspec.structs import replace

from cdcwatch.decode.note import CloseFailure, Closing, parse_note
from cdcwatch.decode.pgoutput import PgoutputDecoder
from cdcwatch.decode.wal2json import Wal2JsonDecoder
from cdcwatch.table import Column
from tests.fakes.table import WATCHED

FAILURE = CloseFailure(WATCHED.oid, ('a"b',), 850_000_000_000_000, 2, 8, "SQLSTATE 23514 (CheckViolation)")


def by_wal2json(content, prefix="cdcwatch", *, transactional=True):
    line = {"action": "M", "transactional": transactional, "prefix": prefix, "content": content}
    return Wal2JsonDecoder(WATCHED).decode(json.dumps(line).encode())


def by_pgoutput(content, prefix="cdcwatch", *, transactional=True):
    data = content.encode()
    head = struct.pack("!BQ", transactional, 0x100) + prefix.encode() + b"\0" + struct.pack("!I", len(data))
    return PgoutputDecoder(WATCHED, "p", binary=True, notes=True).decode(b"M" + head + data)


@pytest.mark.parametrize("decode", [by_wal2json, by_pgoutput])
def test_our_own_notes_are_read_and_nobody_elses(decode):
    assert decode(FAILURE.to_json()) == FAILURE
    assert decode(FAILURE.to_json(), "cdcwatch.other") is None
    assert decode(FAILURE.to_json(), transactional=False) is None
    assert decode(FAILURE._replace(table_oid=1).to_json()) is None
    assert decode("no JSON") is None


@pytest.mark.parametrize(
    "content", ["", "7", "null", "[]", "{}", '{"note":"close_failed"}', '{"note":"other","table_oid":16384}']
)
def test_what_somebody_else_wrote_under_our_prefix_is_nothing(content):
    assert parse_note(content, WATCHED) is None


@pytest.mark.parametrize(
    "forged",
    [
        {"deadline_us": "x"},
        {"deadline_us": 10**30},
        {"deadline_us": 2**63 - 1},
        {"version": None},
        {"attempts": 1.5},
        {"attempts": True},
        {"key": ()},
        {"key": ("1", "2")},
        {"key": (1,)},
        {"key": "12"},
        {"error": 7},
        {"error": "x" * 400},
    ],
)
@pytest.mark.parametrize("decode", [by_wal2json, by_pgoutput])
def test_a_forged_note_is_nothing(decode, forged):
    note = {"note": "close_failed", **FAILURE._asdict(), **forged}
    assert decode(json.dumps(note)) is None


def test_a_line_that_a_nul_cut_short_is_nothing():
    assert (
        Wal2JsonDecoder(WATCHED).decode(b'{"action":"M","transactional":true,"prefix":"cdcwatch","content":"\xff')
        is None
    )


def test_logical_messages_are_asked_for_where_the_server_sends_them():
    assert PgoutputDecoder(WATCHED, "p", binary=False, notes=True).options()["messages"] == "true"
    assert "messages" not in PgoutputDecoder(WATCHED, "p", binary=False).options()


def test_a_note_is_ascii_whatever_is_in_it():
    assert FAILURE._replace(key=("é😀",)).to_json().isascii()
    assert by_pgoutput(FAILURE._replace(key=("é😀",)).to_json()) == FAILURE._replace(key=("é😀",))


BY_TEXT = replace(WATCHED, key=(Column("shop", "uuid"), Column("id", "text")))


def closing(keys, oid=WATCHED.oid):
    return json.dumps({"note": "closing", "table_oid": oid, "keys": keys})


@pytest.mark.parametrize("decode", [by_wal2json, by_pgoutput])
def test_the_keys_that_a_transaction_closes(decode):
    assert decode(closing([1, -(2**63), 2**63 - 1])) == Closing(WATCHED.oid, frozenset({1, -(2**63), 2**63 - 1}))
    assert decode(closing([1], oid=1)) is None
    assert decode(closing([1]), "cdcwatch2") is None
    assert decode(closing([1]), transactional=False) is None


def test_keys_that_are_no_integer_come_as_hexadecimal_texts():
    texts = [[b"a".hex(), 'é"'.encode().hex()]]
    assert parse_note(closing(texts), BY_TEXT) == Closing(WATCHED.oid, frozenset({'["a","é\\""]'}))
    one = replace(WATCHED, key=BY_TEXT.key[1:])
    assert parse_note(closing([["c3a9"]]), one) == Closing(WATCHED.oid, frozenset({"é"}))


@pytest.mark.parametrize("keys", [None, 7, "12", ["1"], [1.5], [True], [[1]], [None], {}])
def test_keys_that_are_none(keys):
    note = parse_note(closing(keys), WATCHED)
    assert note is None or note.keys == frozenset()


@pytest.mark.parametrize("keys", [[1], ["6161"], [["61"]], [["61", "zz"]], [["61", "ff"]], [["61", 7]], [["61"] * 3]])
def test_texts_that_are_none(keys):
    assert parse_note(closing(keys), BY_TEXT) is None
