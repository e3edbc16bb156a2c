"""Tables as they are, for the close that updates and the one that claims: booleans, policies, triggers in the way.

The close that deletes has them in test_close_delete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from psycopg.conninfo import make_conninfo

from cdcwatch.close.claim import ClaimTable, Takes
from cdcwatch.close.clock import SystemClock
from cdcwatch.close.outcome import CloseReport, Outcome
from cdcwatch.close.update import PostgresTable
from cdcwatch.table import ClaimStatuses, Column
from tests.orders import Orders

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services import Database

SUPPRESS = """
CREATE FUNCTION keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
CREATE TRIGGER keep BEFORE UPDATE ON orders FOR EACH ROW WHEN (old.id = 2) EXECUTE FUNCTION keep()
"""
POLICIES = """
GRANT SELECT, UPDATE ON orders TO {role}; ALTER TABLE orders ENABLE ROW LEVEL SECURITY;
CREATE POLICY seen ON orders FOR SELECT USING (id <> 2);
CREATE POLICY changed ON orders FOR UPDATE USING (id <> 3) WITH CHECK (id <> 4)
"""


@pytest.fixture(params=["update", "claim"])
def orders(request: pytest.FixtureRequest, database: Database) -> Iterator[Orders]:
    claims = request.param == "claim"
    orders = Orders(database, claim=ClaimStatuses("closing", "close_failed") if claims else None)
    if claims:
        orders.make_claims()
    yield orders
    orders.connection.close()


def close_all(orders: Orders, **connection: Any) -> tuple[list[Any], CloseReport]:
    """What a batch of all that is open came to: the keys that were closed or claimed, and the report."""
    dsn = make_conninfo(orders.database.dsn, **connection)
    if orders.watched.claim is None:
        table = PostgresTable(dsn, orders.watched, SystemClock())
    else:
        takes = Takes(lambda _claims: None, lambda: True)
        table = ClaimTable(dsn, orders.watched, SystemClock(), stuck_after_s=300, takes=takes)
    finding = orders.open_table()
    table.connect()
    try:
        report = table.close([due for chunk in finding.open_deadlines(None, 10**15) for due in chunk])
    finally:
        table.disconnect()
        finding.disconnect()
    return sorted([*report.claimed, *(one.key for one in report.closed)]), report


def outcomes(report: CloseReport) -> dict[Any, Outcome]:
    return {one.due.key: one.outcome for one in report.unclosed}


def test_a_row_that_a_trigger_keeps_from_changing_has_failed(orders: Orders) -> None:
    orders.insert(1, 2, 3)
    orders.connection.execute(SUPPRESS)
    closed, report = close_all(orders)
    assert (closed, outcomes(report)) == ([1, 3], {2: Outcome.FAILED})
    assert report.error == "the UPDATE changed no row: a trigger?"


def test_what_policies_hide_lock_and_refuse_is_told_row_by_row(orders: Orders, role: str) -> None:
    orders.insert(1, 2, 3, 4, 5)
    orders.connection.execute(POLICIES.format(role=role))  # type: ignore[call-overload]
    if orders.watched.claim is not None:
        orders.connection.execute(
            f"GRANT USAGE ON SCHEMA cdcwatch TO {role}; GRANT ALL ON cdcwatch.claims TO {role}"  # type: ignore[arg-type]
        )
    closed, report = close_all(orders, user=role)
    assert closed == [1, 5]
    assert outcomes(report) == {2: Outcome.GONE, 3: Outcome.LOCKED, 4: Outcome.FAILED}
    # About this row alone: it is given up with a dead letter, where a missing right would be waited for.
    assert [one.is_tables_fault for one in report.unclosed if one.due.key == 4] == [False]
    assert orders.connection.execute("SELECT count(*) FROM orders WHERE status = 'pending'").fetchone() == (3,)


def test_a_missing_right_is_no_orders_fault(orders: Orders, role: str) -> None:
    orders.insert(1)
    orders.connection.execute(f"GRANT SELECT ON orders TO {role}")  # type: ignore[arg-type]
    if orders.watched.claim is not None:
        orders.connection.execute(
            f"GRANT USAGE ON SCHEMA cdcwatch TO {role}; GRANT ALL ON cdcwatch.claims TO {role}"  # type: ignore[arg-type]
        )
    _, report = close_all(orders, user=role)
    assert [(one.outcome, one.is_tables_fault) for one in report.unclosed] == [(Outcome.FAILED, True)]


@pytest.mark.parametrize("deletes", [False, True], ids=["update", "delete"])
def test_a_status_that_is_a_boolean(database: Database, deletes: bool) -> None:
    orders = Orders(
        database,
        status=Column("status", "boolean"),
        open=("false",),
        closed_status="true",
        deletes=deletes,
        deadline_type="timestamp without time zone",
        zone="UTC",
        extra="more text",
    )
    try:
        orders.connection.execute(
            "INSERT INTO orders VALUES (1, now() AT TIME ZONE 'UTC' - interval '1 s', false, 0),"
            " (2, now() AT TIME ZONE 'UTC' - interval '1 s', true, 0), (3, NULL, false, 0), (4, now(), NULL, 0)"
        )
        closed, report = close_all(orders)
        assert (closed, report.unclosed) == ([1], [])
        rows = orders.connection.execute("SELECT id, status FROM orders ORDER BY id").fetchall()
        assert rows == [*([] if deletes else [(1, True)]), (2, True), (3, False), (4, None)]
    finally:
        orders.connection.close()
