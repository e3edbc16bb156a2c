"""Whether the output plugin works: the server loads it, and it accepts our options, on a slot that leaves nothing.

What a library is like shows only when it is loaded. Where our own slot is idle it is asked for one change without
consuming it; else a temporary slot is made, which the server drops with the connection. Both are bounded in time.
https://www.postgresql.org/docs/current/logicaldecoding-explanation.html
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import psycopg
from msgspec import Struct

from cdcwatch.database import connect
from cdcwatch.errors import CdcwatchError
from cdcwatch.queries import query
from cdcwatch.slot.refusal import OPTION_STATES, explain_plugin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdcwatch.settings import Settings

PROBE_TIMEOUT_MS: Final = 1000


class PluginProbe(Struct, frozen=True):
    """What came of it."""

    was_loaded: bool
    """The server loaded the library."""
    knows_options: bool | None
    """It accepts what the decoder asks for; None where that could not be asked in time."""
    refusal: CdcwatchError | None = None


def probe_plugin(settings: Settings, options: Mapping[str, str], *, own_slot: str | None) -> PluginProbe:
    """Over a connection of its own. `own_slot`: our slot where it is there and idle."""
    plugin = settings.slot.plugin
    try:
        with connect(settings.postgres.for_replication(), application_name="cdcwatch check") as connection:
            connection.execute(query("slot", "unhurried"), {"timeout_ms": PROBE_TIMEOUT_MS})
            slot = own_slot or f"cdcwatch_check_{connection.info.backend_pid}"
            try:
                return _asked(connection, slot, plugin, options, own=own_slot is not None)
            except psycopg.Error as error:
                is_loaded = error.sqlstate in OPTION_STATES
                refusal = explain_plugin(error, plugin, connection.info.server_version // 10_000)
                return PluginProbe(is_loaded, False if is_loaded else None, refusal)
            finally:
                if own_slot is None:
                    with contextlib.suppress(psycopg.Error):
                        connection.execute(query("slot", "drop_temporary_slot"), {"slot": slot})
    except CdcwatchError as error:
        return PluginProbe(was_loaded=False, knows_options=None, refusal=error)


def _asked(
    connection: psycopg.Connection[Any], slot: str, plugin: str, options: Mapping[str, str], *, own: bool
) -> PluginProbe:
    try:
        if not own:
            connection.execute(query("slot", "create_temporary_slot"), {"slot": slot, "plugin": plugin})
        flat = [text for pair in options.items() for text in pair]
        connection.execute(query("slot", "peek"), {"slot": slot, "upto_lsn": None, "upto_count": 1, "options": flat})
    except psycopg.errors.QueryCanceled:
        # The library is loaded before the wait for running transactions, and its options are read before any change.
        return PluginProbe(was_loaded=True, knows_options=True if own else None)
    except psycopg.errors.ObjectInUse:  # taken by its reader since
        return PluginProbe(was_loaded=True, knows_options=None)
    return PluginProbe(was_loaded=True, knows_options=True)
