"""What a record of the topic tells somebody who closes: a deadline, its end, or something about all orders. Pure."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdcwatch.deadline.event import GAP_TYPE
from cdcwatch.deadline.rule import CANCELLED, EXPIRED, MOVED, REASON_TRUNCATED, SCHEDULED
from cdcwatch.instant import read_instant

if TYPE_CHECKING:
    from cdcwatch.table import Key, WatchedTable

_LIVE: Final = frozenset({SCHEDULED, MOVED})
_OVER: Final = frozenset({CANCELLED, EXPIRED})
_MOST_SOURCES: Final = 1000
_LONGEST_SOURCE: Final = 250
"""As names go: 63 bytes each of database, schema and table. What another program writes there may be longer."""
_SOMEBODY: Final = "another program"

Told = tuple["Key", int | None, int]
"""A key, its deadline in microseconds since 2000 (None: it has none any more) and the row's version."""


class TableWide(StrEnum):
    """What a record says of every order of its partition."""

    EMPTIED = "emptied"
    """A TRUNCATE: every deadline before it is off."""
    GAP = "gap"
    """Changes are missing from the topic: only the table tells."""


class Skipped(StrEnum):
    """Why a record tells a closer nothing."""

    TOMBSTONE = "tombstone"
    MALFORMED = "malformed"
    FOREIGN = "foreign"
    """Of another table, or of another program."""
    UNKNOWN_TYPE = "unknown_type"
    """Of a later version, perhaps."""


class Interpreter:
    """Reads the records that tell of one table. Whichever server told them: the close asks the database anyhow."""

    def __init__(self, table: WatchedTable, database: str, system_identifier: str = "") -> None:
        """`system_identifier`: of the server that the orders are closed on; empty: unknown, any is taken for it."""
        self._place = f"{database}/{table.qualified_name}"
        self._system_identifier = system_identifier
        self._is_integer, self._open = table.has_integer_key, table.open
        self._sources: dict[str, bool] = {}
        self._has_known = False
        self.stranger = ""
        """Of whom the records are while none was of our table on our server: then this is hardly its topic."""

    def read(self, key: bytes | None, value: bytes | None) -> Told | TableWide | Skipped:
        """One record. Never raises: what nobody understands is MALFORMED."""
        if not value:
            return Skipped.TOMBSTONE
        try:
            return self._read(key, orjson.loads(value))
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            if not self._has_known:
                self.stranger = self.stranger or _SOMEBODY
            return Skipped.MALFORMED

    def _read(self, key: bytes | None, event: dict[str, Any]) -> Told | TableWide | Skipped:
        kind, data = event["type"], event["data"]
        if not self._is_ours(event["source"]):
            return Skipped.FOREIGN
        if kind == GAP_TYPE:
            return TableWide.GAP
        if kind not in _LIVE and kind not in _OVER:
            return Skipped.UNKNOWN_TYPE
        if not isinstance(data, dict):
            raise TypeError("data is an object")
        if key is None:
            return TableWide.EMPTIED if data["reason"] == REASON_TRUNCATED else Skipped.MALFORMED
        return self._told(key, kind in _OVER, data)

    def _told(self, key: bytes, is_over: bool, data: dict[str, Any]) -> Told:
        text = key.decode()
        order: Key = int(text) if self._is_integer else text
        if is_over or not self._is_armed(data["status"]):
            return order, None, 0
        return order, read_instant(data["deadline"]), int(data["version"] or 0)

    def _is_ours(self, source: object) -> bool:
        if not isinstance(source, str):
            raise TypeError("a source is a text")
        known = self._sources.get(source)
        if known is None:
            known = source.startswith("cdcwatch:") and source.partition("/")[2] == self._place
            if len(self._sources) < _MOST_SOURCES:
                self._sources[source] = known
            if not self._has_known:
                self._meet(source, known)
        return known

    def _meet(self, source: str, is_of_table: bool) -> None:
        """A source for the first time."""
        scheme, _, rest = source.partition(":")
        self._has_known = is_of_table and self._system_identifier in {"", rest.partition("/")[0]}
        self.stranger = "" if self._has_known else source[:_LONGEST_SOURCE] if scheme == "cdcwatch" else _SOMEBODY

    def _is_armed(self, status: object) -> bool:
        """An order that is claimed is told as live, and its deadline is no longer waited for."""
        return not self._open or status in self._open
