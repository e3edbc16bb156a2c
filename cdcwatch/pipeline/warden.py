"""Looks after the watched table while the stream runs: what DDL takes away never shows in the stream itself.

A renamed table, a weakened replica identity, a dropped key or a retyped deadline let changes vanish or come without
what events need. The warden asks the catalog again and again and ends the process with the reason; after DDL that the
stream tells of by itself the process begins anew with the table as it is.
https://www.postgresql.org/docs/current/logical-replication-restrictions.html
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from cdcwatch.errors import CdcwatchError, PreconditionError, UnavailableError
from cdcwatch.slot.catalog import MissingColumnError
from cdcwatch.slot.publication import RefusedUpdatesError
from cdcwatch.table import INTEGER_TYPES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cdcwatch.table import Column, WatchedTable

INTERVAL_S: Final = 5.0
"""What is found twice a second apart ends the process: within ten seconds of the DDL, all in all."""

_log = logging.getLogger(__name__)


class TableChangedError(PreconditionError):
    """The table is no longer what the stream was begun with."""

    def __init__(
        self, message: str, *, remedy: str, is_gap: bool = True, alters_publication: bool = False, past: str = ""
    ) -> None:
        """`is_gap`: changes since then may be missing from the topic.

        `past`: the same as it is said later on, when it may have been put back.

        `alters_publication`: so does the remedy, which then is no gap.
        """
        super().__init__(message, remedy=remedy)
        self.is_gap, self.alters_publication = is_gap, alters_publication
        self.past = past or message


class Warden(threading.Thread):
    """`look` reads the catalog, `seen` hears of a table as it should be, `changed` once of one that isn't.

    `renewed` hears once of one that the process can go on with after beginning anew. `is_followed`: whether the stream
    tells of the table under whatever name it has.
    """

    def __init__(
        self,
        table: WatchedTable,
        *,
        look: Callable[[], WatchedTable],
        name_of: Callable[[int], str | None],
        changed: Callable[[TableChangedError], None],
        renewed: Callable[[str], None] = lambda _reason: None,
        is_followed: Callable[[int], bool] = lambda _oid: False,
        seen: Callable[[WatchedTable], None] = lambda _table: None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        super().__init__(name="warden", daemon=True)  # a connection attempt can't be interrupted
        self._table, self._look, self._name_of, self._changed = table, look, name_of, changed
        self._seen, self._interval_s = seen, interval_s
        self._renewed, self._is_followed = renewed, is_followed
        self._stop_requested = threading.Event()

    def request_stop(self) -> None:
        """Ends it."""
        self._stop_requested.set()

    def run(self) -> None:
        """Until stopped, or until the table has changed."""
        suspected: str | None = None
        while not self._stop_requested.wait(self._interval_s if suspected is None else self._interval_s / 10):
            try:
                found = self._found()
            except UnavailableError:
                continue  # the reader and the workers say so already
            if found is None:
                suspected = None
            elif suspected == str(found):  # twice the same: no DDL in the middle of its work
                if isinstance(found, TableChangedError):
                    self._changed(found)
                else:
                    self._renewed(found)
                return
            else:
                suspected = str(found)

    def _found(self) -> TableChangedError | str | None:
        """What ends the process; as a text why it begins anew; None when all is as it was."""
        try:
            found = self._look()
        except UnavailableError:
            raise
        except CdcwatchError as error:
            return self._explained(error)
        table, difference = self._table.qualified_name, compare(self._table, found)
        if difference is not None:
            return TableChangedError(f"{table}: {difference}", remedy=REMEDY)
        renewal = renews(self._table, found)
        if renewal is None:
            self._seen(found)
        return renewal and f"{table}: {renewal}"

    def _explained(self, error: CdcwatchError) -> TableChangedError:
        """The catalog's complaint, or the table's new name where that is why it isn't found."""
        oid, old_name = self._table.oid, self._table.qualified_name
        try:
            name = self._name_of(oid)
            is_followed = name is not None and self._is_followed(oid)
        except CdcwatchError:
            name, is_followed = None, False
        if name is not None and name != old_name:
            then = "then start again: nothing is missed" if is_followed else "then cdcwatch run --accept-gap"
            return TableChangedError(
                f"{old_name} is now called {name}",
                remedy=f"set table.name to {name}, {then}",
                is_gap=not is_followed,
                past=f"{old_name} was renamed to {name} while it was read",
            )
        # The stream itself stops at a missing column, and of refused changes there is nothing to tell.
        if isinstance(error, MissingColumnError | RefusedUpdatesError):
            refuses = isinstance(error, RefusedUpdatesError)
            return TableChangedError(str(error), remedy=error.remedy, is_gap=False, alters_publication=refuses)
        return TableChangedError(str(error), remedy=f"{error.remedy}; then cdcwatch run --accept-gap")


REMEDY: Final = "see `cdcwatch check`, then cdcwatch run --accept-gap reads the table again"


def compare(begun_with: WatchedTable, found: WatchedTable) -> str | None:  # noqa: PLR0911  a change each
    """What changed that the stream can't make good; None when nothing did. Pure."""
    if found.oid != begun_with.oid:
        return "another table has taken its name"
    if len(found.key) != len(begun_with.key):
        return "its key has other columns"
    for before, after in _pairs(begun_with, found):
        if after.name not in before.names:
            return "its key has other columns"
        if not _hold_the_same(before, after):
            return f"column {before.name} was {before.type} and is {after.type}"
    if begun_with.publication.was_altered(found.publication):
        return "its publication was altered, and changes may have been left out meanwhile"
    if begun_with.logs_old_rows and not found.logs_old_rows:
        return "its replica identity no longer logs status and deadline"
    return None


def renews(begun_with: WatchedTable, found: WatchedTable) -> str | None:
    """What changed that the stream tells of and our statements don't know; None when nothing did. Pure."""
    for before, after in _pairs(begun_with, found):
        if before.name != after.name:
            return f"column {before.name} is now called {after.name}"
        if before.type != after.type:
            return f"column {before.name} was {before.type} and is {after.type}"
    if begun_with.publication[:2] != found.publication[:2]:
        return "its publication was altered together with a column"
    return None


def _pairs(begun_with: WatchedTable, found: WatchedTable) -> Iterator[tuple[Column, Column]]:
    watched = [*begun_with.key, begun_with.deadline, begun_with.status, begun_with.version]
    now = [*found.key, found.deadline, found.status, found.version]
    for before, after in zip(watched, now, strict=True):
        if before is not None and after is not None:
            yield before, after


_TEXTS: Final = frozenset({"text", "character varying"})


def _hold_the_same(before: Column, after: Column) -> bool:
    """Whether a value has one text in both types: what came before the change is read alike after it."""
    if before.type == after.type:
        return True
    if before.base or after.base:
        return False
    kinds = {before.kind, after.kind}
    return kinds <= INTEGER_TYPES or kinds <= _TEXTS or (len(kinds) == 1 and before.kind != "character")
