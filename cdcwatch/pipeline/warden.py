"""Looks after the watched table while the stream runs: what DDL takes away never shows in the stream itself.

A renamed table, a weakened replica identity, a dropped key or a retyped deadline let changes vanish or come without
what events need. The warden asks the catalog again and again and ends the process with the reason.
https://www.postgresql.org/docs/current/logical-replication-restrictions.html
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from cdcwatch.errors import CdcwatchError, PreconditionError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.table import WatchedTable

INTERVAL_S: Final = 5.0
"""What is found twice a second apart ends the process: within ten seconds of the DDL, all in all."""

_log = logging.getLogger(__name__)


class TableChangedError(PreconditionError):
    """The table is no longer what the stream was begun with: changes since then may be missing from the topic."""


class Warden(threading.Thread):
    """`look` reads the catalog, `seen` hears of a table as it should be, `changed` once of one that isn't."""

    def __init__(
        self,
        table: WatchedTable,
        *,
        look: Callable[[], WatchedTable],
        name_of: Callable[[int], str | None],
        changed: Callable[[TableChangedError], None],
        seen: Callable[[WatchedTable], None] = lambda _table: None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__(name="warden", daemon=True)  # a connection attempt can't be interrupted
        self._table, self._look, self._name_of, self._changed = table, look, name_of, changed
        self._seen, self._interval_s = seen, interval_s
        self._stop_requested = threading.Event()

    def request_stop(self) -> None:
        """Ends it."""
        self._stop_requested.set()

    def run(self) -> None:
        """Until stopped, or until the table has changed."""
        suspected: str | None = None
        while not self._stop_requested.wait(self._interval_s if suspected is None else self._interval_s / 10):
            try:
                error = self._difference()
            except UnavailableError:
                continue  # the reader and the workers say so already
            if error is None:
                suspected = None
            elif suspected == str(error):  # twice the same: no DDL in the middle of its work
                self._changed(error)
                return
            else:
                suspected = str(error)

    def _difference(self) -> TableChangedError | None:
        try:
            found = self._look()
        except UnavailableError:
            raise
        except CdcwatchError as error:
            return self._explained(error)
        difference = compare(self._table, found)
        if difference is None:
            self._seen(found)
            return None
        return TableChangedError(f"{self._table.qualified_name}: {difference}", remedy=_REMEDY)

    def _explained(self, error: CdcwatchError) -> TableChangedError:
        """The catalog's complaint, or the table's new name where that is why it isn't found."""
        try:
            name = self._name_of(self._table.oid)
        except CdcwatchError:
            name = None
        if name is not None and name != self._table.qualified_name:
            return TableChangedError(
                f"{self._table.qualified_name} is now called {name}",
                remedy=f"set table.name to {name}, then cdcwatch run --accept-gap",
            )
        return TableChangedError(str(error), remedy=f"{error.remedy}; then cdcwatch run --accept-gap")


_REMEDY: Final = "see `cdcwatch check`, then cdcwatch run --accept-gap reads the table again"


def compare(begun_with: WatchedTable, found: WatchedTable) -> str | None:
    """What changed that the stream can't make good; None when nothing did. Pure."""
    if found.oid != begun_with.oid:
        return "another table has taken its name"
    if [column.name for column in found.key] != [column.name for column in begun_with.key]:
        return "its key has other columns"
    watched = [*begun_with.key, begun_with.deadline, begun_with.status, begun_with.version]
    now = [*found.key, found.deadline, found.status, found.version]
    for before, after in zip(watched, now, strict=True):
        if before is not None and after is not None and before.type != after.type:
            return f"column {before.name} was {before.type} and is {after.type}"
    if begun_with.logs_old_rows and not found.logs_old_rows:
        return "its replica identity no longer logs status and deadline"
    return None
