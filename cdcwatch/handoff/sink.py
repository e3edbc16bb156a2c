"""What a sink is: it makes events durable, in order, and remembers how far it got."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from cdcwatch.errors import PreconditionError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from cdcwatch.deadline.event import Event
    from cdcwatch.handoff.progress import Progress
    from cdcwatch.handoff.told import Told


class FencedError(PreconditionError):
    """Another process writes this slot's events now; this one must not write any more."""


class Batch(Struct, frozen=True):
    """Events in stream order, and where the stream stands after them."""

    events: Sequence[Event]
    progress: Progress
    sequence: range
    """Watermark numbers: one an event and one for the progress record."""
    size_bytes: int


_log = logging.getLogger(__name__)


def tell_made_anew(topic: str) -> None:
    """Of a topic that held events before: whoever made it, what was open in it is missing now."""
    _log.warning(
        "the topic %s was made anew and lacks what the one before held (remedy: stop, `cdcwatch snapshot` tells it of"
        " the open orders, start again)",
        topic,
        extra={"topic": topic},
    )


class Sink(Protocol):
    """UnavailableError from any method: close, open again, publish again what is not acknowledged."""

    @property
    def is_transactional(self) -> bool:
        """Whether progress is written in one piece with its events: then what it covers is not published again."""
        ...

    @property
    def made_topics(self) -> Collection[str]:
        """Topics of tables that weren't there at the first `open`, which made them."""
        ...

    def open(self) -> Progress | None:
        """Takes the sink for this process (an older one is fenced off) and says how far its events go.

        None: nothing of this slot is in it yet. PreconditionError when it lacks something no retry brings.
        """
        ...

    def publish(self, batches: Sequence[Batch]) -> None:
        """Hands the events over, in order. Some sinks return when they are durable, others at once."""
        ...

    def survey(self, made: Callable[[int], Told], topic: str = "") -> Told:
        """What subscribers know of every order now, nobody else writing; `made` gets the count of partitions.

        `topic`: as of `Event`.
        """
        ...

    def publish_snapshot(self, events: Iterable[Event], progress: Progress) -> int:
        """All of the events and the progress record, durable on return, or none of them; returns how many."""
        ...

    def acknowledged(self) -> list[range]:
        """Sequence numbers that became durable since the last call, in any order. Raises what delivery met."""
        ...

    def close(self) -> None:
        """Lets go. What was not acknowledged may or may not arrive."""
        ...


class NoSink:
    """`sink.kind = "none"`: the table is the durable copy, nothing is published, everything is acknowledged at once."""

    made_topics: Collection[str] = ()

    def __init__(self, start: Progress) -> None:
        self._start = start
        self._acknowledged: list[range] = []

    @property
    def is_transactional(self) -> bool:
        """Nothing is ever published, so nothing twice."""
        return True

    def open(self) -> Progress | None:
        """Nothing is behind us, and nothing is missing."""
        return self._start

    def publish(self, batches: Sequence[Batch]) -> None:
        """Drops them."""
        self._acknowledged += [batch.sequence for batch in batches]

    def survey(self, made: Callable[[int], Told], topic: str = "") -> Told:  # noqa: ARG002
        """Nobody knows of any."""
        return made(0)

    def publish_snapshot(self, events: Iterable[Event], progress: Progress) -> int:  # noqa: ARG002
        """Counts them."""
        return sum(1 for _ in events)

    def acknowledged(self) -> list[range]:
        """All that came."""
        acknowledged, self._acknowledged = self._acknowledged, []
        return acknowledged

    def close(self) -> None:
        """Nothing to let go."""
