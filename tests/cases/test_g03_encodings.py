"""G3, G5, G7, G8: bytes that are no UTF-8, other encodings, large rows, generated columns."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING

import psycopg
import pytest

from cdcwatch.decode.change import Change
from cdcwatch.decode.wal2json import Recoding, Wal2JsonDecoder
from cdcwatch.errors import DecodeError
from cdcwatch.settings import Settings
from cdcwatch.slot.catalog import load_table
from cdcwatch.slot.encodings import codec
from tests.fakes.table import WATCHED
from tests.services import Database, _drop_slots
from tests.streams import Streams, kinds_and_keys
from tests.waiting import wait_until
from tests.wal2json import render

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services import Postgres

TABLE = "CREATE TABLE orders (id text PRIMARY KEY, status text, expires_at timestamptz, version int, note text)"


@contextmanager
def encoded(postgres: Postgres, encoding: str) -> Iterator[Streams]:
    """Streams of a database in another encoding."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres.dsn(), autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")  # type: ignore[call-overload]
        streams = Streams(Database(name, postgres.dsn(dbname=name)))
        try:
            streams.connection.execute(TABLE)
            yield streams
        finally:
            streams.close()
            wait_until(lambda: _drop_slots(admin, name), 20, "its slots are dropped")
            admin.execute(f"DROP DATABASE {name} WITH (FORCE)")  # type: ignore[call-overload]


def test_g03_pgoutput_is_not_troubled_by_columns_that_are_not_watched(postgres: Postgres) -> None:
    with encoded(postgres, "SQL_ASCII") as streams:
        watched = streams.watch("orders")
        streams.connection.execute(r"INSERT INTO orders VALUES ('1', 'pending', '2030-01-01', 0, E'\xe9')")
        messages = streams.read("pgoutput", watched.table, watched.settings.slot.publication)
        assert kinds_and_keys(messages) == ["insert 1"]


ENCODINGS = [("LATIN1", "réservé"), ("LATIN9", "€uro"), ("WIN1251", "ждёт"), ("KOI8R", "ждёт"), ("EUC_JP", "保留中")]


@pytest.mark.parametrize(("encoding", "word"), ENCODINGS)
def test_g03_another_encoding_is_converted(postgres: Postgres, encoding: str, word: str) -> None:
    """wal2json's lines come in the database's own, pgoutput's texts in ours."""
    with encoded(postgres, encoding) as streams:
        streams.connection.execute(
            TABLE.replace("status", f'"{word}"').replace("orders", f'"{word}"')  # type: ignore[call-overload]
        )
        watched = streams.watch(f'"{word}"', status=word, open=(word,))
        streams.connection.execute(f"INSERT INTO \"{word}\" VALUES ('\"{word}', '{word}', '2030-01-01', 0, '{word}')")  # type: ignore[call-overload]
        messages = watched.read()
        (change,) = [message for message in messages if isinstance(message, Change)]
        assert change.key == f'"{word}'
        assert change.new is not None
        assert change.new.status == word
        assert watched.follow(messages) == watched.in_table()


def test_g03_what_is_not_in_the_databases_encoding_stops_the_stream() -> None:
    with pytest.raises(DecodeError) as caught:
        Recoding(Wal2JsonDecoder(WATCHED), "euc_jp").decode(render("D", WATCHED, identity={"id": 7}) + b"\xff")
    assert "euc_jp" in str(caught.value)


def test_g03_every_encoding_of_a_server_is_known_or_checked(postgres: Postgres) -> None:
    with psycopg.connect(postgres.dsn()) as connection:
        rows = connection.execute("SELECT pg_encoding_to_char(n) FROM generate_series(0, 34) AS n").fetchall()
    unknown = {name for (name,) in rows if not codec(name)}
    assert unknown == {"UTF8", "SQL_ASCII", "EUC_TW", "MULE_INTERNAL"}


@pytest.fixture
def streams(database: Database) -> Iterator[Streams]:
    streams = Streams(database)
    yield streams
    streams.close()


def test_g07_an_event_is_small_however_large_the_row_is(streams: Streams) -> None:
    streams.connection.execute(TABLE)
    streams.connection.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
    watched = streams.watch("orders")
    streams.connection.execute("INSERT INTO orders VALUES ('1', 'pending', '2030-01-01', 0, repeat('\"', 2000000))")
    streams.connection.execute("UPDATE orders SET expires_at = '2031-01-01'")
    events = watched.events(watched.read())
    assert len(events) == 2
    assert all(len(event.value) < 600 for event in events)


@pytest.mark.parametrize("generated", ["expires_at", "status"])
def test_g08_wal2json_tells_generated_columns(database: Database, generated: str) -> None:
    """pgoutput does from PostgreSQL 18 on; before, `check` refuses."""
    streams = Streams(database, plugins=["wal2json"])
    try:
        streams.connection.execute(
            "CREATE TABLE orders (id int PRIMARY KEY, version int, made timestamptz, days int,"
            " status text GENERATED ALWAYS AS (CASE WHEN days > 0 THEN 'pending' END) STORED,"
            " expires_at timestamptz GENERATED ALWAYS AS (made) STORED)"
            if generated == "expires_at"
            else "CREATE TABLE orders (id int PRIMARY KEY, version int, expires_at timestamptz, days int,"
            " status text GENERATED ALWAYS AS (CASE WHEN days > 0 THEN 'pending' END) STORED)"
        )
        with streams.connection.cursor() as cursor:
            cursor.execute("SELECT pg_logical_slot_get_binary_changes(%s, NULL, NULL)", [streams._slot("wal2json")])
        table = load_table(streams.connection, Settings())
        first = "made" if generated == "expires_at" else "expires_at"
        streams.connection.execute(
            f"INSERT INTO orders (id, version, {first}, days) VALUES (1, 0, '2030-01-01 00:00+00', 1)"  # type: ignore[call-overload]
        )
        streams.connection.execute("UPDATE orders SET days = 0")
        changes = [message.new for message in streams.read("wal2json", table, "") if isinstance(message, Change)]
        assert [(row.deadline_us, row.status) for row in changes if row] == [
            (946_771_200_000_000, "pending"),
            (946_771_200_000_000, None),
        ]
    finally:
        streams.close()
