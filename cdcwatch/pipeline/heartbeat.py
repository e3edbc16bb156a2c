"""A sign of life through the server: a logical message now and then, that the stream carries and nobody reads.

https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

from cdcwatch.errors import CdcwatchError, UnavailableError
from cdcwatch.log import told_of

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger(__name__)


class Heartbeat(threading.Thread):
    """Calls `beat` every `interval_s`. A database that is away is others' to tell of; a refusal is logged once."""

    def __init__(self, beat: Callable[[], None], *, interval_s: float) -> None:
        super().__init__(name="heartbeat", daemon=True)  # a connection attempt can't be interrupted
        self._beat, self._interval_s = beat, interval_s
        self._stop_requested = threading.Event()

    def request_stop(self) -> None:
        """Ends it."""
        self._stop_requested.set()

    def run(self) -> None:
        """Until stopped."""
        said = ""
        while not self._stop_requested.wait(self._interval_s):
            try:
                self._beat()
            except UnavailableError:
                continue
            except CdcwatchError as error:
                if str(error) != said:
                    _log.warning(
                        "heartbeat: %s (remedy: %s, or slot.heartbeat_s = 0)", error, error.remedy, extra=told_of(error)
                    )
                said = str(error)
