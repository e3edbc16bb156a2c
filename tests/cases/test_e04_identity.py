"""E4, E3: without a usable key and identity UPDATE and DELETE vanish: refused, with the statement that mends it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.command import ORDERS, cdcwatch, run_to_the_end, write_configuration
from tests.slots import QUIET

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (ORDERS + "; ALTER TABLE orders REPLICA IDENTITY NOTHING", "is NOTHING"),
        (ORDERS.replace("PRIMARY KEY", "PRIMARY KEY DEFERRABLE"), "lacks key columns (id)"),
        (
            ORDERS + "; CREATE UNIQUE INDEX gone ON orders (id); ALTER TABLE orders REPLICA IDENTITY USING INDEX gone;"
            " DROP INDEX gone",
            "lacks key columns (id)",
        ),
        (ORDERS.replace("PRIMARY KEY", "NOT NULL"), "no primary key"),
    ],
    ids=["nothing", "deferrable", "dropped index", "no key"],
)
def test_e04_what_hides_updates_is_refused_and_its_remedy_mends_it(
    database: Database, tmp_path: Path, statements: str, said: str
) -> None:
    shop = write_configuration(tmp_path / "shop.toml", database.dsn, QUIET)
    with database.connect() as connection:
        connection.execute(statements)  # type: ignore[call-overload]
        told = json.loads(cdcwatch("check", "--json", "-c", shop).out)["checks"]
        flaw = next(one for one in told if one["name"] == "table")
        assert flaw["state"] == "fail"
        assert said in flaw["message"]
        assert cdcwatch("check", "-c", shop).code == 1
        assert cdcwatch("slot", "create", "-c", shop).code == 3
        assert run_to_the_end("run", "-c", shop).code == 3
        connection.execute(flaw["remedy"].partition(", or ")[0].replace("(…)", "(id)"))
        assert cdcwatch("check", "-c", shop).code == 0


def test_e03_a_key_of_several_columns_is_watched_and_explained(database: Database, tmp_path: Path) -> None:
    shop = write_configuration(tmp_path / "shop.toml", database.dsn, QUIET)
    with database.connect() as connection:
        connection.execute(
            "CREATE TABLE orders (id uuid, region char(5), status text, expires_at timestamptz, version int,"
            " PRIMARY KEY (region, id))"
        )
        connection.execute(
            "INSERT INTO orders VALUES ('A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', 'eu', 'pending', '2030-01-01', 3)"
        )
    assert cdcwatch("check", "-c", shop).code == 0
    story = json.loads(cdcwatch("explain", "eu", "A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11", "--json", "-c", shop).out)
    assert story["key"] == {"region": "eu   ", "id": "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"}
    assert story["row"]["version"] == 3
    assert cdcwatch("explain", "eu", "-c", shop).code == 2
    assert cdcwatch("explain", "eu", "no-uuid", "-c", shop).code == 2
