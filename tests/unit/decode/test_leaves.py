"""wal2json's lines of a partitioned table: whose rows they are."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cdcwatch.decode.change import DELETE, INSERT, Change, Truncate
from cdcwatch.decode.leaves import FOREIGN, GONE, LEAF, Leaves, PartitionedWal2JsonDecoder
from cdcwatch.decode.wal2json import Wal2JsonDecoder
from cdcwatch.errors import DecodeError, UnavailableError
from cdcwatch.table import Column, Leaf
from tests.fakes.table import WATCHED
from tests.wal2json import instant, render

LOW = Leaf(1, "public", "low", 1)
TABLE = replace(WATCHED, leaves=(LOW,))
VALUES = {"id": 7, "status": "pending", "expires_at": instant(850_000_000_000_000), "version": 0}


def line(action, name, schema="public", columns=VALUES, identity=None, lsn=0x2000):
    return render(action, replace(TABLE, schema=schema, name=name), columns=columns, identity=identity, lsn=lsn)


class Catalog:
    def __init__(self, **standings):
        self.standings, self.asked = standings, []

    def ask(self, schema, name):
        self.asked.append((schema, name))
        standing = self.standings.get(name, GONE)
        if isinstance(standing, Exception):
            raise standing
        return standing


def decoder(catalog=None, table=TABLE):
    leaves = Leaves(table, (catalog or Catalog()).ask)
    return PartitionedWal2JsonDecoder(table, leaves), leaves


def test_everything_is_asked_for_and_a_leafs_row_is_the_tables():
    of_leaves, _ = decoder()
    assert "add-tables" not in of_leaves.options()
    assert set(of_leaves.options()) | {"add-tables"} == set(Wal2JsonDecoder(TABLE).options())
    plain = Wal2JsonDecoder(replace(TABLE, name="low"))
    for told in (
        line("I", "low"),
        line("U", "low", identity={"id": 7}),
        line("D", "low", columns=None, identity={"id": 7}),
    ):
        assert of_leaves.decode(told) == plain.decode(told) != None  # noqa: E711


def test_a_name_that_was_never_seen_is_asked_for_once_before_its_row_is_passed_over():
    catalog = Catalog(**{"new": LEAF, 'od"d': LEAF, "other": FOREIGN})
    of_leaves, _ = decoder(catalog)
    for _ in range(2):
        assert isinstance(of_leaves.decode(line("I", "new")), Change)
        assert isinstance(of_leaves.decode(line("I", 'od"d', schema="My.Shop")), Change)
        assert of_leaves.decode(line("I", "other")) is None
    assert catalog.asked == [("public", "new"), ("My.Shop", 'od"d'), ("public", "other")]


def test_a_catalog_that_is_away_is_asked_again():
    catalog = Catalog(new=UnavailableError("away", remedy="-"))
    of_leaves, _ = decoder(catalog)
    with pytest.raises(UnavailableError):
        of_leaves.decode(line("I", "new"))
    catalog.standings["new"] = LEAF
    assert isinstance(of_leaves.decode(line("I", "new")), Change)


def test_rows_like_ours_of_a_table_that_is_gone_stop_the_stream_unless_the_table_was_read_after_them():
    of_leaves, leaves = decoder()
    for told in (line("I", "gone"), line("D", "gone", columns=None, identity={"id": 7})):
        with pytest.raises(DecodeError, match=r"rows of public\.gone, which is gone") as caught:
            of_leaves.decode(told)
        assert "--accept-gap" in caught.value.remedy
    assert of_leaves.decode(line("I", "scratch", columns={"id": 7, "n": 1})) is None
    with pytest.raises(DecodeError, match=r"rows of public\.gone"):
        of_leaves.decode(line("I", "gone").replace(b"pending", b"\xe9"))
    leaves.forgive_before(0x2001)
    assert of_leaves.decode(line("I", "gone")) is None
    with pytest.raises(DecodeError):
        of_leaves.decode(line("I", "gone", lsn=0x2001))


def test_partitions_come_and_go():
    of_leaves, leaves = decoder(Catalog(new=FOREIGN, low=FOREIGN))
    new = Leaf(2, "public", "new", 2)
    assert of_leaves.decode(line("I", "new")) is None
    leaves.admit(new)
    change = of_leaves.decode(line("I", "new"))
    assert isinstance(change, Change)
    assert change.kind == INSERT
    leaves.dismiss(LOW)
    assert of_leaves.decode(line("I", "low")) is None


def test_of_a_truncate_the_tables_own_line_counts():
    of_leaves, _ = decoder()
    assert of_leaves.decode(line("T", "low", columns=None)) is None
    assert of_leaves.decode(line("T", "orders", columns=None)) == Truncate()


def test_a_key_that_is_no_integer_takes_the_long_way():
    table = replace(TABLE, key=(Column("id", "uuid"),))
    of_leaves, _ = decoder(table=table)
    change = of_leaves.decode(line("D", "low", columns=None, identity={"id": "a"}))
    assert isinstance(change, Change)
    assert (change.kind, change.key) == (DELETE, "a")
