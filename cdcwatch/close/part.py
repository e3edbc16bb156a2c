"""The agenda of a process that closes a part of the orders, which changes hands while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from cdcwatch.close.agenda import Agenda

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from cdcwatch.close.clock import Clock, DatabaseClock
    from cdcwatch.close.closer import Closer, Settled
    from cdcwatch.close.outcome import CloseReport, Unclosed
    from cdcwatch.deadline.schedule import Due
    from cdcwatch.table import Key

_SLICE: Final = 1_000
"""How many orders are let go under one hold of the lock; whose they are is computed outside of it."""


class Part(Protocol):
    """Which orders are ours: one state of it, that does not change."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing is ours."""

    def owns(self, key: Key) -> bool:
        """Whether an order found in the table is ours."""

    def has_lost(self, key: Key) -> bool:
        """Whether it was ours, and is another's now."""


class PartAgenda(Agenda):
    """What the table holds is let in where it is ours; what comes back of a part that was lost meanwhile is let go.

    What is told (`apply`) and what the sweep finds are let in whosever they are: to try an order that is another's
    costs a statement that passes over it.
    """

    def __init__(self, closer: Closer, database_clock: DatabaseClock, clock: Clock, part: Part) -> None:
        super().__init__(closer, database_clock, clock)
        self._part = part

    @property
    def part(self) -> Part:
        """As it is now."""
        return self._part

    def take_over(self, part: Part) -> None:
        """From now on this part is ours. `evict` lets go what another had and this one hasn't."""
        with self._lock:
            self._part = part

    def evict(self, is_gone: Callable[[Key], bool]) -> int:
        """Lets go of every pending order of which it is so, but not of what the sweep found; how many those were.

        Whatever is in flight comes back by `settle` and the like, which look again.
        """
        with self._lock:
            keys = self._closer.keys()
        count = 0
        for start in range(0, len(keys), _SLICE):
            gone = [key for key in keys[start : start + _SLICE] if is_gone(key)]
            if gone:
                with self._lock:
                    count += self._closer.forget(gone)
        return count

    def load(self, dues: Sequence[Due]) -> int:
        """As of `Agenda`, of what is ours. Whose it is takes microseconds an order: too long to hold the lock."""
        while True:
            part = self._part
            mine = [due for due in dues if part.owns(due.key)]
            with self._lock:
                if part is self._part:
                    self._notice(self._closer.load(mine))
                    return self._closer.schedule.window_end_us

    def settle(self, report: CloseReport) -> Settled:
        """As of `Agenda`."""
        settled = super().settle(report)
        self._let_go([unclosed.due for unclosed in report.unclosed])
        return settled

    def give_back(self, batch: Sequence[Due]) -> None:
        """As of `Agenda`."""
        super().give_back(batch)
        self._let_go(batch)

    def doubt(self, batch: Sequence[Due], *, broke: bool = False) -> list[Unclosed]:
        """As of `Agenda`."""
        given_up = super().doubt(batch, broke=broke)
        self._let_go(batch)
        return given_up

    def _let_go(self, dues: Collection[Due]) -> None:
        """Of orders that came back those whose part was lost while they were in flight: their new owner has them."""
        gone = [due.key for due in dues if self._part.has_lost(due.key)]
        if gone:
            with self._lock:
                self._closer.forget([key for key in gone if self._part.has_lost(key)])
