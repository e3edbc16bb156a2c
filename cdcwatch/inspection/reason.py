"""Why a change gives no event, in words. Pure; the rule itself is `cdcwatch.deadline.rule`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdcwatch.instant import INFINITY_US

if TYPE_CHECKING:
    from cdcwatch.deadline.position import Position, SnapshotVisibility
    from cdcwatch.deadline.rule import DeadlineRule
    from cdcwatch.decode.change import Begin, Row

IN_TOPIC: Final = "the topic has it already"
IN_SNAPSHOT: Final = "a snapshot has shown it"
MERGED: Final = "one update with the insert after it"


def behind(begin: Begin, ordinal: int, covered: Position, snapshot: SnapshotVisibility | None) -> str | None:
    """Why a change that would give an event is not published again."""
    if covered.covers(begin.commit_lsn, ordinal):
        return IN_TOPIC
    return IN_SNAPSHOT if snapshot is not None and snapshot.sees(begin.xid) else None


def why_none(rule: DeadlineRule, old: Row | None, new: Row | None) -> str:
    """Of an insert (no old row), an update or a delete (no new row) without an event."""
    if new is None:
        return f"it was not live: {_why_dead(old)}" if old is not None else "gone"
    if old is None:
        return _why_dead(new)
    if rule.was_live_us(old) is not None:
        if old.status != new.status and rule.claimed_status in {old.status, new.status}:
            moved = f"{old.status} to {new.status}"
            return f"claimed or taken back ({moved}): its close is under way, the deadline told as live"
        return "status and deadline unchanged"
    return f"not live before or after: {_why_dead(new)}"


def _why_dead(row: Row) -> str:
    if row.deadline_us is None:
        return "no deadline"
    if row.deadline_us == INFINITY_US:
        return "deadline infinity"
    return f"status {row.status} is not open"
