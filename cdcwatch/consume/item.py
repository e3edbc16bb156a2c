"""One record of a partition on its way from being heard to being settled.

    WAITING -> HANDLED -> SETTLED        the handler ended well; then its record is written
            -> FAILED  -> WAITING        it raised; then that is written, and it is tried again, or
                       -> POISON         was the last attempt
    POISON  -> BURIED  -> SETTLED        a dead letter of it is durable; then that is written

Each arrow is one call to something that may be away. A stage says what has happened, so that whatever is interrupted
goes on where it stopped and nothing is done twice for want of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdcwatch.consume.event import Event, Identity, Record


class Stage(Enum):
    """Where an item stands."""

    WAITING = auto()
    HANDLED = auto()
    FAILED = auto()
    POISON = auto()
    BURIED = auto()
    SETTLED = auto()


@dataclass(slots=True)
class Item:
    """A record with its event, if it is one."""

    record: Record
    event: Event | None
    stage: Stage = Stage.WAITING
    attempt: int = 0
    """The one that is under way, or was the last."""
    error: str = ""
    """The class of the last error, or why the record is no event."""
    forgiven: int = 0
    """Attempts that were not counted: what ended them says nothing against the event by itself."""

    @property
    def identity(self) -> Identity:
        """Of its event; only those that have one are handled."""
        if self.event is None:
            raise TypeError("a record of no event")
        return self.event.identity


class Work(Protocol):
    """How the events of a lane are handled and recorded. For one thread at a time, but for `renew` and `holds`."""

    def run(self, items: Sequence[Item], is_ended: Callable[[], bool]) -> float:
        """Takes some of the items, from the front, further; at once again after so many seconds.

        CdcwatchError when the store doesn't answer; then the same items come again.
        """

    def bury(self, item: Item) -> None:
        """A dead letter of it is durable: BURIED becomes SETTLED."""

    def let_go(self) -> None:
        """What is in hand and not begun is others'."""

    def renew(self) -> None:
        """The leases of what is in hand begin anew. Called by another thread."""

    def holds(self, event: Event) -> bool:
        """Whether the event is in hand here, and nobody else's; asks the store, and renews the lease."""
