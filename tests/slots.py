"""A slot of one test: what the server says of it, and settings for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from cdcwatch.settings import PostgresSettings, Settings, SinkSettings, SlotSettings
from cdcwatch.slot.allowlist import AllowList
from tests.waiting import wait_until

QUIET = '[sink]\nkind = "none"\n[telemetry]\nlisten = ""\n'
"""The rest of a configuration that needs no broker and no port."""

if TYPE_CHECKING:
    from cdcwatch.local import LocalPostgres
    from tests.services import Database


def slots_named(connection: psycopg.Connection[Any], name: str) -> list[tuple[Any, ...]]:
    """Plugin and database of the slot, as rows."""
    return connection.execute(
        "SELECT plugin::text, database::text FROM pg_replication_slots WHERE slot_name = %s", [name]
    ).fetchall()


def let_in(connection: psycopg.Connection[Any], *plugins: str) -> None:
    """Sets output_plugin_libraries, where the server has it, and waits until it holds."""
    if not connection.execute("SELECT FROM pg_settings WHERE name = 'output_plugin_libraries'").fetchall():
        return
    listed = sql.SQL(", ").join(map(sql.Literal, plugins))
    connection.execute(sql.SQL("ALTER SYSTEM SET output_plugin_libraries = {}").format(listed))
    connection.execute("SELECT pg_reload_conf()")
    wait_for_plugins(connection, *plugins)


def wait_for_plugins(connection: psycopg.Connection[Any], *plugins: str) -> None:
    """Until the server has read its configuration again."""

    def is_read() -> bool:
        row = connection.execute("SHOW output_plugin_libraries").fetchone()
        return row is not None and AllowList(exists=True, text=row[0]).plugins == plugins

    wait_until(is_read, 20, f"the server lets in {plugins}")


def settings_for(database: Database, slot: str, user: str = "", **changes: Any) -> Settings:
    """Settings without a broker. `changes`: keys of [slot]."""
    dsn = psycopg.conninfo.make_conninfo(database.dsn, **({"user": user} if user else {}))
    return Settings(
        postgres=PostgresSettings(dsn=dsn), slot=SlotSettings(name=slot, **changes), sink=SinkSettings(kind="none")
    )


def outrun(server: LocalPostgres) -> None:
    """Writes WAL until no slot that stays can keep up with a server that keeps hardly any."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        for _ in range(6):
            connection.execute("CREATE TABLE filler AS SELECT 1; DROP TABLE filler")
            connection.execute("SELECT pg_switch_wal()")
        connection.execute("CHECKPOINT")
