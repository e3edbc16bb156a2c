"""The database's clock, as seen from our monotonic one. It only says when to try: the database decides what is due.

The estimate is Cristian's: half a round trip is how far it can be off. https://doi.org/10.1007/BF01784024
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

MEASURE_EVERY_US: Final = 60_000_000
# Two disciplined clocks drift apart by less; an estimate's uncertainty grows by it as it ages.
_DRIFT_PPM: Final = 20


class Clock(Protocol):
    """Time that never goes back, for waiting and measuring; tests set it by hand."""

    def monotonic_us(self) -> int:
        """Microseconds since some fixed moment."""


class SystemClock:
    """The machine's clock since its boot, where there is one with the time of a suspension counted in."""

    _clock_id: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def monotonic_us(self) -> int:
        """Microseconds since boot."""
        return time.clock_gettime_ns(self._clock_id) // 1000


class ClockSample(NamedTuple):
    """One reading of the database's clock, and ours just before and after it."""

    before_us: int
    database_us: int
    after_us: int

    @property
    def offset_us(self) -> int:
        """The database's clock less ours, as if it had been read half-way."""
        return self.database_us - (self.before_us + self.after_us) // 2

    @property
    def uncertainty_us(self) -> int:
        """How far `offset_us` can be off."""
        return (self.after_us - self.before_us + 1) // 2


class DatabaseClock:
    """An estimate of the database's clock. Not thread-safe."""

    def __init__(self) -> None:
        self._best: ClockSample | None = None
        self._measure_at_us: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether there was a sample yet."""
        return self._best is not None

    @property
    def uncertainty_us(self) -> int:
        """How far off the estimate may have been when it was made; 0 without one."""
        return self._best.uncertainty_us if self._best else 0

    def now_us(self, monotonic_us: int) -> int:
        """The database's clock at `monotonic_us`, in microseconds since 2000. ValueError before the first sample."""
        if self._best is None:
            raise ValueError("the database's clock was not read yet")
        return monotonic_us + self._best.offset_us

    def needs_measuring(self, monotonic_us: int) -> bool:
        """Whether there is no estimate, a doubted one, or one a minute old."""
        return self._measure_at_us is None or monotonic_us >= self._measure_at_us

    def doubt(self) -> None:
        """Something contradicted the estimate: measure soon."""
        self._measure_at_us = None

    def observe(self, samples: Sequence[ClockSample]) -> bool:
        """Takes in one measurement's samples, the best of which counts. True when the database's clock has jumped."""
        best = min(samples, key=lambda sample: sample.after_us - sample.before_us)
        self._measure_at_us = best.after_us + MEASURE_EVERY_US
        known = self._best
        if known is None:
            self._best = best
            return False
        aged_us = known.uncertainty_us + abs(best.after_us - known.after_us) * _DRIFT_PPM // 1_000_000
        jumped = abs(best.offset_us - known.offset_us) > aged_us + best.uncertainty_us
        if jumped or best.uncertainty_us <= aged_us:
            self._best = best
        return jumped
