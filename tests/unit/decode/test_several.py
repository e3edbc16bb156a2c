"""Several tables in one stream, by both plugins."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cdcwatch.decode.change import Begin, Commit, Of, Together, Truncate
from cdcwatch.decode.leaves import Leaves
from cdcwatch.decode.note import CloseFailure
from cdcwatch.decode.plugins import several_factory
from cdcwatch.errors import DecodeError
from cdcwatch.table import Leaf, WatchedTable
from tests import pgoutput, wal2json
from tests.fakes.table import WATCHED

ORDERS: WatchedTable = replace(WATCHED, oid=1)
SEATS: WatchedTable = replace(WATCHED, oid=2, schema="Hotel", name='se"ats')
STOCK: WatchedTable = replace(WATCHED, oid=3, name="stock", leaves=(Leaf(4, "public", "stock_1", 9),))
COLUMNS = {"id": 1, "status": "pending", "expires_at": "2026-11-30 10:15:00+00", "version": 0}
VALUES = (b"1", b"pending", b"2026-11-30 10:15:00+00", b"0")


def wal2json_of(*tables: WatchedTable):
    return several_factory("wal2json", tables, publication="", server_version=150000)()


def test_wal2json_asks_for_all_tables_and_tells_whose_a_row_is() -> None:
    decoder = wal2json_of(ORDERS, SEATS)
    assert decoder.options()["add-tables"] == r"public.orders,Hotel.se\"ats"
    for place, table in enumerate((ORDERS, SEATS)):
        for action, more in (("I", {}), ("U", {"identity": {"id": 1}})):
            message = decoder.decode(wal2json.render(action, table, columns=COLUMNS, **more))
            assert isinstance(message, Of)
            assert (message.table, message.message.key) == (place, 1)
        deleted = decoder.decode(wal2json.render("D", table, identity={"id": 1}))
        assert isinstance(deleted, Of)
        assert deleted.table == place
        assert decoder.decode(wal2json.render("T", table)) == Of(place, Truncate())
    other = replace(ORDERS, name="others")
    assert decoder.decode(wal2json.render("I", other, columns=COLUMNS)) is None
    assert decoder.decode(wal2json.render("I", other, columns=COLUMNS)) is None
    assert decoder.decode(wal2json.render("T", other)) is None
    assert isinstance(decoder.decode(wal2json.begin(0x100, 0x108)), Begin)
    assert isinstance(decoder.decode(wal2json.commit(0x100, 0x108)), Commit)


def test_wal2json_with_a_partitioned_table_is_not_filtered() -> None:
    decoder = several_factory(
        "wal2json", (ORDERS, STOCK), publication="", server_version=150000, leaves=(None, Leaves(STOCK))
    )()
    assert "add-tables" not in decoder.options()
    leaf = replace(STOCK, name="stock_1")
    for _ in range(2):
        assert decoder.decode(wal2json.render("I", leaf, columns=COLUMNS)).table == 1
        assert decoder.decode(wal2json.render("I", ORDERS, columns=COLUMNS)).table == 0
        assert decoder.decode(wal2json.render("I", replace(ORDERS, name="others"), columns=COLUMNS)) is None


def test_pgoutput_finds_the_table_by_its_relation() -> None:
    decoder = several_factory("pgoutput", (ORDERS, SEATS), publication="p", server_version=150000)()
    names = ("id", "status", "expires_at", "version")
    for oid, table in ((1, ORDERS), (2, SEATS), (3, replace(ORDERS, name="others"))):
        assert decoder.decode(pgoutput.relation(oid, table, names, ["id"])) is None
    binary = "binary" in decoder.options()
    values = (b"\0" * 7 + b"\1", b"pending", b"\0" * 8, b"\0" * 4) if binary else VALUES
    for oid in (1, 2):
        message = decoder.decode(pgoutput.row_change("I", oid, new=values, binary=binary))
        assert isinstance(message, Of)
        assert (message.table, message.message.key) == (oid - 1, 1)
    assert decoder.decode(pgoutput.row_change("I", 3, new=values, binary=binary)) is None
    assert decoder.decode(pgoutput.truncate(2, 3, 1)) == Together((Of(1, Truncate()), Of(0, Truncate())))
    assert decoder.decode(pgoutput.truncate(3)) is None
    assert isinstance(decoder.decode(pgoutput.begin(0x100, 0, 7)), Begin)
    for cut in (b"I\0", b"T\0", b"R"):
        with pytest.raises(DecodeError):
            decoder.decode(cut)


def test_one_form_for_all_tables() -> None:
    textual = replace(SEATS, status=replace(WATCHED.status, type="shop.state"))
    decoder = several_factory("pgoutput", (ORDERS, textual), publication="p", server_version=150000)()
    assert "binary" not in decoder.options()
    names = ("id", "status", "expires_at", "version")
    decoder.decode(pgoutput.relation(1, ORDERS, names, ["id"]))
    assert decoder.decode(pgoutput.row_change("I", 1, new=VALUES, binary=False)).message.key == 1


def test_a_note_is_its_tables() -> None:
    decoder = wal2json_of(ORDERS, SEATS)
    note = CloseFailure(SEATS.oid, ("1",), 5, 0, 8, "SQLSTATE P0001").to_json()
    line = wal2json.text(note)
    message = f'{{"action":"M","transactional":true,"prefix":"cdcwatch","content":{line}}}'.encode()
    found = decoder.decode(message)
    assert isinstance(found, Of)
    assert (found.table, found.message.table_oid) == (1, SEATS.oid)


def test_of_one_table_it_is_that_tables_own_decoder() -> None:
    message = wal2json_of(ORDERS).decode(wal2json.render("I", ORDERS, columns=COLUMNS))
    assert not isinstance(message, Of)
