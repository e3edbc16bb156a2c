"""Reads the topics of several tables side by side; of one table it is that topic's reader."""

from __future__ import annotations

import contextlib
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Self

from cdcwatch.handoff.place import in_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cdcwatch.handoff.bus import Bus, Tail
    from cdcwatch.handoff.record import Record

_TURN_S: Final = 0.2
"""Every topic has its turn in this time, though nothing comes."""


class TopicTails:
    """Records with the topic they come from; that is empty where there is but one."""

    def __init__(
        self,
        buses: Sequence[Bus],
        *,
        is_ended: Callable[[], bool],
        dead: bool = False,
        wanted: Callable[[Record], bool] | None = None,
    ) -> None:
        """Opens a `Tail` of each; with its errors."""
        self._is_ended = is_ended
        with contextlib.ExitStack() as stack:
            self._tails: list[Tail] = []
            for bus in buses:
                tail = bus.tail(dead=dead, is_ended=is_ended, wanted=wanted)
                stack.callback(tail.close)
                self._tails.append(tail)
            self._open = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    @property
    def read_count(self) -> int:
        """Committed records that were read to find what is wanted."""
        return sum(tail.read_count for tail in self._tails)

    def so_far(self) -> Iterator[tuple[str, Record]]:
        """Every record, one topic after the other, in order within a partition."""
        for tail in self._tails:
            for record in tail.so_far():
                yield self._name(tail), record

    def first(self, count: int) -> list[tuple[str, Record]]:
        """The first `count` that are met, in their order in the stream."""
        return in_order(islice(self.so_far(), count), itemgetter(1))

    def last(self, count: int) -> list[tuple[str, Record]]:
        """The last `count` of all of them by their timestamps, in their order in the stream."""
        found = [(self._name(tail), record) for tail in self._tails for record in tail.last(count)]
        if len(self._tails) > 1:
            found.sort(key=lambda one: one[1].timestamp_ms)
        return in_order(found[-count:], itemgetter(1)) if count else []

    def following(self) -> Iterator[tuple[str, Record]]:
        """What comes after what was read, until `is_ended`."""
        for tail in self._tails:
            tail.follow()
        while not self._is_ended():
            for tail in self._tails:
                record = tail.came(_TURN_S / len(self._tails))
                if record is not None:
                    yield self._name(tail), record

    def _name(self, tail: Tail) -> str:
        return tail.topic if len(self._tails) > 1 else ""
