"""H6, H7, H8: a partitioned table is watched as one by pgoutput; each leaf has a replica identity of its own."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.command import ORDERS, cdcwatch, write_configuration
from tests.slots import QUIET

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database

TABLE = ORDERS + " PARTITION BY RANGE (id)"


@pytest.fixture
def published(database: Database, tmp_path: Path) -> Path:
    with database.connect() as connection:
        connection.execute(TABLE)  # type: ignore[call-overload]
        connection.execute("CREATE TABLE low PARTITION OF orders FOR VALUES FROM (0) TO (100)")
        connection.execute("CREATE TABLE high PARTITION OF orders FOR VALUES FROM (100) TO (200)")
    return write_configuration(
        tmp_path / "pgoutput.toml",
        database.dsn,
        f'[slot]\nname = "slot_{database.name}"\nplugin = "pgoutput"\n' + QUIET,
    )


def _check(shop: Path, name: str) -> dict[str, str]:
    told = json.loads(cdcwatch("check", "--json", "-c", shop).out)["checks"]
    return dict(next(one for one in told if one["name"] == name))


@pytest.fixture(params=["wal2json", "pgoutput"])
def shop(request: pytest.FixtureRequest, published: Path) -> Path:
    published.write_text(published.read_text().replace("pgoutput", request.param))
    return published


def test_h07_changes_come_in_the_tables_name_from_new_partitions_too(database: Database, shop: Path) -> None:
    published = shop
    assert cdcwatch("check", "-c", published).code == 0
    assert cdcwatch("slot", "create", "-c", published).code == 0
    with database.connect() as connection:
        connection.execute("CREATE TABLE later PARTITION OF orders FOR VALUES FROM (200) TO (300)")
        connection.execute("INSERT INTO orders SELECT n, 'pending', '2030-01-01' FROM generate_series(50, 250, 100) n")
        connection.execute("UPDATE orders SET id = 160 WHERE id = 50")  # moves to another partition
    shown = json.loads(cdcwatch("slot", "peek", "--json", "--explain", "-c", published).out)["changes"]
    assert [(one["kind"], one["key"]) for one in shown] == [
        ("insert", "50"), ("insert", "150"), ("insert", "250"), ("delete", "50"), ("insert", "160"),
    ]  # fmt: skip
    assert _check(published, "table")["message"].endswith("3 partitions")


@pytest.mark.parametrize(("root", "leaf"), [("DEFAULT", "NOTHING"), ("FULL", "DEFAULT"), ("FULL", "NOTHING")])
def test_h08_a_leaf_that_logs_less_than_its_parent_promises_is_named(
    database: Database, published: Path, root: str, leaf: str
) -> None:
    with database.connect() as connection:
        for table, identity in (("orders", root), ("low", root), ("high", leaf)):
            connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY {identity}")  # type: ignore[call-overload]
        flaw = _check(published, "table")
        assert flaw["state"] == "fail"
        assert "1 of 2 partitions" in flaw["message"]
        assert "public.high" in flaw["message"]
        assert cdcwatch("slot", "create", "-c", published).code == 3
        connection.execute(flaw["remedy"])
        assert _check(published, "table")["state"] == "ok"
        # A new leaf does not inherit it either.
        connection.execute("CREATE TABLE later PARTITION OF orders FOR VALUES FROM (200) TO (300)")
        assert _check(published, "table")["state"] == ("fail" if root == "FULL" else "ok")


@pytest.mark.parametrize("remedy", [0, 1], ids=["publication", "partition"])
@pytest.mark.parametrize("root", ["DEFAULT", "USING INDEX wide"])
def test_h08_a_leaf_whose_identity_makes_the_server_refuse_every_close_is_named(
    database: Database, published: Path, root: str, remedy: int
) -> None:
    """The list of all columns is told from none; every leaf's UPDATE through the parent is refused for one leaf."""
    with database.connect() as connection:
        connection.execute("CREATE UNIQUE INDEX wide ON orders (id, status, expires_at)")
        for table, index in (
            ("orders", "wide"),
            *((leaf, f"{leaf}_id_status_expires_at_idx") for leaf in ("low", "high")),
        ):
            connection.execute(f"ALTER TABLE {table} REPLICA IDENTITY {root.replace('wide', index)}")  # type: ignore[call-overload]
        assert cdcwatch("slot", "create", "-c", published).code == 0
        connection.execute("INSERT INTO orders VALUES (1, 'pending', '2030-01-01')")
        connection.execute("ALTER TABLE high REPLICA IDENTITY FULL")
        with pytest.raises(psycopg.errors.InvalidColumnReference):
            connection.execute("UPDATE orders SET version = version + 1 WHERE status = 'pending'")
        flaw = _check(published, "publication")
        assert flaw["state"] == "fail"
        assert "the replica identity of public.high doesn't go with" in flaw["message"]
        connection.execute(flaw["remedy"].split("; or ")[remedy])
        assert _check(published, "publication")["state"] == "ok"
        connection.execute("UPDATE orders SET version = version + 1 WHERE status = 'pending'")


def test_h08_to_wal2json_the_key_is_enough_and_nothing_too_little(database: Database, published: Path) -> None:
    published.write_text(published.read_text().replace("pgoutput", "wal2json"))
    with database.connect() as connection:
        connection.execute("ALTER TABLE orders REPLICA IDENTITY FULL; ALTER TABLE low REPLICA IDENTITY FULL")
        assert _check(published, "table")["state"] == "ok"
        connection.execute("ALTER TABLE high REPLICA IDENTITY NOTHING")
        flaw = _check(published, "table")
        assert (flaw["state"], "public.high" in flaw["message"]) == ("fail", True)
        connection.execute(flaw["remedy"])
        assert _check(published, "table")["state"] == "ok"


def test_h06_partitions_that_are_not_in_the_wal(database: Database, published: Path) -> None:
    with database.connect() as connection:
        connection.execute("CREATE UNLOGGED TABLE later PARTITION OF orders FOR VALUES FROM (200) TO (300)")
        flaw = _check(published, "table")
        assert "are unlogged: public.later" in flaw["message"]
        connection.execute(flaw["remedy"])
        assert _check(published, "table")["state"] == "ok"


def test_h06_due_orders_are_found_by_an_index_of_every_partition(database: Database, published: Path) -> None:
    def making(connection: psycopg.Connection[object]) -> dict[str, str]:
        return _check(published, "index")

    with database.connect() as connection:
        connection.execute("CREATE INDEX ON low (expires_at) WHERE status = 'pending'")
        flaw = making(connection)
        assert flaw["state"] == "warn"
        connection.execute(flaw["remedy"].partition(" -- ")[0])
        assert making(connection)["state"] == "ok"


def _mended(connection: psycopg.Connection[object], remedy: str) -> None:
    """Statement by statement: CONCURRENTLY stands alone."""
    for statement in remedy.split("; "):
        connection.execute(statement)  # type: ignore[call-overload]


def test_h08_a_leaf_that_tells_wal2json_less_than_its_parent_promises_is_warned_of(
    database: Database, published: Path
) -> None:
    published.write_text(published.read_text().replace("pgoutput", "wal2json"))
    with database.connect() as connection:
        connection.execute("CREATE UNIQUE INDEX wide ON orders (id, status, expires_at)")
        connection.execute("ALTER TABLE orders REPLICA IDENTITY USING INDEX wide")
        flaw = _check(published, "identity")
        assert flaw["state"] == "warn"
        assert "2 of 2 partitions log the key only" in flaw["message"]
        connection.execute("ALTER TABLE low REPLICA IDENTITY FULL")
        flaw = _check(published, "identity")
        assert "1 of 2 partitions log the key only, whatever their parent does: public.high;" in flaw["message"]
        _mended(connection, flaw["remedy"])
        assert _check(published, "identity")["state"] == "ok"
        connection.execute("CREATE TABLE later PARTITION OF orders FOR VALUES FROM (200) TO (300)")
        assert "public.later" in _check(published, "identity")["message"]


def test_h08_the_remedy_for_the_identity_works_partition_by_partition(database: Database, shop: Path) -> None:
    with database.connect() as connection:
        connection.execute("ALTER TABLE orders ALTER status DROP NOT NULL, ALTER expires_at DROP NOT NULL")
        connection.execute(
            "CREATE TABLE deep PARTITION OF orders FOR VALUES FROM (200) TO (300) PARTITION BY RANGE (id)"
        )
        connection.execute("CREATE TABLE deeper PARTITION OF deep FOR VALUES FROM (200) TO (250)")
        flaw = _check(shop, "identity")
        assert flaw["state"] == "warn"
        _mended(connection, flaw["remedy"])
        assert _check(shop, "identity")["state"] == "ok"
        assert _check(shop, "table")["state"] == "ok"
