"""What all lanes of a consumer share: what it was told, and what an attempt that failed comes to."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol

from cdcwatch.consume.item import Item, Stage

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdcwatch.consume.event import Decode, Event, Record
    from cdcwatch.consume.handling import Connection, Handling
    from cdcwatch.consume.levels import Levels
    from cdcwatch.consume.metrics import GroupMetrics

DIED: Final = "the process died"
_log = logging.getLogger(__name__)


class Grave(Protocol):
    """Where dead letters go."""

    def send(self, record: Record, error: str, attempts: int) -> None:
        """Returns once it is durable; CdcwatchError while it can't be."""


@dataclass(frozen=True, slots=True)
class Course:
    """As the arguments of Consumer."""

    levels: Levels
    metrics: GroupMetrics
    handling: Handling
    decode: Decode
    grave: Grave
    tries: int
    lease_s: float
    first_pause_s: float
    most_pause_s: float
    types: frozenset[str] | None = None
    unreadable: Literal["dead_letter", "skip"] = "dead_letter"
    tombstones: Literal["dead_letter", "skip"] = "skip"
    clock: Callable[[], float] = time.monotonic

    def call(self, events: Sequence[Event], *connection: Connection) -> None:
        """The handler. HandlerError and TryAgain come out of it."""
        began_s = self.clock()
        try:
            self.handling.run(events, *connection)
        finally:
            self.metrics.handled_in(self.clock() - began_s)

    def pause_s(self, attempt: int) -> float:
        """Before the next, after so many."""
        return min(self.most_pause_s, self.first_pause_s * 2.0 ** min(attempt - 1, 32))

    def note_failure(self, item: Item, error: Exception) -> None:
        """FAILED. Only the error's class is told: its text may quote the event."""
        item.error, item.stage = class_of(error), Stage.FAILED
        self.metrics.count("errors")
        next_s = "a dead letter" if item.attempt >= self.tries else f"again in {self.pause_s(item.attempt):g} s"
        _log.warning(
            "the handler failed with %s, attempt %d of %d, at %s/%d offset %d: %s",
            item.error,
            item.attempt,
            self.tries,
            item.record.topic,
            item.record.partition,
            item.record.offset,
            next_s,
            extra={"topic": item.record.topic, "partition": item.record.partition, "reason": item.error},
        )
        _log.debug("the handler's error", exc_info=error)

    def failure_noted(self, item: Item) -> float:
        """The failure is in the store: WAITING for so long, or POISON: from now on no attempt is left."""
        if item.attempt >= self.tries:
            item.stage = Stage.POISON
            return 0.0
        item.stage = Stage.WAITING
        return self.pause_s(item.attempt)

    def has_no_attempt_left(self, item: Item, attempt: int) -> bool:
        """POISON where this would be one too many: the process died over the last, or before it was buried."""
        if attempt <= self.tries:
            return False
        item.attempt, item.error, item.stage = attempt - 1, item.error or DIED, Stage.POISON
        return True

    def note_batch_failure(self, items: Sequence[Item], error: Exception) -> None:
        """None of them is to blame yet."""
        self.metrics.count("errors")
        place = items[0].record
        _log.warning(
            "the handler failed with %s on %d events from %s/%d offset %d on: each is given to it by itself",
            class_of(error),
            len(items),
            place.topic,
            place.partition,
            place.offset,
            extra={"topic": place.topic, "partition": place.partition, "reason": class_of(error)},
        )
        _log.debug("the handler's error", exc_info=error)


def class_of(error: Exception) -> str:
    """As `smtplib.SMTPServerDisconnected`; of builtins the bare name."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
