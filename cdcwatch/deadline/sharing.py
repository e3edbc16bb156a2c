"""The derivation of several tables that share a stream: ordinals count the row changes of all, events keep their order.

With one table nothing of this runs.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cdcwatch.deadline.derivation import Derivation, Learnt, Portion
from cdcwatch.decode.change import Begin, Of, Together

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdcwatch.deadline.event import Encoder
    from cdcwatch.deadline.position import Position, SnapshotVisibility
    from cdcwatch.deadline.rule import DeadlineRule
    from cdcwatch.decode.change import AnyMessage
    from cdcwatch.table import Key


class SharedDerivation(Derivation):
    """Turned to one table at a time: to that of the message at hand."""

    def __init__(self, tables: Sequence[tuple[DeadlineRule, Encoder]], oids: Sequence[int]) -> None:
        super().__init__(*tables[0])
        self._tables, self._oids = tables, oids
        self._closings = self._no_closings()
        self._is_seen = False  # the transaction at hand, by the snapshot: of the tables that were read under it
        self._turned_to = 0
        self._learnt = [Learnt([], []) for _ in tables]
        self._updates, self._truncated_at = self._learnt[0]

    def restart(self, covered: Position, snapshot: SnapshotVisibility | None = None) -> None:
        """As of one table."""
        super().restart(covered, snapshot)
        self._forget_learnt()

    def feed(self, message: AnyMessage) -> None:
        """One message; what is about a table says which."""
        if isinstance(message, Of):
            if message.table != self._turned_to:
                self._turn_to(message.table)
            super().feed(message.message)
        elif isinstance(message, Together):
            for part in message.parts:
                self.feed(part)
        else:
            super().feed(message)
            if isinstance(message, Begin):
                self._closings = self._no_closings()
                self._closing = self._closings[self._turned_to]
                self._is_seen = self._is_shown
                self._show(message)

    def drain(self) -> Portion:
        """What has come since the last drain, for the schedule of each table."""
        first, *further = self._learnt
        portion = Portion(self._events, first.updates, first.truncated_at, self.position, tuple(further))
        self._events = []
        self._forget_learnt()
        return portion

    def _turn_to(self, table: int) -> None:
        # A delete of the other table is no half of a move: what follows is about another.
        self._settle_held_delete()
        # Which orders a transaction is about to delete is said by key, and another table has the same keys.
        self._closings[self._turned_to], self._closing = self._closing, self._closings[table]
        self._turned_to = table
        self._rule, self._encoder = self._tables[table]
        self._claimed_status = self._rule.claimed_status
        self._updates, self._truncated_at = self._learnt[table]
        if self._is_seen and self._transaction is not None:
            self._show(self._transaction)

    def _show(self, begin: Begin) -> None:
        """Of a transaction that the snapshot shows, what is about a table that was not read then is told."""
        snapshot = self._snapshot
        if snapshot is None or snapshot.only_tables is None or not self._is_seen:
            return
        self._is_shown = self._oids[self._turned_to] in snapshot.only_tables
        self._repeats_through = sys.maxsize if self._is_shown else self._covered_ordinals(begin)

    def _no_closings(self) -> list[set[Key]]:
        return [set() for _ in self._tables]

    def _forget_learnt(self) -> None:
        self._learnt = [Learnt([], []) for _ in self._tables]
        self._updates, self._truncated_at = self._learnt[self._turned_to]
