import json
import struct

import pytest

from cdcwatch.decode.note import CloseFailure, parse_note
from cdcwatch.decode.pgoutput import PgoutputDecoder
from cdcwatch.decode.wal2json import Wal2JsonDecoder
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
