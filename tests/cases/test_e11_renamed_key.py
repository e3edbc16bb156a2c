"""E7, E11: the order's key is the catalog's, whatever the replica identity is made of and however its column is renamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cdcwatch.errors import DecodeError
from tests.streams import PLUGINS, Streams, kinds_and_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services import Database

TABLE = (
    "CREATE TABLE orders (status text NOT NULL, id bigint PRIMARY KEY, expires_at timestamptz NOT NULL, version int)"
)
STATEMENTS = (
    "INSERT INTO orders VALUES ('pending', 1, '2030-01-01', 0)",
    "UPDATE orders SET status = 'paid'",
    "UPDATE orders SET {key} = 2",
    "DELETE FROM orders",
)
IDENTITIES = [
    "REPLICA IDENTITY DEFAULT",
    "REPLICA IDENTITY FULL",
    "ADD CONSTRAINT wide UNIQUE (status, expires_at, id), REPLICA IDENTITY USING INDEX wide",
]


@pytest.fixture
def streams(database: Database) -> Iterator[Streams]:
    streams = Streams(database)
    streams.connection.execute(TABLE)
    yield streams
    streams.close()


@pytest.mark.parametrize("identity", IDENTITIES)
def test_e07_e11_a_key_that_was_renamed_is_known_by_its_new_name(streams: Streams, identity: str) -> None:
    alteration = identity.partition(", REPLICA")[0]
    streams.connection.execute(f"ALTER TABLE orders {alteration}")  # type: ignore[call-overload]
    if ", " in identity and "USING" in identity:
        streams.connection.execute("ALTER TABLE orders REPLICA IDENTITY USING INDEX wide")
    streams.connection.execute("ALTER TABLE orders RENAME id TO order_id")
    watched = streams.watch("orders")
    for statement in STATEMENTS:
        streams.connection.execute(statement.format(key="order_id"))  # type: ignore[call-overload]
    assert kinds_and_keys(watched.read()) == ["insert 1", "-", "update 1", "-", "update 1->2", "-", "delete 2"]


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("column", ["id", "status", "expires_at", "version"])
def test_e11_a_column_renamed_under_way_stops_the_stream_by_name(streams: Streams, column: str, plugin: str) -> None:
    watched = streams.watch("orders")
    streams.connection.execute(f"ALTER TABLE orders RENAME {column} TO other")  # type: ignore[call-overload]
    streams.connection.execute("INSERT INTO orders VALUES ('pending', 1, '2030-01-01', 0)")
    with pytest.raises(DecodeError, match=f"no column '{column}': it was"):
        streams.read(plugin, watched.table, watched.settings.slot.publication)
