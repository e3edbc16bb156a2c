"""What there is to tell of the clocks: offset, uncertainty, drift, jumps and sleep. Nothing is decided by it. Pure.

An order is closed late by as much as the database's clock is estimated behind, which is `uncertainty_us` at most plus
what it drifts until the next measurement; never early, whatever is wrong with a clock: the database decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from cdcwatch.close.clock import Clock, Reading

OFFSET, UNCERTAINTY, DRIFT = ALARMS = ("offset", "uncertainty", "drift")
_MOST_DRIFT_PPM: Final = 200
"""A disciplined clock is a few ppm off, a bare crystal up to a hundred."""
_SLEPT_FROM_US: Final = 1_000_000
_SET_FROM_US: Final = 100_000
"""This machine's own clock is adjusted by less without being set."""


class ClockFigures(NamedTuple):
    """After a measurement."""

    offset_us: int
    """The database's clock less this machine's."""
    uncertainty_us: int
    drift_ppm: float | None
    """How fast the database's clock gains on our monotonic one; None while it isn't known."""
    jumped: bool
    """The database's clock was set since the last one."""
    slept_us: int
    """What this machine has slept since the last one."""
    alarms: frozenset[str]
    """Of `ALARMS`, those that hold."""


class Timekeeping:
    """Compares every measurement with the one before and with the bounds. Not thread-safe: one measures at a time."""

    def __init__(self, clock: Clock, *, max_offset_us: int = 1_000_000, max_uncertainty_us: int = 50_000) -> None:
        self._clock = clock
        self._bounds = {OFFSET: max_offset_us, UNCERTAINTY: max_uncertainty_us, DRIFT: _MOST_DRIFT_PPM}
        self._suspended_us = clock.suspended_us()
        self._wall_offset_us = clock.wall_us() - clock.monotonic_us()
        self._alarms: frozenset[str] = frozenset()

    def measured(self, reading: Reading) -> tuple[ClockFigures, list[str]]:
        """The figures, and what is new in them as lines for the log."""
        told = []
        slept_us = self._clock.suspended_us() - self._suspended_us
        wall_offset_us = self._clock.wall_us() - self._clock.monotonic_us()
        set_by_us = wall_offset_us - self._wall_offset_us
        self._suspended_us += slept_us
        self._wall_offset_us = wall_offset_us
        if slept_us >= _SLEPT_FROM_US:
            told.append(f"this machine slept for {slept_us / 1e6:.0f} s; what came due meanwhile is closed now")
        if abs(set_by_us) >= _SET_FROM_US:
            told.append(f"this machine's clock was set by {set_by_us / 1e6:+.3f} s; deadlines don't follow it")
        if reading.jumped:
            told.append("the database's clock has jumped; deadlines follow it")
        figures = ClockFigures(
            offset_us=reading.offset_us - wall_offset_us,
            uncertainty_us=reading.uncertainty_us,
            drift_ppm=reading.drift.ppm if reading.drift else None,
            jumped=reading.jumped,
            slept_us=slept_us if slept_us >= _SLEPT_FROM_US else 0,
            alarms=frozenset(),
        )
        figures = figures._replace(alarms=self._over(figures, reading))
        told += [self._line(about, figures) for about in ALARMS if about in figures.alarms - self._alarms]
        if self._alarms and not figures.alarms:
            told.append("the clocks are within their bounds again")
        self._alarms = figures.alarms
        return figures, told

    def _over(self, figures: ClockFigures, reading: Reading) -> frozenset[str]:
        """What is out of bounds for certain: beyond the bound by more than it can be off."""
        most = {
            OFFSET: abs(figures.offset_us) - figures.uncertainty_us,
            UNCERTAINTY: figures.uncertainty_us,
            DRIFT: abs(reading.drift.ppm) - reading.drift.uncertainty_ppm if reading.drift else 0,
        }
        return frozenset(about for about in ALARMS if most[about] > self._bounds[about])

    def _line(self, about: str, figures: ClockFigures) -> str:
        if about == OFFSET:
            said = f"{figures.offset_us / 1e6:+.3f} s from this machine's: nothing is closed early, but figures mislead"
            remedy = "timedatectl set-ntp true on both machines"
        elif about == UNCERTAINTY:
            said = f"known to ± {figures.uncertainty_us / 1000:.1f} ms only: orders may be closed that late"
            remedy = "bring cdcwatch nearer to the database, or look for what holds its answers up"
        else:
            said = f"drifting by {figures.drift_ppm or 0.0:+.0f} ppm from this machine's"
            remedy = "chronyc tracking on both machines tells which"
        return f"the database's clock is {said} (remedy: {remedy})"
