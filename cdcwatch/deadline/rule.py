"""Which deadline event a change is: a pure function of the old and the new row, never of what is in memory.

So a replay derives the same events. Where the replica identity hides the old row, an update gives the state it leaves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cdcwatch.instant import INFINITY_US

if TYPE_CHECKING:
    from cdcwatch.decode.change import Row
    from cdcwatch.table import WatchedTable


EventType = Literal["deadline.scheduled", "deadline.moved", "deadline.cancelled", "deadline.expired"]
SCHEDULED: Final = "deadline.scheduled"
MOVED: Final = "deadline.moved"
CANCELLED: Final = "deadline.cancelled"
EXPIRED: Final = "deadline.expired"
EVENT_TYPES: Final[tuple[EventType, ...]] = (SCHEDULED, MOVED, CANCELLED, EXPIRED)

_new = tuple.__new__  # what a NamedTuple's own constructor comes to, in half the time

REASON_DELETED = "deleted"
REASON_TRUNCATED = "truncated"
REASON_CLEARED = "deadline_cleared"
REASON_VANISHED = "vanished"


class Derived(NamedTuple):
    """An event before it has a key and an id."""

    type: EventType
    row: Row | None
    """The row the change left; None when there is none any more."""
    previous_us: int | None
    """The deadline that was live before, where the old row is known."""
    reason: str | None = None
    """Of a cancellation: the status the row left for, or one of the REASON_… words."""


class DeadlineRule:
    """What counts as a live deadline in one table, and what a change to it means."""

    def __init__(self, table: WatchedTable) -> None:
        # A claimed order (`close.action = "claim"`) is still told as live: its close is under way, and what ends it is
        # either the close or whoever takes the order out of that status.
        self._open = table.told if table.status else None
        self.claimed_status = table.claim.processing if table.claim and table.status else None
        """The status in which a deadline is told as live and armed in no heap."""
        self._closed_status = table.closed_status if table.status else None
        self._clears = table.status is None and not table.deletes
        self.never_due_count = 0
        """New rows that were open with the deadline `infinity`: they never come, and are in no heap."""

    def live_us(self, new: Row) -> int | None:
        """The row's deadline while it counts: the status is open or claimed, the deadline not NULL, not `infinity`."""
        if self._open is not None and new.status not in self._open:
            return None
        if new.deadline_us == INFINITY_US:
            self.never_due_count += 1
            return None
        return new.deadline_us

    def was_live_us(self, old: Row) -> int | None:
        """The same of a row that is no more: it is not counted again."""
        if self._open is not None and old.status not in self._open:
            return None
        return None if old.deadline_us == INFINITY_US else old.deadline_us

    @staticmethod
    def inserted(new: Row, live_us: int | None) -> Derived | None:
        """A new row; `live_us` is its `live_us(…)`, which the caller has already."""
        return None if live_us is None else _new(Derived, (SCHEDULED, new, None, None))

    def updated(self, old: Row | None, new: Row, live_us: int | None) -> Derived | None:
        """A changed row; `old` is None where it is unknown."""
        if old is None:
            return _new(Derived, (SCHEDULED, new, None, None)) if live_us is not None else self._ended(new, None)
        was_us = self.was_live_us(old)
        if was_us == live_us:
            return None
        if was_us is None:
            return Derived(SCHEDULED, new, None)
        return Derived(MOVED, new, was_us) if live_us is not None else self._ended(new, was_us)

    def is_close(self, derived: Derived) -> bool:
        """Whether it may be a close of ours: without a status it shows as a deadline that was cleared."""
        return derived.type == EXPIRED or (self._clears and derived.reason == REASON_CLEARED)

    def closed(self, old: Row | None) -> Derived | None:
        """A row that a close of ours has deleted."""
        was = None if old is None else self.was_live_us(old)
        return None if old is not None and was is None else Derived(EXPIRED, None, was)

    def deleted(self, old: Row | None) -> Derived | None:
        """A row that is gone."""
        if old is None:
            return Derived(CANCELLED, None, None, REASON_DELETED)
        was = self.was_live_us(old)
        return None if was is None else Derived(CANCELLED, None, was, REASON_DELETED)

    def restated(self, told_us: int | None, new: Row) -> Derived | None:
        """A row of a read of the table that is live; `told_us`: the live deadline that subscribers know, if any."""
        live_us = self.was_live_us(new)
        if live_us is None or live_us == told_us:
            return None
        return Derived(SCHEDULED if told_us is None else MOVED, new, told_us)

    def vanished(self, told_us: int, new: Row | None) -> Derived:
        """An order that subscribers take for live and that is not; `new`: its row, where there still is one."""
        return Derived(CANCELLED, None, told_us, REASON_VANISHED) if new is None else self._ended(new, told_us)

    def truncated(self) -> Derived:
        """Every row is gone; which ones is not logged."""
        return Derived(CANCELLED, None, None, REASON_TRUNCATED)

    def _ended(self, new: Row, was_us: int | None) -> Derived:
        if self._closed_status is not None and new.status == self._closed_status:
            return Derived(EXPIRED, new, was_us)
        if self._open is None or new.status in self._open:
            return Derived(CANCELLED, new, was_us, REASON_CLEARED)
        return Derived(CANCELLED, new, was_us, new.status or "status_cleared")
