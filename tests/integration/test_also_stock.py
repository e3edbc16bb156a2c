"""`close.also` on an inventory: what an order holds is released once for each order that is closed, and for no other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cdcwatch.close.outcome import Outcome
from tests.orders import Orders

if TYPE_CHECKING:
    from tests.services import Database

STOCK = """
CREATE TABLE stock (sku text PRIMARY KEY, reserved integer NOT NULL CHECK (reserved >= 0));
CREATE TABLE lines (cart_id bigint NOT NULL, sku text NOT NULL REFERENCES stock, pieces integer NOT NULL);
CREATE TABLE released (cart_id bigint PRIMARY KEY);
INSERT INTO stock VALUES ('a', 0), ('b', 0), ('c', 0);
"""
HELD = """
INSERT INTO lines SELECT id, sku, id % 3 + 1 FROM orders, stock;
UPDATE stock SET reserved = total FROM (SELECT sku, sum(pieces) AS total FROM lines GROUP BY sku) AS held WHERE held.sku = stock.sku;
"""
# As docs/configuration.md has it, with the rows locked in one order before.
ALSO = """
SELECT FROM stock WHERE sku IN (SELECT sku FROM lines JOIN closed ON lines.cart_id = closed.id) ORDER BY sku FOR UPDATE;
UPDATE stock SET reserved = stock.reserved - given.pieces
  FROM (SELECT lines.sku, sum(lines.pieces) AS pieces FROM lines JOIN closed ON lines.cart_id = closed.id GROUP BY lines.sku) AS given
 WHERE stock.sku = given.sku;
INSERT INTO released SELECT id FROM closed;
"""
# An order of which more was given back already than it holds: the release is refused. And one that the database refuses itself.
BROKEN = "UPDATE lines SET pieces = 100000 WHERE cart_id = 5 AND sku = 'b'"
REFUSED = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused'; END $$;
CREATE TRIGGER refuse BEFORE UPDATE OR DELETE ON orders FOR EACH ROW WHEN (old.id = 11) EXECUTE FUNCTION refuse();
"""


@pytest.mark.parametrize("deletes", [False, True], ids=["update", "delete"])
def test_stock_is_released_with_the_close_or_not_at_all(database: Database, deletes: bool) -> None:
    orders = Orders(database, deletes=deletes)
    connection = orders.connection
    table = orders.open_table(also=ALSO)
    try:
        connection.execute(STOCK)
        orders.insert(*range(40))
        orders.insert(50, due_in_s=3600)
        orders.insert(51, status="paid")
        connection.execute(HELD + REFUSED)
        connection.execute(BROKEN)
        batch = [due for chunk in table.open_deadlines(None, 10**15) for due in chunk]
        assert len(batch) == 41
        with database.connect(autocommit=False) as payer:
            payer.execute("SELECT FROM orders WHERE id = 20 FOR UPDATE")
            report = table.close(batch)
        outcomes = {one.due.key: one.outcome for one in report.unclosed}
        assert outcomes == {5: Outcome.FAILED, 11: Outcome.FAILED, 20: Outcome.LOCKED, 50: Outcome.NOT_DUE}
        # The batch again, and the connection lost over it with the rows changed and not committed.
        assert table._connection is not None
        pid = table._connection.info.backend_pid
        connection.execute(
            "CREATE FUNCTION die() RETURNS trigger LANGUAGE plpgsql AS"
            f" $$ BEGIN PERFORM pg_terminate_backend({pid}); PERFORM pg_sleep(60); END $$;"  # type: ignore[arg-type]
            "CREATE TRIGGER die AFTER INSERT ON released FOR EACH ROW EXECUTE FUNCTION die()"
        )
        with pytest.raises(Exception, match="connection broke"):
            table.close(batch)
        connection.execute("DROP TRIGGER die ON released")
        table.disconnect()
        table.connect()
        assert [one.key for one in table.close(batch).closed] == [20]
        assert [one.key for one in table.close(batch).closed] == []
        # Mended, they are closed like any other.
        connection.execute("UPDATE lines SET pieces = 3 WHERE cart_id = 5; DROP TRIGGER refuse ON orders")
        assert sorted(one.key for one in table.close(batch).closed) == [5, 11]
        left = connection.execute("SELECT sku, reserved FROM stock ORDER BY sku").fetchall()
        held = connection.execute(
            "SELECT sku, sum(pieces)::int FROM lines WHERE cart_id IN (50, 51) GROUP BY sku ORDER BY sku"
        ).fetchall()
        assert left == held, "what is open or paid holds what it did"
        assert connection.execute("SELECT count(*) FROM released").fetchone() == (40,)
    finally:
        table.disconnect()
        connection.close()
