"""Cuts wal2json's Begin and Commit, without parsing them as JSON.

Every transaction of the whole database comes as such a pair, whether or not it touched the watched table, and the usual
one has a row or two: the bounds cost as much as the rows.
"""

from __future__ import annotations

import re
from typing import Final

from cdcwatch.decode.change import Begin, Commit
from cdcwatch.instant import parse_instant

_LSN: Final = rb"([0-9A-F]{1,8})/([0-9A-F]{1,8})"
_TIME: Final = rb"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.(\d{1,6}))?\+00"
_REST: Final = rb'","xid":(0|[1-9]\d{0,9}),"timestamp":"%b","lsn":"%b","nextlsn":"%b"\}' % (_TIME, _LSN, _LSN)
_match_rest: Final = re.compile(_REST).fullmatch
_COMMIT: Final = b'{"action":"C'
_BEGIN: Final = b'{"action":"B'
_ACTION_END: Final = len(_BEGIN)
_LONGEST_MICROSECONDS: Final = 6
_new = tuple.__new__  # what a NamedTuple's own constructor comes to, in half the time


class Boundaries:
    """A Commit says again what its Begin said, so that it is read with it."""

    def __init__(self) -> None:
        self._rest: bytes | None = None
        self._commit = Commit(0, 0)
        self._second, self._second_us = b"", 0

    def cut(self, line: bytes) -> Begin | Commit | None:
        """Of a line as wal2json 2.x writes it; None for anything else, and for anything unusual."""
        rest = line[_ACTION_END:]
        if line.startswith(_COMMIT):
            return self._commit if rest == self._rest else None
        if not line.startswith(_BEGIN):
            return None
        found = _match_rest(rest)
        if found is None:
            return None
        xid, second, fraction, high, low, next_high, next_low = found.groups()
        if second != self._second:
            try:
                self._second_us = parse_instant(f"{second.decode()}+00")
            except ValueError:
                return None
            self._second = second
        time_us = self._second_us
        if fraction is not None:
            time_us += int(fraction.ljust(_LONGEST_MICROSECONDS, b"0"))
        commit_lsn = int(high, 16) << 32 | int(low, 16)
        self._commit = _new(Commit, (commit_lsn, int(next_high, 16) << 32 | int(next_low, 16)))
        self._rest = rest
        return _new(Begin, (commit_lsn, time_us, int(xid)))
