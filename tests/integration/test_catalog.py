"""The watched table as a real catalog has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from cdcwatch.errors import PreconditionError
from cdcwatch.settings import Settings, TableSettings
from cdcwatch.slot.catalog import load_table, read_table
from cdcwatch.slot.facts import read_facts
from cdcwatch.table import Column
from tests.command import ORDERS

if TYPE_CHECKING:
    import psycopg

    from tests.services import Database


def _settings(**table: Any) -> Settings:
    return Settings(table=TableSettings(**table))


def _refused(connection: psycopg.Connection[Any], settings: Settings | None = None) -> PreconditionError:
    with pytest.raises(PreconditionError) as caught:
        load_table(connection, settings or Settings())
    return caught.value


def test_an_ordinary_table(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(ORDERS)
        table = load_table(connection, Settings())
        assert table.qualified_name == "public.orders"
        assert table.key == (Column("id", "bigint"),)
        assert table.deadline == Column("expires_at", "timestamp with time zone")
        assert table.status == Column("status", "text")
        assert table.version == Column("version", "integer")
        assert table.open == {"pending"}
        assert table.closed_status == "expired"
        assert table.identity == "d"
        assert [column.name for column in table.columns] == ["id", "status", "expires_at", "version"]
        assert connection.execute("SELECT 'orders'::regclass::oid::int8").fetchone() == (table.oid,)


def test_names_that_need_quotes_and_a_key_of_several_columns(database: Database) -> None:
    with database.connect() as connection:
        connection.execute('CREATE SCHEMA "My.Shop"')
        connection.execute(
            """CREATE TABLE "My.Shop"."Or,der ""X"" é*" ("b" text, "A.a" numeric(12,2), "St" char(8), v smallint,
               "Expires At" timestamptz(3), dropped int, PRIMARY KEY ("A.a", "b"))"""
        )
        connection.execute('ALTER TABLE "My.Shop"."Or,der ""X"" é*" DROP COLUMN dropped')
        settings = _settings(
            name='"My.Shop"."Or,der ""X"" é*"', deadline="Expires At", status="St", version="v", open=("a", "b")
        )
        facts = read_facts(connection, settings)
        assert facts.table is not None
        table = facts.table.watched
        assert table.key == (Column("A.a", "numeric(12,2)"), Column("b", "text"))
        assert table.deadline == Column("Expires At", "timestamp(3) with time zone")
        assert facts.table.sql_name == '"My.Shop"."Or,der ""X"" é*"'
        assert facts.due_index == ""
        connection.execute(f'CREATE INDEX due ON {facts.table.sql_name} ("Expires At") WHERE {facts.open_condition}')
        assert read_facts(connection, settings).due_index == "due"


def test_without_status_and_version(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TABLE holds (id uuid PRIMARY KEY, expires_at timestamptz)")
        table = load_table(connection, _settings(name="holds", status="", version=""))
        assert (table.status, table.version, table.open) == (None, None, frozenset())


@pytest.mark.parametrize(
    ("statements", "said", "remedy"),
    [
        ('CREATE TABLE "Orders" ()', "there is no table public.orders", 'public."Orders"'),
        ("CREATE SCHEMA shop; CREATE TABLE shop.orders ()", "there is no table public.orders", "shop.orders"),
        ("SELECT 1", "there is no table public.orders", "schema.table"),
        ("CREATE VIEW orders AS SELECT 1", "is a view", "under the view"),
        ("CREATE MATERIALIZED VIEW orders AS SELECT 1", "is a materialized view", "under the view"),
        (ORDERS.replace("TABLE", "UNLOGGED TABLE"), "is unlogged", "ALTER TABLE public.orders SET LOGGED"),
        ("CREATE SEQUENCE orders", "is not a table", "table.name"),
        (ORDERS.replace("PRIMARY KEY", "NOT NULL"), "no primary key", "ADD PRIMARY KEY"),
        (
            ORDERS + "; ALTER TABLE orders REPLICA IDENTITY NOTHING",
            "is NOTHING",
            "ALTER TABLE public.orders REPLICA IDENTITY DEFAULT",
        ),
        (
            ORDERS.replace("PRIMARY KEY", "PRIMARY KEY DEFERRABLE"),
            "lacks key columns (id)",
            "REPLICA IDENTITY FULL",
        ),
        (
            ORDERS + "; CREATE UNIQUE INDEX other ON orders (status, expires_at);"
            " ALTER TABLE orders REPLICA IDENTITY USING INDEX other",
            "lacks key columns (id)",
            "REPLICA IDENTITY DEFAULT",
        ),
        (
            ORDERS + "; CREATE UNIQUE INDEX mine ON orders (id);"
            " ALTER TABLE orders REPLICA IDENTITY USING INDEX mine; DROP INDEX mine",
            "lacks key columns (id)",
            "REPLICA IDENTITY DEFAULT",
        ),
        (ORDERS.replace("expires_at", "expiry"), "no column 'expires_at' (table.deadline)", "table.deadline"),
        (ORDERS.replace("status ", '"Status" '), "no column 'status' (table.status)", "columns: Status, or set"),
        (ORDERS.replace("version ", "revision "), "no column 'version' (table.version)", 'or set table.version = ""'),
        (ORDERS.replace("timestamptz", "timestamp"), "must be a timestamptz", "TYPE timestamptz"),
        (ORDERS.replace("timestamptz", "timestamp(3)"), "must be a timestamptz", "table.time_zone"),
        (ORDERS.replace("timestamptz", "date"), "or a timestamp or date with table.time_zone", "table.time_zone"),
        (ORDERS.replace("timestamptz", "text"), "is text: a deadline must be", "TYPE timestamptz"),
        (ORDERS.replace("timestamptz", "date"), "is date: a deadline must be a timestamptz", "TYPE timestamptz"),
        (ORDERS.replace("id bigint", "id bigint[]"), "key columns of public.orders are arrays: id", "table.key"),
        (
            ORDERS.replace("version int NOT NULL DEFAULT 0", "version text"),
            "is text: a version is a number",
            "table.version",
        ),
    ],
)
def test_what_cannot_be_watched_is_refused_with_its_remedy(
    database: Database, statements: str, said: str, remedy: str
) -> None:
    with database.connect() as connection:
        connection.execute(statements)
        error = _refused(connection)
    assert said in str(error)
    assert remedy in error.remedy
    assert error.exit_code == 3


def test_a_remedy_for_the_identity_works(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(ORDERS.replace("PRIMARY KEY", "PRIMARY KEY DEFERRABLE"))
        connection.execute(_refused(connection).remedy)
        assert load_table(connection, Settings()).identity == "f"


def test_temporary_and_foreign_tables_are_refused(database: Database) -> None:
    with database.connect() as connection:
        connection.execute("CREATE TEMPORARY TABLE orders (id int)")
        row = connection.execute("SELECT nspname FROM pg_namespace WHERE oid = pg_my_temp_schema()").fetchone()
        assert row is not None
        assert "is temporary" in str(_refused(connection, _settings(name=f"{row[0]}.orders")))
        connection.execute(
            "CREATE FOREIGN DATA WRAPPER none; CREATE SERVER s FOREIGN DATA WRAPPER none;"
            "CREATE FOREIGN TABLE orders (id int) SERVER s"
        )
        assert "is a foreign table" in str(_refused(connection, _settings(name="public.orders")))


@pytest.mark.parametrize(
    ("statements", "said"),
    [
        (ORDERS.replace("status text NOT NULL", "status text"), "may be NULL: status"),
        (ORDERS, "nothing keeps the key (status) of public.orders unique"),
        (ORDERS + "; CREATE UNIQUE INDEX ON orders (status) WHERE id > 0", "nothing keeps the key"),
        (ORDERS + "; CREATE UNIQUE INDEX ON orders (status)", "lacks key columns (status)"),
    ],
)
def test_a_named_key_must_be_a_key(database: Database, statements: str, said: str) -> None:
    with database.connect() as connection:
        connection.execute(statements)
        assert said in str(_refused(connection, _settings(key=("status",))))


def test_a_named_key_that_is_one(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(ORDERS)
        connection.execute("CREATE UNIQUE INDEX k ON orders (status); ALTER TABLE orders REPLICA IDENTITY FULL")
        assert load_table(connection, _settings(key=("status",))).key == (Column("status", "text"),)


def test_which_identities_are_exact(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(ORDERS)
        assert not read_table(connection, Settings()).is_identity_exact
        connection.execute("ALTER TABLE orders REPLICA IDENTITY FULL")
        assert read_table(connection, Settings()).is_identity_exact
        connection.execute(
            "CREATE UNIQUE INDEX i ON orders (id, status, expires_at); ALTER TABLE orders REPLICA IDENTITY USING INDEX i"
        )
        facts = read_table(connection, Settings())
        assert facts.watched.identity == "i"
        assert facts.is_identity_exact
        connection.execute(
            "CREATE UNIQUE INDEX j ON orders (id) INCLUDE (status, expires_at);"
            " ALTER TABLE orders REPLICA IDENTITY USING INDEX j"
        )
        assert not read_table(connection, Settings()).is_identity_exact


@pytest.mark.parametrize(
    ("index", "is_usable"),
    [
        ("(expires_at) WHERE status = 'pending'", True),
        ("(expires_at)", True),
        ("(status, expires_at)", True),
        ("(expires_at) WHERE status = 'held'", False),
        ("(status)", False),
        ("(expires_at) WHERE status = 'pending' AND version > 3", False),
    ],
)
def test_the_planner_says_which_index_finds_due_orders(database: Database, index: str, is_usable: bool) -> None:
    with database.connect() as connection:
        connection.execute(ORDERS)
        connection.execute(f"CREATE INDEX due ON orders {index}")
        # So small a table is read in full whatever its indexes: today's size is not what was asked.
        connection.execute("INSERT INTO orders VALUES (1, 'pending', now())")
        connection.execute("ANALYZE orders")
        assert bool(read_facts(connection, Settings()).due_index) is is_usable
        assert connection.execute("SHOW enable_seqscan").fetchone() == ("on",)
