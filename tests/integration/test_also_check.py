"""`check` on close.also: parsed, names and rights looked up, nothing run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cdcwatch.database import connect
from cdcwatch.inspection.also import also_check
from cdcwatch.settings import CloseSettings, PostgresSettings, Settings

if TYPE_CHECKING:
    from tests.services import Database

SCHEMA = """
CREATE TABLE orders (id bigint PRIMARY KEY, status text, expires_at timestamptz, version int);
CREATE TABLE stock (order_id bigint, free int);
INSERT INTO stock VALUES (1, 5)
"""
GIVE = "UPDATE stock SET free = free + 1 FROM closed WHERE stock.order_id = closed.id"


def _said(database: Database, also: str, *, action: str = "update", options: str = "") -> tuple[str, str] | None:
    settings = Settings(
        postgres=PostgresSettings(dsn=database.dsn),
        close=CloseSettings(action=action, also=also),  # type: ignore[arg-type]
    )
    with connect(f"{database.dsn} options='{options}'", application_name="test") as connection:
        check = also_check(connection, settings)
    return None if check is None else (check.state, check.message)


@pytest.fixture
def shop(database: Database) -> Database:
    with database.connect() as connection:
        connection.execute(SCHEMA.encode())
    return database


@pytest.mark.parametrize(
    ("also", "said"),
    [
        (GIVE, ("ok", "close.also is understood; it was not run")),
        (
            f"{GIVE}; DELETE FROM stock USING closed WHERE order_id = id;",
            ("ok", "close.also is understood; it was not run"),
        ),
        ("SELECT 1 WHERE '%s' LIKE '%';", ("ok", "close.also is understood; it was not run")),
        ("SELEKT 1", ("fail", 'close.also can\'t be run: syntax error at or near "SELEKT"')),
        (
            GIVE.replace("closed.id", "closed.seat_id"),
            ("fail", "close.also can't be run: column closed.seat_id does not exist"),
        ),
        (f"{GIVE}; DELETE FROM stokk", ("fail", 'close.also can\'t be run: relation "stokk" does not exist')),
    ],
)
def test_it_is_understood_or_not_and_never_run(shop: Database, also: str, said: tuple[str, str]) -> None:
    assert _said(shop, also) == said
    with shop.connect() as connection:
        assert connection.execute("SELECT free FROM stock").fetchall() == [(5,)]
        assert connection.execute("SELECT to_regclass('closed')").fetchall() == [(None,)]


def test_a_missing_right_is_seen_and_nothing_is_said_where_there_is_nothing(shop: Database) -> None:
    with shop.connect() as connection:
        connection.execute("CREATE ROLE also_reader; GRANT SELECT, UPDATE ON orders TO also_reader")
        try:
            assert _said(shop, GIVE, options="-c role=also_reader") == (
                "fail",
                "close.also is refused: permission denied for table stock",
            )
        finally:
            connection.execute("DROP OWNED BY also_reader; DROP ROLE also_reader")
    assert _said(shop, "") is None
    assert _said(shop, GIVE, action="none") is None
