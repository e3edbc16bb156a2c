"""D3, D4: other tables that are called alike are not ours, TRUNCATE included, whatever the server lets through."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from tests.streams import PLUGINS, Streams, kinds_and_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services import Database

COLUMNS = "(id bigint PRIMARY KEY, status text, expires_at timestamptz, version int)"
OTHERS = ["a.orders", "public.order", "public.orders2", 'public."Orders"', 'public."public.orders"', '"public.o".rders']


@pytest.fixture
def streams(database: Database) -> Iterator[Streams]:
    streams = Streams(database)
    yield streams
    streams.close()


@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize("schema", ["public", "a", "o"])
def test_d03_d04_only_the_watched_table_is_told_of(streams: Streams, schema: str, plugin: str) -> None:
    connection = streams.connection
    ours = f"{schema}.orders"
    others = ["public.orders" if other == ours else other for other in OTHERS]
    connection.execute('CREATE SCHEMA IF NOT EXISTS a; CREATE SCHEMA IF NOT EXISTS o; CREATE SCHEMA "public.o"')
    for table in [ours, *others]:
        connection.execute(f"CREATE TABLE {table} {COLUMNS}")  # type: ignore[call-overload]
    watched = streams.watch(ours)
    publication = watched.settings.slot.publication
    name = sql.Identifier(publication)
    # As a publication that somebody made for everything, and a wal2json of old that filtered badly.
    connection.execute(sql.SQL("DROP PUBLICATION {0}; CREATE PUBLICATION {0} FOR ALL TABLES").format(name))
    for table in [*others, ours]:
        connection.execute(
            f"INSERT INTO {table} VALUES (1, 'pending', '2020-01-01', 0);"  # type: ignore[call-overload]
            f" UPDATE {table} SET status = 'paid'; DELETE FROM {table}; TRUNCATE {table}"
        )
    for table in others:
        connection.execute(f"TRUNCATE {table}")  # type: ignore[call-overload]
    messages = streams.read(plugin, watched.table, publication, unfiltered=True)
    assert kinds_and_keys(messages) == ["insert 1", "update 1", "delete 1", "truncate"]
