"""How far a long piece of work has come, how fast it goes, and how long it still takes.

In the log of a service a line every ten seconds; on a terminal a command shows bars instead. Whoever works counts, and
nothing else: it is looked at from a thread beside it.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOG_S: Final = 10.0
_STOP_S: Final = 5.0
_MINUTE_S: Final = 60
_MB: Final = 1 << 20

_log = logging.getLogger(__name__)


class Stage:
    """One piece of work. Count what is done with `done += …`."""

    def __init__(
        self,
        what: str,
        *,
        unit: str,
        total: Callable[[], float | None],
        asked: Callable[[], float] | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`unit`: `rows`, `events`, `orders` or `bytes`. `total`: None: not known yet. `asked`: in place of `done`."""
        self.what, self.unit, self.done = what, unit, 0.0
        self._total, self._asked, self._now_s = total, asked, now_s
        self._begun_s = now_s()

    @property
    def at(self) -> float:
        """How much is done."""
        return self.done if self._asked is None else self._asked()

    @property
    def total(self) -> float | None:
        """How much there is; never less than what is done, as it may be an estimate."""
        total = self._total()
        return None if total is None else max(total, self.at)

    @property
    def rate(self) -> float:
        """A second, from the beginning."""
        elapsed_s = self._now_s() - self._begun_s
        return self.at / elapsed_s if elapsed_s > 0 else 0.0

    @property
    def left_s(self) -> float | None:
        """How long it still takes at that rate; None: unknown."""
        total, rate = self.total, self.rate
        return None if total is None or rate <= 0 else (total - self.at) / rate

    def figures(self, about: str = "") -> str:
        """`120,000 of 500,000 rows, 35,000/s`. `about` stands before the total."""
        total, unit = self.total, "MB" if self.unit == "bytes" else self.unit
        of = "" if total is None else f" of {about}{self._amount(total)}"
        return f"{self._amount(self.at)}{of} {unit}, {self._amount(self.rate)}{' MB' if unit == 'MB' else ''}/s"

    def text(self) -> str:
        """`reading public.orders: 120,000 of about 500,000 rows, 35,000/s, 11 s left`."""
        left_s = self.left_s
        return f"{self.what}: {self.figures('about ')}{'' if left_s is None else f', {_duration(left_s)} left'}"

    def _amount(self, count: float) -> str:
        return f"{count / _MB:,.1f}" if self.unit == "bytes" else f"{count:,.0f}"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < _MINUTE_S else f"{seconds / _MINUTE_S:.0f} min"


class Teller(Protocol):
    """Where stages are shown. Called in threads of their own."""

    every_s: float

    def tell(self, stage: Stage) -> None:
        """How it stands."""
        ...

    def end(self, stage: Stage) -> None:
        """It is over, or was given up."""
        ...


class LogTeller:
    """In the log."""

    every_s = LOG_S

    def tell(self, stage: Stage) -> None:
        """A line."""
        _log.info("%s", stage.text(), extra={"count": int(stage.at)})

    def end(self, stage: Stage) -> None:
        """What came of it is told by whoever did it."""


_tellers: Final[list[Teller]] = [LogTeller()]


@contextmanager
def shown_by(teller: Teller) -> Iterator[None]:
    """Stages that begin inside are shown there."""
    _tellers.append(teller)
    try:
        yield
    finally:
        _tellers.remove(teller)


def is_watched() -> bool:
    """Whether somebody looks on: then it may cost a query to know how much there is."""
    return not isinstance(_tellers[-1], LogTeller)


@contextmanager
def stage(
    what: str,
    *,
    unit: str,
    total: float | Callable[[], float | None] | None = None,
    asked: Callable[[], float] | None = None,
) -> Iterator[Stage]:
    """A piece of work, as long as the block runs."""
    made = Stage(what, unit=unit, total=total if callable(total) else lambda: total, asked=asked)
    ended, teller = threading.Event(), _tellers[-1]

    def look() -> None:
        while not ended.wait(teller.every_s):
            teller.tell(made)
        teller.end(made)

    thread = threading.Thread(target=look, name="headway", daemon=True)
    thread.start()
    try:
        yield made
    finally:
        ended.set()
        thread.join(_STOP_S)
