"""The stream's messages to deadline events and schedule updates, with the ids that make a replay harmless.

State lives between two messages of one transaction only: the ordinal, which orders it is about to close by deleting
them, and a delete that may turn out to be half of a move between partitions. https://www.postgresql.org/docs/current/ddl-partitioning.html
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, NamedTuple

from cdcwatch.deadline.position import Position, SnapshotVisibility
from cdcwatch.decode.change import INSERT, UPDATE, Begin, Change, Commit, Truncate, Unreadable
from cdcwatch.decode.note import CloseFailure, Closing
from cdcwatch.errors import DecodeError
from cdcwatch.lsn import format_lsn

if TYPE_CHECKING:
    from cdcwatch.deadline.event import Encoder, Event, Stamp
    from cdcwatch.deadline.rule import DeadlineRule, Derived
    from cdcwatch.decode.change import AnyMessage, Row
    from cdcwatch.table import Key

Update = tuple["Key", int | None, int]
"""For the schedule: key, its live deadline in microseconds (None: it has none any more), row version (0: unknown)."""


class Learnt(NamedTuple):
    """For the schedule of one table."""

    updates: list[Update]
    truncated_at: list[int]
    """Places in `updates` before which the table was emptied."""


class Portion(NamedTuple):
    """What a bite of the stream came to."""

    events: list[Event]
    updates: list[Update]
    truncated_at: list[int]
    """Places in `updates` before which the table was emptied."""
    position: Position
    """After the last of the events."""
    further: tuple[Learnt, ...] = ()
    """Of the tables after the first, where there are several."""


class Derivation:
    """Feed it messages; take what they came to with `drain`. Changes that `covered` covers give no events again."""

    def __init__(self, rule: DeadlineRule, encoder: Encoder) -> None:
        self._rule, self._encoder = rule, encoder
        self._claimed_status = rule.claimed_status
        self._covered = Position()
        self._snapshot: SnapshotVisibility | None = None
        self._is_shown = False  # the transaction at hand, by the snapshot, and so passed over
        self._transaction: Begin | None = None
        self._stamp: Stamp | None = None  # of the transaction at hand, made when its first event is
        self._ordinal = 0  # of the last change that is settled, in the transaction at hand
        self._repeats_through = 0  # the ordinals of this transaction that are behind us
        self._end_lsn = self._news_commit_lsn = self._news_ordinal = (
            0  # the position, in pieces: it moves with every change
        )
        self._held_delete: Change | None = None
        self._closing: set[Key] = set()  # what the transaction at hand has said it closes, and not deleted yet
        self._events: list[Event] = []
        self._updates: list[Update] = []
        self._truncated_at: list[int] = []
        self.change_count = 0
        self.replayed_count = 0
        self.dead_letter_count = 0
        self.tells_all = False
        """Since the restart, what the snapshot has shown is told all the same: a close came."""
        self.last_dead_letter = ""
        """Its id and reason."""

    @property
    def in_transaction(self) -> bool:
        """Whether a Begin came and its Commit hasn't yet."""
        return self._transaction is not None

    @property
    def open_changes(self) -> int:
        """How many changes of the transaction at hand have come; 0 outside of one."""
        return 0 if self._transaction is None else self._ordinal

    @property
    def has_undrained(self) -> bool:
        """Whether events wait for `drain`."""
        return bool(self._events)

    @property
    def position(self) -> Position:
        """After the last change that is settled; a held delete is not."""
        return Position(self._end_lsn, self._news_commit_lsn, self._news_ordinal)

    def restart(self, covered: Position, snapshot: SnapshotVisibility | None = None) -> None:
        """A new connection: the stream begins again at or before `covered`, outside a transaction.

        `snapshot`: transactions that a read of the table has shown already; their events are not repeated either. At a
        first read up to the first close among them: closing may begin before the read is published, as the broker may
        be away or the process die over it. What was closed by then is not in the read, and the stream tells all from
        there on.
        """
        self._covered, self._snapshot, self._is_shown, self.tells_all = covered, snapshot, False, False
        self._end_lsn, self._news_commit_lsn, self._news_ordinal = covered
        self._transaction, self._held_delete, self._ordinal = None, None, 0
        self._closing = set()
        self._events, self._updates, self._truncated_at = [], [], []

    def feed(self, message: AnyMessage) -> None:
        """One message. DecodeError when it can't follow the one before."""
        if type(message) is Change:  # quicker than isinstance, for every row
            self._change(message)
        elif isinstance(message, Begin):
            self._begin(message)
        elif isinstance(message, Commit):
            self._commit(message)
        elif isinstance(message, Truncate):
            self._truncate(message)
        elif isinstance(message, CloseFailure):
            self._close_failed(message)
        elif isinstance(message, Closing):
            self._begin_to_close(message)
        elif isinstance(message, Unreadable):
            self._unreadable(message)
        else:
            raise TypeError("what is about one table of several is for a SharedDerivation")

    def idle_at(self, wal_end: int) -> None:
        """The server has sent all there is up to `wal_end`, and we are outside a transaction: nothing lies between."""
        if self._transaction is None and wal_end > self._end_lsn:
            self._end_lsn = wal_end

    def drain(self) -> Portion:
        """What has come since the last drain."""
        portion = Portion(self._events, self._updates, self._truncated_at, self.position)
        self._events, self._updates, self._truncated_at = [], [], []
        return portion

    def _begin(self, begin: Begin) -> None:
        if self._transaction is not None:
            raise DecodeError("a transaction began inside another", remedy="use an output plugin without streaming")
        self._transaction = begin
        self._ordinal = 0
        self._stamp = None
        self._is_shown = self._snapshot is not None and self._snapshot.sees(begin.xid)
        self._repeats_through = sys.maxsize if self._is_shown else self._covered_ordinals(begin)

    def _covered_ordinals(self, begin: Begin) -> int:
        covered = self._covered
        if begin.commit_lsn < covered.end_lsn:
            return sys.maxsize
        return covered.ordinal if begin.commit_lsn == covered.commit_lsn else 0

    def _commit(self, commit: Commit) -> None:
        if self._transaction is None or self._transaction.commit_lsn != commit.commit_lsn:
            raise DecodeError("a commit came without its begin", remedy="report this with the server's version")
        self._settle_held_delete()
        self._transaction = None
        if self._closing:
            self._closing = set()
        if commit.end_lsn > self._end_lsn:
            self._end_lsn, self._news_commit_lsn, self._news_ordinal = commit.end_lsn, commit.commit_lsn, self._ordinal

    def _change(self, change: Change) -> None:
        self.change_count += 1
        kind, key, new, old, old_key = change
        if self._transaction is None:
            raise DecodeError("a change came outside a transaction", remedy="report this with the server's version")
        held = self._held_delete
        if held is not None:
            if kind == INSERT and key == held.key:
                # A row that moved between partitions: one update, under the insert's ordinal.
                self._held_delete = None
                self._ordinal += 1
                kind, old = UPDATE, held.old
            else:
                self._settle_held_delete()
        if new is None:
            if key in self._closing:
                # A close, whatever follows: an order of the same key that comes back at once is a new one.
                self._closing.discard(key)
                self._removed(key, old, is_close=True)
            else:
                self._held_delete = change
            return
        if old_key is not None:
            # The old key is deleted, the new one inserted: two ordinals.
            self._removed(old_key, old)
            kind = INSERT
        rule = self._rule
        live_us = rule.live_us(new)
        # The heap takes the version from every change, event or not.
        is_claimed = self._claimed_status is not None and new.status == self._claimed_status
        self._updates.append((key, None if is_claimed else live_us, new.version or 0))
        if self._is_news() or (self._is_shown and kind == UPDATE and self._tells_from(rule.updated(old, new, live_us))):
            derived = rule.inserted(new, live_us) if kind == INSERT else rule.updated(old, new, live_us)
            if derived is not None:
                stamp = self._stamp or self._stamped()
                self._events.append(self._encoder.change(key, derived, stamp, self._ordinal))

    def _settle_held_delete(self) -> None:
        held, self._held_delete = self._held_delete, None
        if held is not None:
            self._removed(held.key, held.old)

    def _removed(self, key: Key, old: Row | None, *, is_close: bool = False) -> None:
        rule = self._rule
        self._updates.append((key, None, 0))
        if self._is_news() or (self._is_shown and is_close and self._tells_from(rule.closed(old))):
            derived = rule.closed(old) if is_close else rule.deleted(old)
            if derived is not None:
                stamp = self._stamp or self._stamped()
                self._events.append(self._encoder.change(key, derived, stamp, self._ordinal))

    def _truncate(self, _: Truncate) -> None:
        if self._transaction is None:
            raise DecodeError("a truncate came outside a transaction", remedy="report this with the server's version")
        self._settle_held_delete()
        self._truncated_at.append(len(self._updates))
        if self._is_news():
            self._events.append(self._encoder.table_wide(self._rule.truncated(), self._stamped(), self._ordinal))

    def _unreadable(self, change: Unreadable) -> None:
        """One ordinal, whatever it was, and no update: the database decides what is closed, not the heap."""
        if self._transaction is None:
            raise DecodeError("a change came outside a transaction", remedy="report this with the server's version")
        self.change_count += 1
        self._settle_held_delete()
        if self._is_news():
            commit_lsn = self._transaction.commit_lsn
            self.dead_letter_count += 1
            self.last_dead_letter = f"{format_lsn(commit_lsn)}-{self._ordinal}: {change.reason}"
            self._events.append(self._encoder.dead_letter(change, commit_lsn, self._ordinal))

    def _close_failed(self, failure: CloseFailure) -> None:
        """One ordinal, like a row change, and a dead letter."""
        if self._transaction is None:
            raise DecodeError("a note came outside a transaction", remedy="report this with the server's version")
        self._settle_held_delete()
        if self._is_news():
            self._events.append(self._encoder.close_failure(failure, self._transaction.commit_lsn, self._ordinal))

    def _begin_to_close(self, closing: Closing) -> None:
        """No row change, so no ordinal: of what follows in this transaction, the deletes of these keys are closes."""
        if self._transaction is None:
            raise DecodeError("a note came outside a transaction", remedy="report this with the server's version")
        self._settle_held_delete()
        self._closing |= closing.keys

    def _stamped(self) -> Stamp:
        begin = self._transaction
        if begin is None:
            raise RuntimeError("an event has a transaction")
        self._stamp = stamp = self._encoder.stamp(begin.commit_lsn, begin.time_us)
        return stamp

    def _tells_from(self, derived: Derived | None) -> bool:
        """Whether this change, which the snapshot shows, is told, and all that follow: from the first close on."""
        begin, covered, snapshot = self._transaction, self._covered, self._snapshot
        if begin is None or snapshot is None or not snapshot.to_first_close:
            return False
        if derived is None or not self._rule.is_close(derived):
            return False
        self._snapshot, self._is_shown, self.tells_all = None, False, True
        if begin.commit_lsn < covered.end_lsn:
            return False
        self._repeats_through = covered.ordinal if begin.commit_lsn == covered.commit_lsn else 0
        if self._ordinal <= self._repeats_through:
            return False
        self.replayed_count -= 1
        self._news_commit_lsn, self._news_ordinal = begin.commit_lsn, self._ordinal
        return True

    def _is_news(self) -> bool:
        """Counts the change at hand and moves the position over it; False when it was behind us already."""
        ordinal = self._ordinal = self._ordinal + 1
        if ordinal <= self._repeats_through:
            self.replayed_count += 1
            return False
        if self._transaction is not None:
            self._news_commit_lsn, self._news_ordinal = self._transaction.commit_lsn, ordinal
        return True
