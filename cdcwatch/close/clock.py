"""The database's clock, as seen from our monotonic one. It only says when to try: the database decides what is due.

The estimate is Cristian's: half a round trip is how far it can be off. https://doi.org/10.1007/BF01784024
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from cdcwatch.instant import from_unix_us

if TYPE_CHECKING:
    from collections.abc import Sequence

MEASURE_EVERY_US: Final = 10_000_000
# Two disciplined clocks drift apart by less; an estimate's uncertainty grows by it as it ages.
_DRIFT_PPM: Final = 20
# The kernel slews a clock by no more: what moved further was set. https://man7.org/linux/man-pages/man2/adjtimex.2.html
_SLEW_PPM: Final = 500
_DRIFT_FROM_US: Final = 30_000_000
_DRIFT_OVER_US: Final = 600_000_000


class Clock(Protocol):
    """Time that never goes back, for waiting and measuring; tests set it by hand."""

    def monotonic_us(self) -> int:
        """Microseconds since some fixed moment."""

    def wall_us(self) -> int:
        """What this machine takes the time to be, in microseconds since 2000; told of, and decided by nowhere."""

    def suspended_us(self) -> int:
        """How much of the monotonic time the machine has slept."""


class SystemClock:
    """The machine's clock since its boot, where there is one with the time of a suspension counted in."""

    _clock_id: Final = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)

    def monotonic_us(self) -> int:
        """Microseconds since boot."""
        return time.clock_gettime_ns(self._clock_id) // 1000

    def wall_us(self) -> int:
        """The machine's own time."""
        return from_unix_us(time.time_ns() // 1000)

    def suspended_us(self) -> int:
        """Since boot; 0 where the machine has no clock that counts it."""
        return max(0, (time.clock_gettime_ns(self._clock_id) - time.monotonic_ns()) // 1000)


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


class Drift(NamedTuple):
    """How fast the database's clock gains on our monotonic one, in parts per million, and how far off that can be."""

    ppm: float
    uncertainty_ppm: float


class Reading(NamedTuple):
    """One measurement."""

    offset_us: int
    """The database's clock less our monotonic one."""
    uncertainty_us: int
    """How far `offset_us` can be off: half the round trip."""
    drift: Drift | None
    """Over the last ten minutes; None before there is half a minute since the start or the last jump."""
    jumped: bool
    """Whether the database's clock was set, or stood still: further from where it was than any slewing goes."""


class DatabaseClock:
    """An estimate of the database's clock. Not thread-safe."""

    def __init__(self) -> None:
        self._best: ClockSample | None = None
        self._measure_at_us: int | None = None
        self._drift_from: ClockSample | None = None
        self._drift_next: ClockSample | None = None

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
        """Whether there is no estimate, a doubted one, or one ten seconds old."""
        return self._measure_at_us is None or monotonic_us >= self._measure_at_us

    def doubt(self) -> None:
        """Something contradicted the estimate: measure soon."""
        self._measure_at_us = None

    def observe(self, samples: Sequence[ClockSample]) -> Reading:
        """Takes in one measurement's samples, the best of which counts."""
        best = min(samples, key=lambda sample: sample.after_us - sample.before_us)
        self._measure_at_us = best.after_us + MEASURE_EVERY_US
        jumped = self._takes_in(best)
        if jumped or self._drift_from is None:
            self._drift_from = self._drift_next = best
        return Reading(best.offset_us, best.uncertainty_us, self._drift(best), jumped)

    def _takes_in(self, best: ClockSample) -> bool:
        """Whether it jumped. The estimate stays where the new one is the worse, and agrees with it."""
        known = self._best
        if known is None:
            self._best = best
            return False
        aged_us = abs(best.after_us - known.after_us)
        doubt_us = known.uncertainty_us + aged_us * _DRIFT_PPM // 1_000_000
        apart_us = abs(best.offset_us - known.offset_us)
        if apart_us > doubt_us + best.uncertainty_us or best.uncertainty_us <= doubt_us:
            self._best = best
        return apart_us > known.uncertainty_us + best.uncertainty_us + aged_us * _SLEW_PPM // 1_000_000

    def _drift(self, now: ClockSample) -> Drift | None:
        """Against a sample five to ten minutes old, once there are such."""
        since, following = self._drift_from, self._drift_next
        if since is None or following is None:
            return None
        if now.after_us - following.after_us >= _DRIFT_OVER_US // 2:
            self._drift_from, self._drift_next = following, now
        over_us = now.after_us - since.after_us
        if over_us < _DRIFT_FROM_US:
            return None
        return Drift(
            (now.offset_us - since.offset_us) / over_us * 1e6,
            (now.uncertainty_us + since.uncertainty_us) / over_us * 1e6,
        )
