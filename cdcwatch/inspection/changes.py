"""A slot's changes, read without consuming them, by the slot's own plugin and our own decoder of it.

https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from cdcwatch.database import explain
from cdcwatch.decode.plugins import several_factory
from cdcwatch.errors import PreconditionError
from cdcwatch.lsn import format_lsn
from cdcwatch.queries import query
from cdcwatch.slot.admin import active
from cdcwatch.slot.refusal import explain_plugin
from cdcwatch.slot.status import read_status
from cdcwatch.slot.surroundings import read_connection

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cdcwatch.decode.change import AnyMessage, Decoder
    from cdcwatch.settings import Settings
    from cdcwatch.slot.facts import OptionsOf
    from cdcwatch.slot.status import SlotStatus
    from cdcwatch.table import WatchedTable

_PLUGINS: Final = frozenset({"wal2json", "pgoutput"})
_FETCH_ROWS: Final = 2000


def options_of(settings: Settings) -> OptionsOf:
    """What the configured plugin's decoder asks for."""

    def options(table: WatchedTable, server_version: int) -> Mapping[str, str]:
        return _decoder(settings, settings.slot.plugin, [table], server_version).options()

    return options


def require_readable(status: SlotStatus) -> None:
    """PreconditionError when the slot's changes can't be looked at: it is in use, lost, or of another plugin."""
    if status.is_lost:
        raise PreconditionError(
            f"slot {status.name} is lost: its changes can't be read any more",
            remedy="cdcwatch recover; or cdcwatch slot drop, when nobody needs it",
        )
    if status.active:
        refused = active(status)
        raise PreconditionError(f"{refused}: it can't be looked at meanwhile", remedy="cdcwatch events --follow")
    if status.plugin not in _PLUGINS:
        raise PreconditionError(
            f"slot {status.name} has the plugin {status.plugin}, whose changes cdcwatch can't read",
            remedy="set slot.name to a slot of wal2json or pgoutput",
        )


def read_changes(
    connection: psycopg.Connection[Any],
    settings: Settings,
    tables: Sequence[WatchedTable],
    status: SlotStatus,
    *,
    upto_lsn: int | None = None,
    upto_count: int | None = None,
) -> Iterator[AnyMessage | None]:
    """Messages in the order of the stream, None for those about other tables.

    `upto_count` is the plugin's lines after which the server stops, at the end of a transaction.
    """
    plugin = status.plugin or settings.slot.plugin
    decoder = _decoder(settings, plugin, tables, connection.info.server_version)
    flat = [text for pair in decoder.options().items() for text in pair]
    wanted = {
        "slot": status.name,
        "upto_lsn": None if upto_lsn is None else format_lsn(upto_lsn),
        "upto_count": upto_count,
        "options": flat,
    }
    if read_connection(connection).is_pooled:
        # Settings of this connection would reach others, and not this one's next statement.
        raise PreconditionError(
            "a slot can't be looked into through a pooler",
            remedy="connect directly: set postgres.replication_dsn",
        )
    try:
        # Long reads are what this is for: the service's own time limits don't hold here.
        connection.execute(query("slot", "unhurried"), {"timeout_ms": 0})
        connection.execute(query("slot", "pinned"))
        # By a cursor of the server's: what a huge transaction gives stays there, not in our memory.
        with connection.transaction(), connection.cursor(name="cdcwatch_peek") as cursor:
            cursor.itersize = _FETCH_ROWS
            for _lsn, data in cursor.execute(query("slot", "peek"), wanted):
                yield decoder.decode(data)
    except psycopg.errors.ObjectInUse:  # taken since we looked
        raise active(read_status(connection, status.name) or status) from None
    except psycopg.Error as error:
        major = connection.info.server_version // 10_000
        raise (explain_plugin(error, plugin, major) if error.sqlstate else explain(error)) from error


def _decoder(settings: Settings, plugin: str, tables: Sequence[WatchedTable], server_version: int) -> Decoder:
    return several_factory(plugin, tables, publication=settings.slot.publication, server_version=server_version)()
