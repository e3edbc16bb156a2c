"""Orders that came into the table with a partition, on their way into the topic. ATTACH writes none of them to the WAL.

Another thread reads them from the table under one snapshot. The reader hands them to the outbox, between the stream's
own events, once the stream has passed that snapshot: and only those of which the stream has told nothing since a time
at which the partition was not there yet. So every order of it is told once, and none with a state that is over.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cdcwatch.deadline.event import Event
    from cdcwatch.table import Attachment


class _Offered(NamedTuple):
    events: Sequence[Event]
    after_lsn: int
    """Every transaction that the events show has committed before."""
    known: tuple[Attachment, ...] | None
    """With the last of them: the partitions whose orders the topic knows then."""


class Arrivals:
    """Between the thread that reads the table and the reader's; outlives connections."""

    def __init__(self, wake: Callable[[], None], topic: str | None = None) -> None:
        """`wake` ends the reader's wait. `topic`: of the table's events, where others share the stream."""
        self._topic = topic
        self.known: tuple[Attachment, ...] | None = None
        """The partitions whose orders the topic knows; None: not partitioned, or not known yet."""
        self._wake = wake
        self._taken = threading.Condition()
        self._offered: _Offered | None = None
        # Keys of which the stream told: since the last look at the partitions, and between that one and the one before.
        self._told: set[bytes | None] = set()
        self._told_before: set[bytes | None] = set()

    # -- the thread that reads the table -----------------------------------------------------------------------------

    def turn(self) -> None:
        """The partitions were looked at, and none has come: what the stream told before needs no remembering."""
        self._told_before, self._told = self._told, set()

    def forget(self) -> None:
        """Of a partition that was away in between, what the stream told before is over: it holds back no order."""
        self._told_before, self._told = set(), set()

    def give(
        self, events: Sequence[Event], *, after_lsn: int, timeout_s: float, known: tuple[Attachment, ...] | None = None
    ) -> bool:
        """Waits until the reader has taken them; False when it has not in time, and won't."""
        with self._taken:
            self._offered = _Offered(events, after_lsn, known)
            self._wake()
            self._taken.wait_for(lambda: self._offered is None, timeout_s)
            is_taken, self._offered = self._offered is None, None
        return is_taken

    # -- the reader's thread -----------------------------------------------------------------------------------------

    @property
    def waits(self) -> bool:
        """Whether something is to be taken, at once or once the stream has come that far."""
        return self._offered is not None

    def note(self, events: Iterable[Event]) -> None:
        """What the stream tells."""
        topic = self._topic
        self._told.update([event.key for event in events if topic is None or event.topic == topic])

    def take(self, position_lsn: int) -> list[Event] | None:
        """What is to be handed over now that the stream was read up to `position_lsn`; None: nothing is waiting."""
        if self._offered is None:  # a look without the lock: this is asked at every step
            return None
        with self._taken:
            offered = self._offered
            if offered is None or position_lsn < offered.after_lsn:
                return None
            if offered.known is not None:
                self.known = offered.known
            self._offered = None
            self._taken.notify_all()
        told, before = self._told, self._told_before
        return [event for event in offered.events if event.key not in told and event.key not in before]
