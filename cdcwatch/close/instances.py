"""The table of instances: who sweeps, with signs of life by the primary's clock.

Where `sql/install.sql` has not made it, an instance is alone: it takes everything, which is safe beside others, as the
closing statement skips what they hold and passes over what they closed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import uuid
from typing import TYPE_CHECKING, Any, Final

import psycopg

from cdcwatch.close.shards import Member
from cdcwatch.database import connect, translated
from cdcwatch.errors import UnavailableError
from cdcwatch.lsn import parse_lsn
from cdcwatch.queries import query

if TYPE_CHECKING:
    from cdcwatch.table import WatchedTable

BEAT_S: Final = 2.0
DEAD_AFTER_S: Final = 7.0
"""Three signs of life missed, and a little."""
_LOOK_AGAIN_BEATS: Final = 30
_ANSWER_TIMEOUT_S: Final = 15.0

_log = logging.getLogger(__name__)


class Instances:
    """A connection to the primary, and this instance's row there. Errors as of `cdcwatch.database`."""

    def __init__(self, dsn: str, table: WatchedTable, *, weight: float) -> None:
        """Does not connect, and registers with the first `beat`."""
        self.id = str(uuid.uuid4())
        self._dsn, self._watched, self._weight = dsn, table.oid, weight
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._is_registered = False
        self._absences = 0
        """Beats since the table was found missing; 0: it was there, or nobody looked."""
        self._said = False

    def connect(self) -> None:
        """Connects; nothing when connected."""
        if self._connection is None:
            self._connection = connect(self._dsn, application_name="cdcwatch sweep", answer_timeout_s=_ANSWER_TIMEOUT_S)

    def disconnect(self) -> None:
        """Lets the connection go, broken or not."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def beat(self) -> list[Member]:
        """A sign of life; who is alive, ourselves included. Empty where instances can't be registered."""
        if not self._may_register():
            return []
        with translated():
            if not self._is_registered:
                self._connected().execute(query("sweep", "bury"))
            name = f"{socket.gethostname()}/{os.getpid()}"
            mine = {"id": self.id, "watched": self._watched, "weight": self._weight, "name": name}
            self._connected().execute(query("sweep", "beat"), mine)
            self._is_registered = True
            alive = {"watched": self._watched, "dead_after_s": DEAD_AFTER_S}
            return [Member(*row) for row in self._connected().execute(query("sweep", "alive"), alive)]

    def withdraw(self) -> None:
        """Takes its leave: the others see it at their next sign of life."""
        if self._is_registered:
            self._is_registered = False
            with translated():
                self._connected().execute(query("sweep", "withdraw"), {"id": self.id})

    def position(self) -> int:
        """Up to where the primary's WAL is safe."""
        with translated():
            row = self._connected().execute(query("sweep", "position")).fetchone()
        return parse_lsn(row[0]) if row else 0

    def identity(self) -> tuple[Any, ...] | None:
        """The primary's system identifier and database."""
        with translated():
            return self._connected().execute(query("sweep", "identity")).fetchone()

    def _may_register(self) -> bool:
        """Asks again now and then: the script may be run later."""
        if self._is_registered:
            return True
        if self._absences % _LOOK_AGAIN_BEATS:
            self._absences += 1
            return False
        with translated():
            row = self._connected().execute(query("sweep", "may_register")).fetchone()
        if row == (True,):
            self._absences = 0
            return True
        self._absences += 1
        if not self._said:
            self._said = True
            what = "is not there" if row is None else "may not be written by this role"
            _log.info(
                "the table cdcwatch.instances %s (sql/install.sql makes it): this instance sweeps everything", what
            )
        return False

    def _connected(self) -> psycopg.Connection[tuple[Any, ...]]:
        if self._connection is None:
            raise UnavailableError("PostgreSQL: not connected", remedy="it connects again by itself")
        return self._connection
