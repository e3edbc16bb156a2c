"""Local times to instants, for deadlines of type `timestamp` and `date`: what PostgreSQL's own AT TIME ZONE gives.

A time that a clock skips is read with the offset before the gap, one that comes twice is the second of the two. Years
that `datetime` doesn't know follow the rules of a year that it does: the calendar repeats itself every 400.
https://www.postgresql.org/docs/current/functions-datetime.html#FUNCTIONS-DATETIME-ZONECONVERT
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final
from zoneinfo import ZoneInfo

from cdcwatch.instant import (
    DAY_US,
    FIRST_US,
    INFINITY_US,
    LAST_US,
    NEGATIVE_INFINITY_US,
    parse_date,
    parse_instant,
    parse_local,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.table import WatchedTable

_MOST_REMEMBERED: Final = 5000
_DAYS_PER_400_YEARS: Final = 146_097
_EPOCH: Final = datetime(2000, 1, 1)  # noqa: DTZ001  local times have no zone yet
_FIRST_DAY: Final = (datetime(1, 1, 2) - _EPOCH).days  # noqa: DTZ001
_LAST_DAY: Final = (datetime(9999, 12, 30) - _EPOCH).days  # noqa: DTZ001
_MICROSECOND: Final = timedelta(microseconds=1)
_HALF_DAY_US: Final = DAY_US // 2


class Zone:
    """A time zone of the IANA database, by this machine's copy of it. The server's copy decides what is closed."""

    def __init__(self, name: str) -> None:
        """ValueError when this machine doesn't know it."""
        try:
            self._zone = ZoneInfo(name)
        except (LookupError, OSError) as error:
            raise ValueError(f"unknown time zone {name!r}") from error
        self._days: dict[int, int | None] = {}

    def instant_us(self, local_us: int) -> int:
        """Microseconds since 2000-01-01 00:00 by the zone's clocks to microseconds since 2000-01-01 UTC.

        Infinities stay. The first and the last day that PostgreSQL knows are the first and the last instant: not all
        of them are in the range of timestamptz.
        """
        day = local_us // DAY_US
        try:
            offset_us = self._days[day]
        except KeyError:
            offset_us = self._learn(day)
        return self._exactly(local_us) if offset_us is None else local_us - offset_us

    def _learn(self, day: int) -> int | None:
        """The offset that holds all through a day; None where it changes, and at the ends of the calendar."""
        if len(self._days) >= _MOST_REMEMBERED:
            self._days.clear()
        begin_us = day * DAY_US
        offset_us = None
        if begin_us >= FIRST_US + DAY_US and begin_us + DAY_US < LAST_US - DAY_US:
            offsets = {self._offset_us(begin_us + part * _HALF_DAY_US, fold) for part in (0, 1, 2) for fold in (0, 1)}
            offset_us = offsets.pop() if len(offsets) == 1 else None
        self._days[day] = offset_us
        return offset_us

    def _exactly(self, local_us: int) -> int:
        if local_us in {INFINITY_US, NEGATIVE_INFINITY_US}:
            return local_us
        if local_us < FIRST_US + DAY_US:
            return FIRST_US
        if local_us > LAST_US - DAY_US:
            return LAST_US
        # In a gap the offset before is the lesser one, in an overlap the offset after.
        return local_us - min(self._offset_us(local_us, 0), self._offset_us(local_us, 1))

    def _offset_us(self, local_us: int, fold: int) -> int:
        day, of_day_us = divmod(local_us, DAY_US)
        if day > _LAST_DAY:
            day -= -(-(day - _LAST_DAY) // _DAYS_PER_400_YEARS) * _DAYS_PER_400_YEARS
        local = _EPOCH + timedelta(days=max(day, _FIRST_DAY), microseconds=of_day_us)
        offset = local.replace(tzinfo=self._zone, fold=fold).utcoffset()
        return 0 if offset is None else offset // _MICROSECOND


def deadline_parser(table: WatchedTable) -> Callable[[str], int]:
    """Reads the deadline column's text as microseconds since 2000-01-01 UTC; ValueError for what is no such text."""
    if not table.zone:
        return parse_instant
    zone = Zone(table.zone)
    parse = parse_date if table.deadline.kind == "date" else parse_local
    return lambda text: zone.instant_us(parse(text))
