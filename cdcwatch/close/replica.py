"""Scanning a standby instead of the primary, as long as it keeps up. Closes always go to the primary.

Whether it keeps up is asked by position: it must have replayed, within the bound, all that was safe on the primary when
it was asked. So no clock is compared with another machine's, and an idle primary is no delay.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg

from cdcwatch.database import connect, translated
from cdcwatch.errors import CdcwatchError, UnavailableError
from cdcwatch.lsn import format_lsn
from cdcwatch.queries import query

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.close.clock import Clock
    from cdcwatch.close.table import OverduePage, Scan

_ANSWER_TIMEOUT_S: Final = 15.0
_ASK_AGAIN_S: Final = 0.02

_log = logging.getLogger(__name__)


class Follower(Protocol):
    """What is asked of a standby beside the orders."""

    def connect(self) -> None:
        """Connects; nothing when connected."""

    def disconnect(self) -> None:
        """Lets the connection go. Never raises."""

    def has_replayed(self, lsn: int) -> bool | None:
        """Whether it has replayed up to there; None: it is no standby of ours."""


class Standby:
    """A connection to `sweep.dsn` for its replay position."""

    def __init__(self, dsn: str, identity: Callable[[], tuple[Any, ...] | None]) -> None:
        """`identity`: system identifier and database of the primary. Does not connect."""
        self._dsn, self._identity = dsn, identity
        self._is_ours = False
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None

    def connect(self) -> None:
        """Connects; nothing when connected. Errors as of `cdcwatch.database`."""
        if self._connection is None:
            self._connection = connect(self._dsn, application_name="cdcwatch sweep", answer_timeout_s=_ANSWER_TIMEOUT_S)
            with translated():
                found = self._connection.execute(query("sweep", "identity")).fetchone()
            primary = self._identity()
            self._is_ours = found is not None and primary is not None and found[:2] == primary[:2]

    def disconnect(self) -> None:
        """Lets the connection go, broken or not."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def has_replayed(self, lsn: int) -> bool | None:
        """Whether it has replayed up to there; None: another cluster or database, or no standby any more."""
        if self._connection is None:
            raise UnavailableError("the standby: not connected", remedy="it connects again by itself")
        if not self._is_ours:
            return None
        with translated():
            row = self._connection.execute(query("sweep", "replayed"), {"lsn": format_lsn(lsn)}).fetchone()
        found: bool | None = row[0] if row else None
        return found


class ReplicaFirst:
    """A `Scan` that reads the standby where that keeps up, and the primary where it doesn't."""

    def __init__(
        self,
        primary: Scan,
        replica: Scan,
        standby: Follower,
        clock: Clock,
        *,
        position: Callable[[], int],
        max_delay_ms: int,
        fell_back: Callable[[str], None],
        pause: Callable[[float], object] = time.sleep,
    ) -> None:
        """`position`: up to where the primary's WAL is safe. `fell_back`: told `delay`, `away` or `not_a_standby`."""
        self._primary, self._replica, self._standby, self._clock = primary, replica, standby, clock
        self._position, self._max_delay_us, self._fell_back = position, max_delay_ms * 1000, fell_back
        self._pause = pause
        self._said = ""
        self._reads_primary = False

    def connect(self) -> None:
        """Connects to the primary. The standby is asked at the first page."""
        self._primary.connect()

    def disconnect(self) -> None:
        """Lets all connections go."""
        for one in (self._primary, self._replica, self._standby):
            one.disconnect()

    def overdue(self, *, mark_us: int | None, since_us: int | None, grace_us: int, limit: int) -> OverduePage:
        """From the standby; once that lags, from the primary until the next scan from the beginning."""
        if mark_us is None and since_us is None:
            self._reads_primary = False
        if not self._reads_primary:
            page = self._of_replica(mark_us=mark_us, since_us=since_us, grace_us=grace_us, limit=limit)
            if page is not None:
                return page
            self._reads_primary = True
        return self._primary.overdue(mark_us=mark_us, since_us=since_us, grace_us=grace_us, limit=limit)

    def _of_replica(
        self, *, mark_us: int | None, since_us: int | None, grace_us: int, limit: int
    ) -> OverduePage | None:
        target = self._position()
        try:
            self._standby.connect()
            reason = self._why_not(target)
            if not reason:
                self._replica.connect()
                page = self._replica.overdue(mark_us=mark_us, since_us=since_us, grace_us=grace_us, limit=limit)
                if self._said:
                    _log.info("the sweep scans the standby again")
                    self._said = ""
                return page
            self._tell(reason, f"it did not keep up within {self._max_delay_us // 1000} ms")
        except CdcwatchError as error:
            self._standby.disconnect()
            self._replica.disconnect()
            self._tell("away", str(error))
        return None

    def _why_not(self, target: int) -> str:
        """Empty: it has replayed up to there, within the bound."""
        until_us = self._clock.monotonic_us() + self._max_delay_us
        while (has_replayed := self._standby.has_replayed(target)) is False:
            if self._clock.monotonic_us() >= until_us:
                return "delay"
            self._pause(_ASK_AGAIN_S)
        return "" if has_replayed else "not_a_standby"

    def _tell(self, reason: str, why: str) -> None:
        """Counts each time, logs once until it works again."""
        self._fell_back(reason)
        if reason == "not_a_standby":
            why = "sweep.dsn is no standby of the server and database of postgres.dsn"
        if self._said != reason:
            self._said = reason
            _log.warning("the sweep scans the primary instead of the standby: %s", why, extra={"reason": why})
