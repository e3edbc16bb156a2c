"""The stream's messages to deadline events and schedule updates, with the ids that make a replay harmless.

State lives between two messages of one transaction only: the ordinal, and a delete that may turn out to be half of a
move between partitions. https://www.postgresql.org/docs/current/ddl-partitioning.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cdcwatch.deadline.event import Event, EventEncoder, Stamp
from cdcwatch.deadline.position import Position, SnapshotVisibility
from cdcwatch.decode.change import Begin, Change, Commit, Kind, Truncate
from cdcwatch.errors import DecodeError

if TYPE_CHECKING:
    from cdcwatch.deadline.rule import DeadlineRule, Derived
    from cdcwatch.decode.change import Message, Row
    from cdcwatch.table import Key

Update = tuple["Key", int | None, int]
"""For the schedule: key, its live deadline in microseconds (None: it has none any more), row version (0: unknown)."""


class Portion(NamedTuple):
    """What a bite of the stream came to."""

    events: list[Event]
    updates: list[Update]
    truncated_at: list[int]
    """Places in `updates` before which the table was emptied."""
    position: Position
    """After the last of the events."""


class Derivation:
    """Feed it messages; take what they came to with `drain`. Changes that `covered` covers give no events again."""

    def __init__(self, rule: DeadlineRule, encoder: EventEncoder) -> None:
        self._rule, self._encoder = rule, encoder
        self._covered = Position()
        self._snapshot: SnapshotVisibility | None = None
        self._position = Position()
        self._transaction: Begin | None = None
        self._stamp = Stamp("", "")
        self._ordinal = 0
        self._repeats_all = False
        self._repeats_through = 0
        self._held_delete: Change | None = None
        self._events: list[Event] = []
        self._updates: list[Update] = []
        self._truncated_at: list[int] = []
        self.change_count = 0
        self.replayed_count = 0

    @property
    def in_transaction(self) -> bool:
        """Whether a Begin came and its Commit hasn't yet."""
        return self._transaction is not None

    @property
    def has_undrained(self) -> bool:
        """Whether events wait for `drain`."""
        return bool(self._events)

    @property
    def position(self) -> Position:
        """After the last change that is settled; a held delete is not."""
        return self._position

    def restart(self, covered: Position, snapshot: SnapshotVisibility | None = None) -> None:
        """A new connection: the stream begins again at or before `covered`, outside a transaction.

        `snapshot`: transactions that a read of the table has shown already; their events are not repeated either.
        """
        self._covered, self._snapshot = covered, snapshot
        self._position = covered
        self._transaction, self._held_delete, self._ordinal = None, None, 0
        self._events, self._updates, self._truncated_at = [], [], []

    def feed(self, message: Message) -> None:
        """One message. DecodeError when it can't follow the one before."""
        if isinstance(message, Change):
            self.change_count += 1
            self._change(message)
        elif isinstance(message, Begin):
            self._begin(message)
        elif isinstance(message, Commit):
            self._commit(message)
        else:
            self._truncate(message)

    def idle_at(self, wal_end: int) -> None:
        """The server has sent all there is up to `wal_end`, and we are outside a transaction: nothing lies between."""
        if self._transaction is None and wal_end > self._position.end_lsn:
            self._position = Position(wal_end, self._position.commit_lsn, self._position.ordinal)

    def drain(self) -> Portion:
        """What has come since the last drain."""
        portion = Portion(self._events, self._updates, self._truncated_at, self._position)
        self._events, self._updates, self._truncated_at = [], [], []
        return portion

    def _begin(self, begin: Begin) -> None:
        if self._transaction is not None:
            raise DecodeError("a transaction began inside another", remedy="use an output plugin without streaming")
        self._transaction = begin
        self._ordinal = 0
        self._stamp = Stamp.of(begin.commit_lsn, begin.time_us)
        covered = self._covered
        seen = self._snapshot is not None and self._snapshot.sees(begin.xid)
        self._repeats_all = seen or begin.commit_lsn < covered.end_lsn
        self._repeats_through = covered.ordinal if begin.commit_lsn == covered.commit_lsn else 0

    def _commit(self, commit: Commit) -> None:
        if self._transaction is None or self._transaction.commit_lsn != commit.commit_lsn:
            raise DecodeError("a commit came without its begin", remedy="report this with the server's version")
        self._settle_held_delete()
        self._transaction = None
        if commit.end_lsn > self._position.end_lsn:
            self._position = Position(commit.end_lsn, commit.commit_lsn, self._ordinal)

    def _change(self, change: Change) -> None:
        kind, key, new = change.kind, change.key, change.new
        held = self._held_delete
        if held is not None:
            if kind is Kind.INSERT and key == held.key and new is not None:
                # A row that moved between partitions: one update, under the insert's ordinal.
                self._held_delete = None
                self._ordinal += 2
                self._schedule(key, new)
                self._emit(key, self._rule.updated(held.old, new))
                return
            self._settle_held_delete()
        if kind is Kind.DELETE:
            self._held_delete = change
            return
        if new is None:
            raise DecodeError("a change came without its new row", remedy="report this with the server's version")
        if kind is Kind.UPDATE and change.old_key is not None:
            # The old key is deleted, the new one inserted: two ordinals.
            self._ordinal += 1
            self._updates.append((change.old_key, None, 0))
            self._emit(change.old_key, self._rule.deleted(change.old))
            kind = Kind.INSERT
        self._ordinal += 1
        self._schedule(key, new)
        self._emit(key, self._rule.inserted(new) if kind is Kind.INSERT else self._rule.updated(change.old, new))

    def _settle_held_delete(self) -> None:
        held = self._held_delete
        if held is not None:
            self._held_delete = None
            self._ordinal += 1
            self._updates.append((held.key, None, 0))
            self._emit(held.key, self._rule.deleted(held.old))

    def _truncate(self, _: Truncate) -> None:
        self._settle_held_delete()
        self._ordinal += 1
        self._truncated_at.append(len(self._updates))
        if self._is_news():
            self._events.append(self._encoder.table_wide(self._rule.truncated(), self._stamp, self._ordinal))

    def _schedule(self, key: Key, new: Row) -> None:
        """The heap takes the version from every change, event or not."""
        live_us = self._rule.live_us(new)
        self._updates.append((key, live_us, new.version or 0))

    def _emit(self, key: Key, derived: Derived | None) -> None:
        if self._is_news() and derived is not None:
            self._events.append(self._encoder.change(key, derived, self._stamp, self._ordinal))

    def _is_news(self) -> bool:
        """Moves the position over the change at hand; False when it was behind us already."""
        if self._repeats_all or self._ordinal <= self._repeats_through:
            self.replayed_count += 1
            return False
        if self._transaction is None:
            raise DecodeError("a change came outside a transaction", remedy="report this with the server's version")
        self._position = Position(self._position.end_lsn, self._transaction.commit_lsn, self._ordinal)
        return True
