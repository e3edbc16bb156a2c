"""wal2json, format version 2: one JSON object a message.

Only version 2 streams: version 1 builds a whole transaction in one string of at most 1 GB.
https://github.com/eulerto/wal2json
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdcwatch.decode.boundary import Boundaries
from cdcwatch.decode.change import DELETE, INSERT, UPDATE, Begin, Change, Commit, Row, Truncate, is_filled_up, no_column
from cdcwatch.decode.cutter import Cutter
from cdcwatch.errors import DecodeError
from cdcwatch.instant import parse_instant
from cdcwatch.lsn import parse_lsn
from cdcwatch.table import Key, WatchedTable, canonical_key
from cdcwatch.zone import deadline_parser

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdcwatch.decode.change import Decoder, Message
    from cdcwatch.table import Column

_ABSENT: Final = object()
_WORDS: Final = {"t": "true", "f": "false"}
_NOTHING: Final[Mapping[str, Any]] = {}
_LONGEST_INTEGER: Final = len("-9223372036854775808")
_REMEDY: Final = "see docs/runbook.md, 'A row that cannot be understood'"


def filter_name(schema: str, table: str) -> str:
    """`schema.table` for add-tables, with every special character escaped as wal2json's list parser wants it."""
    return f"{_escape(schema)}.{_escape(table)}"


def _escape(identifier: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else f"\\{c}" for c in identifier)


def is_cut(table: WatchedTable) -> bool:
    """Whether the usual line of a table is one for a Cutter."""
    if table.status is None or table.version is None or table.zone:
        return False
    return table.has_integer_key and _reader(table.status) is _text


class Wal2JsonDecoder:
    """Reads the watched table's messages; builds nothing for columns that nobody configured.

    The usual line is cut, not parsed. Whatever is unusual about a line sends it to the whole parser, which gives the
    same values.
    """

    def __init__(self, table: WatchedTable) -> None:
        self._schema, self._name = table.schema, table.name
        self._key = tuple((column.name, _reader(column)) for column in table.key)
        self._integer_key = table.has_integer_key
        self._deadline = table.deadline.name
        self._instant = deadline_parser(table)
        self._status = table.status.name if table.status else None
        self._status_word = _reader(table.status) if table.status else _text
        self._is_status_filled_up = is_filled_up(table.status)
        self._version = table.version.name if table.version else None
        watched = [column for column in (*table.key, table.deadline, table.status, table.version) if column is not None]
        self._renamed = tuple(column.names for column in watched if column.others)
        self._columns = tuple(column.names for column in watched)
        # orjson makes floats of JSON's numbers, which would round a numeric key; json keeps their text, slower.
        exact = any(_is_number(column.type) for column in (*table.key, table.status) if column is not None)
        self._loads: Callable[[bytes], Any] = _loads_exactly if exact else _loads
        self._boundaries = Boundaries()
        self._cutter = Cutter(table) if is_cut(table) else None

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
        return change or self._boundaries.cut(line) or self._parse(line)

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
            values = self._complete(line["columns"])
            return Change(INSERT, self._key_of(values), self._row(values), None)
        identity = self._by_name(line["identity"])
        if action == "D":
            return Change(DELETE, self._key_of(identity), None, self._old_row(identity))
        # An unchanged TOASTed column is left out of the new row: what the identity logged of it still holds.
        values = self._complete(line["columns"], identity)
        old_key = self._key_of(identity)
        key, new = self._key_of(values), self._row(values)
        return Change(UPDATE, key, new, self._old_row(identity), old_key if old_key != key else None)

    def _by_name(self, columns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Values by the names that the columns have now."""
        values = _by_name(columns)
        for name, *others in self._renamed:
            if name not in values:
                found = next((other for other in others if other in values), None)
                if found is not None:
                    values[name] = values[found]
        return values

    def _complete(self, columns: Sequence[Mapping[str, Any]], identity: Mapping[str, Any] = _NOTHING) -> dict[str, Any]:
        """A new row. DecodeError where a watched column is missing: absent is not NULL."""
        values = self._by_name(columns)
        for names in self._columns:
            if names[0] not in values:
                if names[0] not in identity:
                    raise no_column(names)
                values[names[0]] = identity[names[0]]
        return values

    def _key_of(self, values: Mapping[str, Any]) -> Key:
        if self._integer_key:
            return _integer(values[self._key[0][0]])
        return canonical_key([read(values[name]) for name, read in self._key], integer=False)

    def _row(self, values: Mapping[str, Any]) -> Row:
        deadline = values[self._deadline]
        status = values[self._status] if self._status else None
        return Row(
            None if deadline is None else self._instant(deadline),
            status if status is None else self._status_text(status),
            _version(values[self._version]) if self._version else None,
        )

    def _status_text(self, status: Any) -> str:
        text = self._status_word(status)
        return text.rstrip(" ") if self._is_status_filled_up else text

    def _old_row(self, identity: Mapping[str, Any]) -> Row | None:
        """None unless the replica identity logs deadline and status: absent is not NULL."""
        deadline = identity.get(self._deadline, _ABSENT)
        status = identity.get(self._status, _ABSENT) if self._status else None
        if deadline is _ABSENT or status is _ABSENT:
            return None
        return Row(
            None if deadline is None else self._instant(deadline),
            status if status is None else self._status_text(status),
            _version(identity.get(self._version)) if self._version else None,
        )


class Recoding:
    """For a database that isn't UTF-8: wal2json's lines come in its encoding, whatever client_encoding says."""

    def __init__(self, decoder: Decoder, encoding: str) -> None:
        self._decoder, self._encoding = decoder, encoding

    def options(self) -> Mapping[str, str]:
        """The decoder's."""
        return self._decoder.options()

    def decode(self, payload: bytes | memoryview) -> Message | None:
        """One line."""
        try:
            line = str(payload, self._encoding).encode()
        except UnicodeError:
            raise DecodeError(f"wal2json sent a line that is not {self._encoding}", remedy=_REMEDY) from None
        return self._decoder.decode(line)


def _by_name(columns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {column["name"]: column["value"] for column in columns}


def _reader(column: Column) -> Callable[[Any], str]:
    """Reads a key or status column's text: as `cdcwatch.columns.key_text` has it."""
    if column.type == "bytea":
        return _hex
    return _word if column.base and column.kind == "boolean" else _text


def _hex(value: Any) -> str:
    """Bytes, of which it leaves out the mark that tells hex from other text."""
    return f"\\x{_text(value)}"


def _word(value: Any) -> str:
    """A domain over boolean, which it writes as a text of one letter."""
    return _WORDS[value]


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
