"""wal2json, format version 2: one JSON object a message.

Only version 2 streams: version 1 builds a whole transaction in one string of at most 1 GB.
https://github.com/eulerto/wal2json
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdcwatch.decode.change import DELETE, INSERT, UPDATE, Begin, Change, Commit, Row, Truncate
from cdcwatch.errors import DecodeError
from cdcwatch.instant import parse_instant
from cdcwatch.lsn import parse_lsn
from cdcwatch.table import Key, WatchedTable, canonical_key

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdcwatch.decode.change import Message

_ABSENT: Final = object()
_ACTION_AT: Final = len('{"action":"')
_COLUMNS_MARK: Final = b'"columns":[{"name":"'
_IDENTITY_MARK: Final = b'}],"identity":[{"name":"'
_BETWEEN_COLUMNS: Final = b'},{"name":"'
_MOST_STATUSES: Final = 1000
_LONGEST_INTEGER: Final = len("-9223372036854775808")
_Places = tuple[int, int, int, int]
_REMEDY: Final = "see docs/runbook.md, 'A row that cannot be understood'"


def filter_name(schema: str, table: str) -> str:
    """`schema.table` for add-tables, with every special character escaped as wal2json's list parser wants it."""
    return f"{_escape(schema)}.{_escape(table)}"


def _escape(identifier: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else f"\\{c}" for c in identifier)


class Wal2JsonDecoder:
    """Reads the watched table's messages; builds nothing for columns that nobody configured.

    The usual line is cut, not parsed: JSON escapes every quote inside a text, so `},{"name":"` can only stand between
    two columns. Whatever is unusual about a line sends it to the whole parser, which gives the same values.
    """

    def __init__(self, table: WatchedTable) -> None:
        self._schema, self._name = table.schema, table.name
        self._key = tuple(column.name for column in table.key)
        self._integer_key = table.has_integer_key
        self._deadline = table.deadline.name
        self._status = table.status.name if table.status else None
        self._version = table.version.name if table.version else None
        # orjson makes floats of JSON's numbers, which would round a numeric key; json keeps their text, slower.
        exact = any(_is_number(column.type) for column in (*table.key, table.status) if column is not None)
        self._loads: Callable[[bytes], Any] = _loads_exactly if exact else _loads
        self._cutter = _Cutter(table) if table.has_integer_key and table.status and table.version else None

    def options(self) -> Mapping[str, str]:
        """Asks for the watched table only. Empty transactions still come, as Begin and Commit: they move positions."""
        return {
            "format-version": "2",
            "include-lsn": "true",
            "include-xids": "true",
            "include-timestamp": "true",
            "include-types": "false",
            "add-tables": filter_name(self._schema, self._name),
        }

    def decode(self, payload: bytes | memoryview) -> Message | None:
        """One line."""
        line = bytes(payload)
        change = self._cutter.cut(line) if self._cutter is not None else None
        return change if change is not None else self._parse(line)

    def _parse(self, line: bytes) -> Message | None:
        try:
            parsed = self._loads(line)
            action = parsed["action"]
            if action in "IUD":
                return self._change(action, parsed)
            if action == "B":
                return Begin(parse_lsn(parsed["lsn"]), parse_instant(parsed["timestamp"]), _integer(parsed["xid"]))
            if action == "C":
                return Commit(parse_lsn(parsed["lsn"]), parse_lsn(parsed["nextlsn"]))
            if action == "T":
                return Truncate() if self._is_ours(parsed) else None
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            # The kind of error only: the text of it may quote the row.
            kind = type(error).__name__
            raise DecodeError(f"wal2json sent a line that can't be read ({kind})", remedy=_REMEDY) from None
        if action == "M":  # a logical message: nothing of ours
            return None
        raise DecodeError("wal2json sent an action that isn't known", remedy="use wal2json 2.x") from None

    def _is_ours(self, line: Mapping[str, Any]) -> bool:
        """Filtered on our side too: older versions let TRUNCATE and look-alike names through."""
        return bool(line["table"] == self._name and line["schema"] == self._schema)

    def _change(self, action: str, line: Mapping[str, Any]) -> Change | None:
        if not self._is_ours(line):
            return None
        if action == "I":
            values = _by_name(line["columns"])
            return Change(INSERT, self._key_of(values), self._row(values), None)
        identity = _by_name(line["identity"])
        if action == "D":
            return Change(DELETE, self._key_of(identity), None, self._old_row(identity))
        values = _by_name(line["columns"])
        old_key = self._key_of(identity)
        # An unchanged TOASTed column is left out of the new row: what the identity logged of it still holds.
        key = self._key_of({**identity, **values})
        new = self._row(values if self._status is None or self._status in values else {**identity, **values})
        return Change(UPDATE, key, new, self._old_row(identity), old_key if old_key != key else None)

    def _key_of(self, values: Mapping[str, Any]) -> Key:
        if self._integer_key:
            return _integer(values[self._key[0]])
        return canonical_key([_text(values[name]) for name in self._key], integer=False)

    def _row(self, values: Mapping[str, Any]) -> Row:
        deadline = values.get(self._deadline, _ABSENT)
        if deadline is _ABSENT:
            raise DecodeError(
                f"the stream has no column {self._deadline!r} any more: it was dropped or renamed",
                remedy="set table.deadline to the column's new name, and start again",
            )
        status = values[self._status] if self._status else None
        return Row(
            None if deadline is None else parse_instant(deadline),
            status if status is None or type(status) is str else _text(status),
            _version(values[self._version]) if self._version else None,
        )

    def _old_row(self, identity: Mapping[str, Any]) -> Row | None:
        """None unless the replica identity logs deadline and status: absent is not NULL."""
        deadline = identity.get(self._deadline, _ABSENT)
        status = identity.get(self._status, _ABSENT) if self._status else None
        if deadline is _ABSENT or status is _ABSENT:
            return None
        return Row(
            None if deadline is None else parse_instant(deadline),
            status if status is None or type(status) is str else _text(status),
            _version(identity.get(self._version)) if self._version else None,
        )


class _Cutter:
    """The usual line of a table with an integer key, a status and a version: four values, wherever they stand."""

    def __init__(self, table: WatchedTable) -> None:
        status, version = table.status, table.version
        if status is None or version is None:
            raise ValueError("the cutter needs a status and a version column")
        self._ours = f'"schema":{_quoted(table.schema)},"table":{_quoted(table.name)},'.encode()
        names = (table.key[0].name, table.deadline.name, status.name, version.name)
        marks = [f'{_quoted(name)[1:]},"value":'.encode() for name in names]
        self._key_mark, self._version_mark = marks[0], marks[3]
        self._deadline_mark, self._status_mark = marks[1] + b'"', marks[2] + b'"'
        self._columns: _Places = (0, 0, 0, 0)
        self._identity: _Places = (0, 0, 0, 0)
        self._statuses: dict[bytes, str] = {}

    def cut(self, line: bytes) -> Change | None:
        """None for anything unusual."""
        action = line[_ACTION_AT : _ACTION_AT + 1]
        if action not in b"IU":
            return None
        head, _, columns = line.partition(_COLUMNS_MARK)
        if not head.endswith(self._ours):
            return None
        try:
            if action == b"I":
                parts = columns[:-3].split(_BETWEEN_COLUMNS)
                if not self._fits(parts, self._columns):
                    self._columns = self._places(parts)
                key, new = self._values(parts, self._columns)
                return Change(INSERT, key, new, None)
            columns, _, identity = columns.partition(_IDENTITY_MARK)
            parts = columns.split(_BETWEEN_COLUMNS)
            if not self._fits(parts, self._columns):
                self._columns = self._places(parts)
            key, new = self._values(parts, self._columns)
            logged = identity[:-3].split(_BETWEEN_COLUMNS)
            if len(logged) == 1:  # the primary key only: the old row is unknown
                old_key, old = self._integer(logged[0], self._key_mark), None
            else:
                if not self._fits(logged, self._identity):
                    self._identity = self._places(logged)
                old_key, old = self._values(logged, self._identity)
        except (ValueError, IndexError):
            return None
        return Change(UPDATE, key, new, old, None if old_key == key else old_key)

    def _fits(self, parts: Sequence[bytes], places: _Places) -> bool:
        key, deadline, status, version = places
        return (
            len(parts) > max(places)
            and parts[key].startswith(self._key_mark)
            and parts[deadline].startswith(self._deadline_mark)
            and parts[status].startswith(self._status_mark)
            and parts[version].startswith(self._version_mark)
        )

    def _places(self, parts: Sequence[bytes]) -> _Places:
        """Where the four columns stand in this line; ValueError where one is missing or of another kind."""
        marks = (self._key_mark, self._deadline_mark, self._status_mark, self._version_mark)
        found = [next((at for at, part in enumerate(parts) if part.startswith(mark)), -1) for mark in marks]
        if min(found) < 0:
            raise ValueError
        return (found[0], found[1], found[2], found[3])

    def _values(self, parts: Sequence[bytes], places: _Places) -> tuple[int, Row]:
        key, deadline, status, version = places
        text = parts[status]
        known = self._statuses.get(text)
        if known is None:
            known = self._remember(text)
        at = len(self._deadline_mark)
        return (
            int(parts[key][len(self._key_mark) :]),
            Row(parse_instant(parts[deadline][at:-1].decode()), known, int(parts[version][len(self._version_mark) :])),
        )

    def _remember(self, part: bytes) -> str:
        raw = part[len(self._status_mark) : -1]
        if b"\\" in raw or len(self._statuses) >= _MOST_STATUSES:
            raise ValueError
        status = self._statuses[part] = raw.decode()
        return status

    @staticmethod
    def _integer(part: bytes, mark: bytes) -> int:
        if not part.startswith(mark):
            raise ValueError
        return int(part[len(mark) :])


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()


def _by_name(columns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {column["name"]: column["value"] for column in columns}


def _text(value: Any) -> str:
    """A column's text as PostgreSQL writes it."""
    if type(value) is str:
        return value
    if value is True or value is False:
        return "true" if value else "false"
    if type(value) is int:
        return str(value)
    raise TypeError


def _integer(value: Any) -> int:
    if type(value) is not int:
        raise TypeError
    return value


def _version(value: Any) -> int | None:
    return None if value is None else _integer(value)


def _is_number(type_name: str) -> bool:
    return type_name.startswith(("numeric", "real", "double precision"))


def _loads(line: bytes) -> Any:
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if "infinity" not in str(error):
            raise
        # Some column's numeric has more digits than a double holds: no reason to stop.
        return _loads_exactly(line)


def _loads_exactly(line: bytes) -> Any:
    """JSON with every fractional number as its text: 1.10 stays 1.10."""
    return json.loads(line.decode(), parse_float=str, parse_int=_exact_integer)


def _exact_integer(digits: str) -> int | str:
    # Python makes no integers of thousands of digits; no integer type of PostgreSQL has more than 19.
    return int(digits) if len(digits) <= _LONGEST_INTEGER else digits
