"""How fast the server writes WAL: between looks, and on average since its statistics were reset."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from cdcwatch.queries import query
from cdcwatch.slot.outlook import WalRate

if TYPE_CHECKING:
    import psycopg

_STAT_WAL_SINCE: Final = 140_000


class WalSample(Struct, frozen=True):
    """Where the WAL ended, and when, by the server's clock."""

    position: int
    at_s: float


class WalRates:
    """Over one connection; `now` is between its own looks."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection
        self._last: WalSample | None = None

    def sample(self) -> None:
        """Notes where the WAL ends, for the next look's rate."""
        self._last = self._sample()

    def look(self) -> WalRate:
        """Since the last look or `sample`."""
        before, now = self._last, self._sample()
        if before is not None and now is not None:
            self._last = now
        average = None
        if self._connection.info.server_version >= _STAT_WAL_SINCE:
            row = self._connection.execute(query("slot", "wal_written")).fetchone()
            average = row[0] if row else None
        return WalRate(rate_between(before, now), average)

    def _sample(self) -> WalSample | None:
        row = self._connection.execute(query("slot", "wal_position")).fetchone()
        return WalSample(*row) if row else None


def rate_between(before: WalSample | None, now: WalSample | None) -> float | None:
    """Bytes a second; None without two samples at different times. Pure."""
    if before is None or now is None or now.at_s <= before.at_s:
        return None
    return max(0.0, (now.position - before.position) / (now.at_s - before.at_s))
