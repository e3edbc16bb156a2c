"""How the reader does, seen from a process that only closes: by its slot, once or twice a second."""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from cdcwatch.database import connect, translated
from cdcwatch.errors import CdcwatchError
from cdcwatch.lsn import parse_lsn
from cdcwatch.queries import query

if TYPE_CHECKING:
    from collections.abc import Callable

LAG_S: Final = 3.0
"""So long after something was written it is in the topic and confirmed, where the reader keeps up. On a server with
much other WAL this is missed at times: then the table is asked once a second, which costs a short range of an index."""
_ANSWER_TIMEOUT_S: Final = 5.0

_log = logging.getLogger(__name__)


class Reading(NamedTuple):
    """What one look showed."""

    is_read: bool
    """Somebody has the slot."""
    confirmed_lsn: int
    """Up to there everything is in the topic."""
    current_lsn: int


class ReadingWatch:
    """Looks over a connection of its own. `look` for one thread, the rest for any."""

    def __init__(self, dsn: str, slot: str, *, now_s: Callable[[], float] = time.monotonic) -> None:
        self._dsn, self._slot, self._now_s = dsn, slot, now_s
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._last = Reading(False, 0, 0)
        self._looked_s = self._kept_up_s = now_s()
        self._mark_lsn = 0
        self._is_missing = False

    @property
    def lags(self) -> bool:
        """Whether changes may be committed that the topic does not tell of yet: nobody reads, or it is late."""
        return not self._last.is_read or self._now_s() - self._kept_up_s > LAG_S

    def told_s(self, lsn: int) -> float | None:
        """When it was seen that everything up to there is in the topic; None: it isn't."""
        return self._looked_s if self._last.confirmed_lsn >= lsn else None

    def look(self) -> None:
        """Once. A server that is away tells nothing: closing waits for it as well."""
        try:
            found = self._asked()
        except CdcwatchError:
            self.disconnect()
            return
        self.note(found)

    def note(self, found: Reading | None) -> None:
        """What a look has shown; None: the database has no such slot. That is told once, and counts as lagging."""
        now_s = self._now_s()
        if found is None and not self._is_missing:
            _log.warning(
                "this database has no slot %s, by which a late reader would show: orders are closed by what the table"
                " shows (remedy: set slot.name as the reader has it, or make it: cdcwatch slot create)",
                self._slot,
                extra={"slot": self._slot},
            )
        self._is_missing = found is None
        self._last = found or Reading(False, 0, 0)
        self._looked_s = now_s
        if found is not None and found.confirmed_lsn >= self._mark_lsn:
            # What had been written when this mark was set is told by now: the next mark.
            self._mark_lsn, self._kept_up_s = found.current_lsn, now_s

    def disconnect(self) -> None:
        """Lets the connection go, broken or not."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def _asked(self) -> Reading | None:
        if self._connection is None:
            self._connection = connect(self._dsn, application_name="cdcwatch watch", answer_timeout_s=_ANSWER_TIMEOUT_S)
        with translated():
            row = self._connection.execute(query("stream", "standing_of_reader"), {"slot": self._slot}).fetchone()
        return None if row is None else Reading(row[0], parse_lsn(row[1]), parse_lsn(row[2]))
