"""The typed view of what cdcwatch itself publishes: docs/topic.md."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from cdcwatch.consume.event import NotAnEventError
from cdcwatch.instant import NEGATIVE_INFINITY_US, read_instant, to_unix_us

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdcwatch.consume.event import Event

SCHEDULED: Final = "deadline.scheduled"
MOVED: Final = "deadline.moved"
CANCELLED: Final = "deadline.cancelled"
EXPIRED: Final = "deadline.expired"
GAP: Final = "stream.gap"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class DeadlineEvent:
    """What a `deadline.…` event says of its order, and `stream.gap` of the stream. In JSON and in Avro."""

    event: Event
    key: Mapping[str, str] | None
    """The primary key's columns, as texts; None: about every order (a TRUNCATE, a gap)."""
    deadline_us: int | None
    """Microseconds since 1970-01-01 00:00 UTC; None: no deadline; NEGATIVE_INFINITY_US: due at once, always."""
    previous_deadline_us: int | None
    status: str | None
    version: int | None
    snapshot: bool
    reason: str | None
    """Of `deadline.cancelled` and `stream.gap`."""
    commit_lsn: str | None

    @classmethod
    def of(cls, event: Event) -> DeadlineEvent:
        """NotAnEventError where the event is no deadline event: another type, or data of another shape."""
        data = event.data
        if event.type not in {SCHEDULED, MOVED, CANCELLED, EXPIRED, GAP} or not isinstance(data, dict):
            raise NotAnEventError("no deadline event")
        key = data.get("key")
        if key is not None and not isinstance(key, dict):
            raise NotAnEventError("the key is no object")
        return cls(
            event=event,
            key=key,
            deadline_us=_instant(data, "deadline"),
            previous_deadline_us=_instant(data, "previous_deadline"),
            status=data.get("status"),
            version=_whole(data.get("version")),
            snapshot=bool(data.get("snapshot")),
            reason=data.get("reason"),
            commit_lsn=data.get("commit_lsn"),
        )

    @property
    def deadline(self) -> datetime | None:
        """The same in UTC; None where there is none, and where `datetime` can't hold it (before year 1, after 9999)."""
        return _moment(self.deadline_us)

    @property
    def previous_deadline(self) -> datetime | None:
        """As `deadline`."""
        return _moment(self.previous_deadline_us)


def _instant(data: Mapping[str, Any], name: str) -> int | None:
    """JSON has a text, Avro an instant and, where that lies outside of the years 1 to 9999, the text beside it."""
    value = data.get(f"{name}_exact") or data.get(name)
    if value is None or isinstance(value, int):
        return value
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(microseconds=1)
    try:
        us = read_instant(value)
    except (ValueError, TypeError):
        raise NotAnEventError("a deadline that is no instant") from None
    return us if us == NEGATIVE_INFINITY_US else to_unix_us(us)


def _whole(value: Any) -> int | None:
    try:
        return None if value is None else int(value)
    except (ValueError, TypeError):
        raise NotAnEventError("a version that is no number") from None


def _moment(us: int | None) -> datetime | None:
    if us is None or us == NEGATIVE_INFINITY_US:
        return None
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return None
