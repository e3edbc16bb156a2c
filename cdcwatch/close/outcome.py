"""What became of an order whose deadline was reached, and what to do next. The database has decided; this names it."""

from __future__ import annotations

from enum import Enum, StrEnum
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from cdcwatch.deadline.schedule import Due
from cdcwatch.instant import INFINITY_US

if TYPE_CHECKING:
    from cdcwatch.table import Key, WatchedTable


class Outcome(StrEnum):
    """Of one attempt to close one order. None of them is an error but `failed`."""

    CLOSED = "closed"
    PAID = "paid"
    """Its status is no longer an open one: the other side of the race won."""
    MOVED = "moved"
    """Another deadline or another version than we knew."""
    ALREADY_CLOSED = "already_closed"
    FOUND_CLOSED = "found_closed"
    """Already closed, with the next version, after an attempt of ours of which the answer was lost.

    Where closes delete: gone after such an attempt."""
    GONE = "gone"
    """There is no such row."""
    CLEARED = "cleared"
    """It has no deadline now: NULL or infinity."""
    NOT_DUE = "not_due"
    """The database's clock has not reached the deadline: ours runs ahead."""
    LOCKED = "locked"
    """Open, due and unchanged, but another transaction holds the row, or the statement gave way to one."""
    CLAIMED = "claimed"
    """By us or by others: its external action is under way, or was given up."""
    FENCED = "fenced"
    """Its external action is done, and was another claim's by then: that one records it."""
    FAILED = "failed"
    """The closing statement raised an error for this order alone: a trigger, a constraint."""
    DEFERRED = "deferred"
    """Not tried alone: others of its batch failed, and singling them out took too long."""


class CurrentRow(NamedTuple):
    """An order as it was read again after the close passed it by."""

    status: str | None
    version: int
    """0 where the table has none."""
    deadline_us: int | None
    due: bool
    """Whether the database's clock had reached the deadline when it was read."""


class Action(Enum):
    """What follows from an outcome."""

    NOTHING = "nothing"
    REARM = "rearm"
    """Put the order back with the deadline and version as they are now."""
    RETRY = "retry"
    """Try again later, with back-off."""
    GIVE_BACK = "give_back"
    """Take the order back as if it had not been tried: at once, in the lane it came from."""


class Verdict(NamedTuple):
    """An outcome's consequence; `due` is what to re-arm or to try again with."""

    action: Action
    due: Due


class Closed(NamedTuple):
    """An order that we closed."""

    key: Key
    deadline_us: int
    version: int
    """The version after the close; of a deleted order, its last."""
    closed_us: int
    """The database's clock at the row's close."""

    @property
    def lateness_us(self) -> int:
        """Closed after its deadline by so much; never negative."""
        return self.closed_us - self.deadline_us


class Unclosed(NamedTuple):
    """An order that we did not close, and why."""

    due: Due
    outcome: Outcome
    row: CurrentRow | None = None
    error: str = ""
    """Of a `failed` one: the SQLSTATE and its name, no row values."""
    is_tables_fault: bool = False
    """Whether that error is of the table or the role, so that every order meets it."""


class CloseReport(Struct):
    """What became of every order of a batch."""

    closed: list[Closed] = field(default_factory=list)
    claimed: list[Key] = field(default_factory=list)
    """Of `close.action = "claim"`: their external action comes next."""
    unclosed: list[Unclosed] = field(default_factory=list)
    error: str = ""
    """The last error that made an order `failed` or `locked`: its SQLSTATE and name, no row values."""


def classify(due: Due, row: CurrentRow | None, table: WatchedTable) -> Outcome:
    """Names why the close of `due` passed over the order that `row` shows."""
    if row is None:
        return Outcome.GONE
    if table.claim is not None and row.status in table.claim:
        return Outcome.CLAIMED
    if table.status is not None and row.status not in table.open:
        return Outcome.ALREADY_CLOSED if row.status == table.closed_status else Outcome.PAID
    if row.deadline_us is None or row.deadline_us == INFINITY_US:
        return Outcome.CLEARED
    if row.deadline_us != due.deadline_us or row.version != due.version:
        return Outcome.MOVED
    return Outcome.LOCKED if row.due else Outcome.NOT_DUE


def consequence(outcome: Outcome, due: Due, row: CurrentRow | None) -> Verdict:
    """What to do with an order after `outcome`."""
    if outcome in (Outcome.LOCKED, Outcome.FAILED):
        return Verdict(Action.RETRY, due)
    if outcome is Outcome.DEFERRED:
        return Verdict(Action.GIVE_BACK, due)
    if outcome in (Outcome.MOVED, Outcome.NOT_DUE) and row is not None and row.deadline_us is not None:
        return Verdict(Action.REARM, Due(due.key, row.deadline_us, row.version))
    return Verdict(Action.NOTHING, due)
