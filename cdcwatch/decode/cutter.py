"""Cuts the four values that are wanted out of wal2json's usual line, without parsing the rest of it.

JSON escapes every quote inside a text, so `},{"name":"` can only stand between two columns. Few statuses, versions and
minutes come again and again: each is looked up together with its column's name, so that a hit has checked both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

import orjson

from cdcwatch.decode.change import INSERT, UPDATE, Change, Row, is_filled_up
from cdcwatch.instant import parse_instant

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdcwatch.table import WatchedTable

_ACTION_AT: Final = len('{"action":"')
_INSERT, _UPDATE = (ord(action) for action in "IU")
_IDENTITY_MARK: Final = b'}],"identity":[{"name":"'
_LINE_END: Final = b"}]}"
_BETWEEN_COLUMNS: Final = b'},{"name":"'
_MOST_REMEMBERED: Final = 5000
_MINUTE_LENGTH: Final = len("2026-11-30 10:15:")
_UTC_END: Final = b'+00"'
_LONGEST_MICROSECONDS: Final = 6
_SECONDS_US: Final = {b"%02d" % second: second * 1_000_000 for second in range(60)}
_new = tuple.__new__
_Places = tuple[int, int, int, int]
_Value = TypeVar("_Value", str, int)


class Cutter:
    """For a table with an integer key, a status and a version; the columns may stand anywhere, and move."""

    def __init__(self, table: WatchedTable) -> None:
        """ValueError for another table."""
        status, version = table.status, table.version
        if not table.has_integer_key or status is None or version is None:
            raise ValueError("the cutter needs an integer key, a status and a version")
        head = f'"schema":{_quoted(table.schema)},"table":{_quoted(table.name)},"columns":[{{"name":"'
        self._ours = head.encode()
        self._key_mark = _mark(table.key[0].name)
        self._deadline_mark = _mark(table.deadline.name) + b'"'
        self._status_mark = _mark(status.name) + b'"'
        self._version_mark = _mark(version.name)
        self._is_status_filled_up = is_filled_up(status)
        self._second_at = len(self._deadline_mark) + _MINUTE_LENGTH
        self._places: dict[str, _Places] = {"columns": (0, 0, 0, 0), "identity": (0, 0, 0, 0)}
        self._statuses: dict[bytes, str] = {}
        self._versions: dict[bytes, int] = {}
        self._minutes: dict[bytes, int] = {}

    def cut(self, line: bytes) -> Change | None:
        """An insert or update of the table; None for anything else, and for anything unusual."""
        begin = line.find(self._ours)
        if begin < 0 or not line.endswith(_LINE_END):
            return None
        action, columns = line[_ACTION_AT], line[begin + len(self._ours) : -len(_LINE_END)]
        try:
            if action == _INSERT:
                key, new = self._values(columns.split(_BETWEEN_COLUMNS), "columns")
                return _new(Change, (INSERT, key, new, None, None))
            if action != _UPDATE:
                return None
            columns, _, identity = columns.partition(_IDENTITY_MARK)
            key, new = self._values(columns.split(_BETWEEN_COLUMNS), "columns")
            old: Row | None = None
            if _BETWEEN_COLUMNS in identity:
                old_key, old = self._values(identity.split(_BETWEEN_COLUMNS), "identity")
            else:  # the primary key only: the old row is unknown
                old_key = int(identity.removeprefix(self._key_mark))
        except (ValueError, IndexError):
            return None
        return _new(Change, (UPDATE, key, new, old, None if old_key == key else old_key))

    def _values(self, parts: Sequence[bytes], side: str) -> tuple[int, Row]:
        """Key and row. ValueError or IndexError for what is unusual."""
        key_at, deadline_at, status_at, version_at = self._places[side]
        try:
            key = int(parts[key_at].removeprefix(self._key_mark))  # with another name before it, it is no number
            part = parts[status_at]
            status = self._statuses.get(part)
            if status is None:
                status = self._new_status(part)
            version: int | None = None
            if version_at < 0:
                self._require_no_version(parts)
            else:
                part = parts[version_at]
                version = self._versions.get(part)
                if version is None:
                    version = self._new_version(part)
            part = parts[deadline_at]
            second_at = self._second_at
            minute_us = self._minutes.get(part[:second_at])
            second_us = _SECONDS_US.get(part[second_at : second_at + 2])
            if minute_us is None or second_us is None or not part.endswith(_UTC_END):
                deadline_us = self._new_deadline(part)
            else:
                deadline_us = minute_us + second_us
                if fraction := part[second_at + 2 : -len(_UTC_END)]:
                    deadline_us += _microseconds(fraction)
        except (ValueError, IndexError):
            places = self._find(parts, needs_version=side == "columns")
            if places == self._places[side]:
                raise
            self._places[side] = places
            return self._values(parts, side)
        return key, _new(Row, (deadline_us, status, version))

    def _find(self, parts: Sequence[bytes], *, needs_version: bool) -> _Places:
        """Where the four columns stand; ValueError where one is missing or of another kind.

        An identity index over key, status and deadline logs no version: -1.
        """
        marks = (self._key_mark, self._deadline_mark, self._status_mark, self._version_mark)
        found = [next((at for at, part in enumerate(parts) if part.startswith(mark)), -1) for mark in marks]
        if min(found if needs_version else found[:3]) < 0:
            raise ValueError
        return (found[0], found[1], found[2], found[3])

    def _require_no_version(self, parts: Sequence[bytes]) -> None:
        """The identity may have become FULL since."""
        if any(part.startswith(self._version_mark) for part in parts):
            raise ValueError

    def _new_status(self, part: bytes) -> str:
        text = _behind(self._status_mark, part)
        if b"\\" in text:
            raise ValueError
        status = text[:-1].decode()
        if self._is_status_filled_up:
            status = status.rstrip(" ")
        _remember(self._statuses, part, status)
        return status

    def _new_version(self, part: bytes) -> int:
        version = int(_behind(self._version_mark, part))
        _remember(self._versions, part, version)
        return version

    def _new_deadline(self, part: bytes) -> int:
        text = _behind(self._deadline_mark, part)[:-1].decode()
        deadline_us = parse_instant(text)
        if part.endswith(_UTC_END) and text[_MINUTE_LENGTH - 1 : _MINUTE_LENGTH] == ":":
            minute_us = parse_instant(f"{text[:_MINUTE_LENGTH]}00+00")
            _remember(self._minutes, part[: self._second_at], minute_us)
        return deadline_us


def _microseconds(fraction: bytes) -> int:
    """`.5` to 500000."""
    digits = fraction[1:]
    if fraction[:1] != b"." or len(digits) > _LONGEST_MICROSECONDS or not digits.isdigit():
        raise ValueError
    return int(digits.ljust(_LONGEST_MICROSECONDS, b"0"))


def _behind(mark: bytes, part: bytes) -> bytes:
    if not part.startswith(mark):
        raise ValueError
    return part[len(mark) :]


def _remember(known: dict[bytes, _Value], part: bytes, value: _Value) -> None:
    """A column that never repeats itself must not fill the memory."""
    if len(known) >= _MOST_REMEMBERED:
        known.clear()
    known[part] = value


def _mark(column: str) -> bytes:
    """How a column begins, behind `{"name":"`."""
    return f'{_quoted(column)[1:]},"value":'.encode()


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()
