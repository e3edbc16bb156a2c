"""The outbox with a memory of the last events that went through it, for whoever looks at the service.

What it costs the reader is a slice of at most a dozen references a bite; events are read when somebody asks.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdcwatch.handoff.outbox import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdcwatch.deadline.event import Event
    from cdcwatch.handoff.progress import Progress

KEPT: Final = 12


class RecentOutbox(Outbox):
    """As of `Outbox`."""

    def __init__(self, limit_bytes: int, on_flush: Callable[[], None]) -> None:
        super().__init__(limit_bytes, on_flush)
        self._recent: deque[Event] = deque(maxlen=KEPT)

    def offer(self, events: Sequence[Event], progress: Progress) -> None:
        """As of `Outbox`."""
        super().offer(events, progress)
        if events:
            self._recent.extend(events[-KEPT:])

    def recent(self) -> list[dict[str, Any]]:
        """The last events, the newest first: type, key, position and time; nothing else of an order."""
        return [told for event in reversed(list(self._recent)) if (told := _told(event)) is not None]


def _told(event: Event) -> dict[str, Any] | None:
    """None of an event without bytes (`sink.kind = "none"`)."""
    if not event.value:
        return None
    said: dict[str, Any] = orjson.loads(event.value)
    if "about" in said:  # a dead letter
        return {
            "type": f"dead letter: {said['about']}",
            "table": "",
            "key": "",
            "lsn": said["commit_lsn"],
            "time": None,
        }
    return {
        "type": said["type"],
        "table": said["source"].rpartition("/")[2],
        "key": said["subject"],
        "lsn": said["data"]["commit_lsn"],
        "time": said["time"],
    }
