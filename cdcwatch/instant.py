"""Instants as PostgreSQL keeps them: integer microseconds since 2000-01-01 00:00:00 UTC.

`datetime` ends at year 9999, knows no infinity and rounds nothing we'd notice; integers order as the server does.
https://www.postgresql.org/docs/current/datatype-datetime.html
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

INFINITY_US: Final = 2**63 - 1
"""`infinity`: later than every instant. The value PostgreSQL itself uses on the wire."""
NEGATIVE_INFINITY_US: Final = -(2**63)

FIRST_US: Final = -211_813_488_000_000_000
"""4714-11-24 00:00:00 BC, the earliest that is no infinity."""
LAST_US: Final = 9_223_371_331_199_999_999
"""294276-12-31 23:59:59.999999, the latest."""
DAY_US: Final = 86_400_000_000

_SECOND_US = 1_000_000
_MINUTE_US = 60_000_000
_INFINITE: Final = frozenset({INFINITY_US, NEGATIVE_INFINITY_US})
_INFINITE_MINUTES: Final = frozenset({INFINITY_US // _MINUTE_US, NEGATIVE_INFINITY_US // _MINUTE_US})
"""No other instant lies in them."""
_MOST_BEGINNINGS: Final = 8192
_UNIX_TO_POSTGRES_US: Final = 946_684_800 * _SECOND_US
_DAYS_PER_400_YEARS = 146_097
_DAYS_TO_2000: Final = datetime(2000, 1, 1, tzinfo=UTC).toordinal()
_LONGEST_MICROSECONDS = 6
_TOLD_LENGTH: Final = len("2026-11-30T10:15:00.000000Z")
_WHOLE_SECOND_LENGTH: Final = len("2026-11-30 10:15:00+00")

_TEXT = re.compile(
    r"(\d{4,6})-(\d\d)-(\d\d)[ T]([01]\d|2[0-3]):([0-5]\d):([0-5]\d)(?:\.(\d{1,6}))?"
    r"(?:(Z)|([+-])(\d\d)(?::?(\d\d))?(?::?(\d\d))?)( BC)?",
    re.ASCII,
)
_TOLD = re.compile(r"(\d{4}|[+-]\d{4,6})(-\d\d-\d\d)T(\d\d:\d\d:\d\d\.\d{6})Z", re.ASCII)
_DATE = re.compile(r"(\d{4,7})-(\d\d)-(\d\d)( BC)?", re.ASCII)
_MINUTE = re.compile(r"(\d{4})-(\d\d)-(\d\d) ([01]\d|2[0-3]):([0-5]\d)", re.ASCII)
_LEADING_ONE: Final = 100 * _SECOND_US
"""Put before seconds and microseconds, it keeps their zeros: quicker than a format."""
_SECONDS_US: Final = {f":{second:02d}": second * _SECOND_US for second in range(60)}


def parse_instant(text: str) -> int:
    """PostgreSQL's ISO text of a timestamptz, with its offset, to microseconds.

    `2026-11-30 10:15:00.5+00`, `0044-03-15 10:00:00+00 BC`, `infinity`. ValueError for anything else, an offset
    left out included: a session not pinned to ISO must not be guessed at.
    """
    # The form a session pinned to UTC and ISO sends, without building a datetime.
    if text[-3:] == "+00" and text[4:5] == "-" and text[10:11] == " ":
        try:
            us = _minute_us(text[:16]) + _SECONDS_US[text[16:19]]
        except (ValueError, KeyError):
            return _parse_any(text)
        fraction = text[20:-3]
        if not fraction:
            return us if len(text) == _WHOLE_SECOND_LENGTH else _parse_any(text)
        if text[19] == "." and len(fraction) <= _LONGEST_MICROSECONDS and fraction.isdecimal() and fraction.isascii():
            return us + int(fraction.ljust(_LONGEST_MICROSECONDS, "0"))
    return _parse_any(text)


@lru_cache(maxsize=4096)
def _minute_us(text: str) -> int:
    """`2026-11-30 10:15` to microseconds."""
    match = _MINUTE.fullmatch(text)
    if match is None:
        raise ValueError("not a minute in ISO form")
    year, month, day, hour, minute = (int(part) for part in match.groups())
    days = datetime(year, month, day, tzinfo=UTC).toordinal() - _DAYS_TO_2000
    return days * DAY_US + (hour * 60 + minute) * _MINUTE_US


def _parse_any(text: str) -> int:
    if text == "infinity":
        return INFINITY_US
    if text == "-infinity":
        return NEGATIVE_INFINITY_US
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError("not a timestamptz in ISO form with its offset")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    if year == 0:
        raise ValueError("there is no year 0")
    if match[13]:
        year = 1 - year  # there is no year 0 in the text: 1 BC is astronomical year 0
    us = _days_since_2000(year, month, day) * DAY_US + ((hour * 60 + minute) * 60 + second) * _SECOND_US
    us += int((match[7] or "0").ljust(_LONGEST_MICROSECONDS, "0"))
    if match[9]:
        offset_s = int(match[10]) * 3600 + int(match[11] or 0) * 60 + int(match[12] or 0)
        us -= offset_s * _SECOND_US if match[9] == "+" else -offset_s * _SECOND_US
    return us


def parse_local(text: str) -> int:
    """PostgreSQL's ISO text of a timestamp without time zone to microseconds since 2000-01-01 00:00 by the same clock.

    ValueError for anything else, a text with an offset included.
    """
    if text.endswith("infinity"):
        return _parse_any(text)
    return parse_instant(f"{text[:-3]}+00 BC" if text.endswith(" BC") else f"{text}+00")


def parse_date(text: str) -> int:
    """PostgreSQL's ISO text of a date to microseconds from 2000-01-01 to its first moment; ValueError for others."""
    if text.endswith("infinity"):
        return _parse_any(text)
    match = _DATE.fullmatch(text)
    if match is None or not int(match[1]):
        raise ValueError("not a date in ISO form")
    year = 1 - int(match[1]) if match[4] else int(match[1])
    return _days_since_2000(year, int(match[2]), int(match[3])) * DAY_US


def _days_since_2000(year: int, month: int, day: int) -> int:
    """Days of the proleptic Gregorian calendar, any year: cycles of 400 years shift it into datetime's range."""
    cycles, year_in_cycle = divmod(year - 2000, 400)
    ordinal = datetime(2000 + year_in_cycle, month, day, tzinfo=UTC).toordinal()
    return ordinal - _DAYS_TO_2000 + cycles * _DAYS_PER_400_YEARS


def format_instant(us: int) -> str:
    """RFC 3339 in UTC with six digits, `2026-11-30T10:15:00.000000Z`; `infinity` and `-infinity` as words.

    Years outside 0000-9999 get ISO 8601's expanded form with sign, as `-0043-03-15T10:00:00.000000Z` for 44 BC.
    """
    return quoted_instant(us)[1:-1]


def quoted_instant(us: int) -> str:
    """The same in quotes, as JSON has it: made for every event."""
    minute, rest_us = divmod(us, _MINUTE_US)
    begin = _BEGINNINGS[minute]
    if not begin:
        return '"infinity"' if us > 0 else '"-infinity"'
    digits = str(rest_us + _LEADING_ONE)
    return f'{begin}{digits[1:3]}.{digits[3:]}Z"'


class _Beginnings(dict[int, str]):
    """Texts by the minute, through the colon before its seconds: quicker than lru_cache, for every event."""

    def __missing__(self, minute: int) -> str:
        if minute in _INFINITE_MINUTES:
            return ""
        if len(self) >= _MOST_BEGINNINGS:
            self.clear()
        text = self[minute] = f'"{_minute_text(minute)}:'
        return text


_BEGINNINGS: Final = _Beginnings()


def _minute_text(minute: int) -> str:
    days, minute_of_day = divmod(minute, 1440)
    cycles, day_in_cycle = divmod(days, _DAYS_PER_400_YEARS)
    date = datetime.fromordinal(_DAYS_TO_2000 + day_in_cycle)
    year = date.year + cycles * 400
    year_text = f"{year:04d}" if 0 <= year <= 9999 else f"{year:+05d}"  # noqa: PLR2004
    return f"{year_text}-{date.month:02d}-{date.day:02d}T{minute_of_day // 60:02d}:{minute_of_day % 60:02d}"


def read_instant(text: str) -> int:
    """The inverse of `format_instant`; ValueError for anything else."""
    if len(text) == _TOLD_LENGTH and text[10] == "T" and text[-1] == "Z" and text[:4] != "0000":
        return parse_instant(f"{text[:10]} {text[11:-1]}+00")
    if text in {"infinity", "-infinity"}:
        return _parse_any(text)
    match = _TOLD.fullmatch(text)
    if match is None:
        raise ValueError("not an instant as events have it")
    year = int(match[1])
    era = "" if year > 0 else " BC"
    return parse_instant(f"{year if year > 0 else 1 - year:04d}{match[2]} {match[3]}+00{era}")


def instant_sql(us: int) -> str:
    """The text PostgreSQL reads back as the same timestamptz, whatever the session's DateStyle or TimeZone."""
    if us in _INFINITE:
        return "infinity" if us > 0 else "-infinity"
    days, second_of_day = divmod(us // _SECOND_US, 86_400)
    cycles, day_in_cycle = divmod(days, _DAYS_PER_400_YEARS)
    date = datetime.fromordinal(_DAYS_TO_2000 + day_in_cycle)
    year = date.year + cycles * 400
    era = "" if year > 0 else " BC"
    minute, second = divmod(second_of_day, 60)
    return (
        f"{year if year > 0 else 1 - year:04d}-{date.month:02d}-{date.day:02d} "
        f"{minute // 60:02d}:{minute % 60:02d}:{second:02d}.{us % _SECOND_US:06d}+00{era}"
    )


def from_unix_us(unix_us: int) -> int:
    """Microseconds since 1970 to microseconds since 2000."""
    return unix_us - _UNIX_TO_POSTGRES_US


def to_unix_us(us: int) -> int:
    """Microseconds since 2000 to microseconds since 1970."""
    return us + _UNIX_TO_POSTGRES_US


def to_unix_s(us: int | None) -> float | None:
    """Microseconds since 2000 to seconds since 1970; None of None and of an infinity."""
    return None if us is None or us in _INFINITE else (us + _UNIX_TO_POSTGRES_US) / _SECOND_US
