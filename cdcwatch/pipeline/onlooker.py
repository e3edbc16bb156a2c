"""The table as a process without a stream sees it: asked for at the start, and compared every few seconds."""

from __future__ import annotations

import contextlib
import logging
from functools import partial
from typing import TYPE_CHECKING, Final

import psycopg

from cdcwatch.close.claim import require_claims
from cdcwatch.database import connect, translated
from cdcwatch.errors import CdcwatchError
from cdcwatch.pipeline.beginning import StartOverError
from cdcwatch.pipeline.reachable import once_reachable
from cdcwatch.queries import query
from cdcwatch.slot.catalog import load_table
from cdcwatch.slot.tables import require_distinct

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from cdcwatch.settings import Settings
    from cdcwatch.table import WatchedTable

LOOK_S: Final = 5.0
_ANSWER_TIMEOUT_S: Final = 15.0

_log = logging.getLogger(__name__)


class Onlooker:
    """Each look is on a connection of its own."""

    def __init__(self, settings: Settings, ended: threading.Event, *, stands_by: bool = True) -> None:
        """`stands_by`: a server that is away is waited for, until `ended`."""
        self._settings, self._ended, self._stands_by = settings, ended, stands_by
        self.database = ""
        """Whose table it is; known after a look."""
        self.system_identifier = ""
        """Of the server; known after the first look, where we may ask for it."""

    def first_look(self) -> WatchedTable | None:
        """What the catalog says; None when ended before. PreconditionError too where orders can't be claimed."""
        look = partial(self._look, claims=self._settings.close.action == "claim")
        return once_reachable(look, self._ended, stands_by=self._stands_by)

    def require_same(self, table: WatchedTable) -> None:
        """StartOverError when the statements no longer fit the table."""
        try:
            now = self._look()
        except CdcwatchError as error:
            _log.debug("the table can't be looked at: %s", error)
            return
        if not now.takes_same_statements(table):
            raise StartOverError(f"{now.qualified_name} has changed")

    def require_distinct(self, tables: Sequence[WatchedTable]) -> None:
        """ConfigurationError where two of them are one."""
        if len(tables) > 1:
            dsn = self._settings.postgres.dsn
            with connect(dsn, application_name="cdcwatch", answer_timeout_s=_ANSWER_TIMEOUT_S) as connection:
                require_distinct(connection, tables)

    def _look(self, *, claims: bool = False) -> WatchedTable:
        dsn = self._settings.postgres.dsn
        with translated(), connect(dsn, application_name="cdcwatch", answer_timeout_s=_ANSWER_TIMEOUT_S) as connection:
            self.database = connection.info.dbname
            table = load_table(connection, self._settings)
            if not self.system_identifier:
                with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
                    self.system_identifier = str((connection.execute(query("sweep", "identity")).fetchone() or [""])[0])
            if claims and (rights := connection.execute(query("claim", "rights")).fetchone()):
                require_claims(*rights)
            return table
