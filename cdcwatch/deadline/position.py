"""How far the stream has been turned into events, so that a replay is told from news."""

from __future__ import annotations

from typing import NamedTuple

_XID_BITS = 32
_XID_MODULUS = 1 << _XID_BITS


class Position(NamedTuple):
    """Everything through `end_lsn`, and of the transaction that commits at `commit_lsn` the first `ordinal` changes."""

    end_lsn: int = 0
    """The end LSN of the last transaction that is complete."""
    commit_lsn: int = 0
    ordinal: int = 0

    @property
    def open_changes(self) -> int:
        """How many changes of a transaction that is not complete; 0 between transactions."""
        return self.ordinal if self.commit_lsn >= self.end_lsn else 0

    def covers(self, commit_lsn: int, ordinal: int) -> bool:
        """Whether that change is behind this position. Transactions come in the order of their commit records."""
        return commit_lsn < self.end_lsn or (commit_lsn == self.commit_lsn and ordinal <= self.ordinal)


class SnapshotVisibility(NamedTuple):
    """Which transactions a snapshot of the table already shows: pg_current_snapshot().

    https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-PG-SNAPSHOT
    """

    xmin: int
    """Every 64-bit transaction id below is visible or rolled back."""
    xmax: int
    """None at or above is visible."""
    in_progress: frozenset[int]
    """Those between that were still running."""
    to_first_close: bool = False
    """What it shows is passed over only up to the first close among it: nobody was told of these orders before."""
    only_tables: frozenset[int] | None = None
    """The OIDs of the tables that were read under it; None: every watched one."""

    def sees(self, xid: int) -> bool:
        """Whether the snapshot shows a committed transaction, given the 32 bits of its id that the stream carries."""
        # The id lies within 2^31 of the snapshot: its epoch is the one that brings it nearest.
        distance = (xid - self.xmax) % _XID_MODULUS
        full = self.xmax + (distance if distance < _XID_MODULUS // 2 else distance - _XID_MODULUS)
        return full < self.xmax and full not in self.in_progress
