"""wal2json, format version 2: one JSON object a message.

Only version 2 streams: version 1 builds a whole transaction in one string of at most 1 GB.
https://github.com/eulerto/wal2json
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from cdcwatch.decode.boundary import Boundaries
from cdcwatch.decode.change import DELETE, INSERT, UPDATE, Begin, Change, Commit, Row, Truncate, is_filled_up, no_column
from cdcwatch.decode.cutter import Cutter
from cdcwatch.decode.json_values import (
    by_name,
    integer_of,
    is_number,
    loads,
    loads_exactly,
    loads_leniently,
    text_of,
    text_reader,
    version_of,
)
from cdcwatch.decode.note import PREFIX, parse_note
from cdcwatch.decode.unreadable import VALUE_ERRORS, unreadable
from cdcwatch.errors import DecodeError
from cdcwatch.instant import parse_instant
from cdcwatch.lsn import parse_lsn
from cdcwatch.table import Key, WatchedTable, canonical_key
from cdcwatch.zone import deadline_parser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cdcwatch.decode.change import AnyMessage, Decoder, Message, Unreadable
    from cdcwatch.decode.note import Note

_ABSENT: Final = object()
_NOTHING: Final[Mapping[str, Any]] = {}
_LOGICAL_MESSAGE: Final = b'{"action":"M",'
_LEFT_OUT: Final = re.compile(r'no tuple identifier for (?:UPDATE|DELETE) in table "(.*)"\."(.*)"', re.DOTALL)
_ROWS: Final = {
    "I": (("columns", ""),),
    "U": (("identity", "the old "), ("columns", "")),
    "D": (("identity", "the old "),),
}
"""Actions about a row, and what their lines are made of."""
_REMEDY: Final = "see docs/runbook.md, 'A row that cannot be understood'"


def filter_name(schema: str, table: str) -> str:
    """`schema.table` for add-tables, with every special character escaped as wal2json's list parser wants it."""
    return f"{_escape(schema)}.{_escape(table)}"


def _escape(identifier: str) -> str:
    return "".join(c if c.isalnum() or c == "_" else f"\\{c}" for c in identifier)


def changes_left_out(said: str) -> tuple[str, str] | None:
    """Schema and table of a warning of wal2json's that a change is left out, for want of a replica identity."""
    found = _LEFT_OUT.fullmatch(said)
    return (found[1], found[2]) if found else None


def is_cut(table: WatchedTable) -> bool:
    """Whether the usual line of a table is one for a Cutter."""
    if table.status is None or table.version is None or table.zone:
        return False
    return table.has_integer_key and text_reader(table.status) is text_of


class Wal2JsonDecoder:
    """Reads the watched table's messages; builds nothing for columns that nobody configured.

    The usual line is cut, not parsed. Whatever is unusual about a line sends it to the whole parser, which gives the
    same values.
    """

    def __init__(self, table: WatchedTable) -> None:
        self._schema, self._name, self._table = table.schema, table.name, table
        self._key = tuple((column.name, text_reader(column)) for column in table.key)
        self._integer_key = table.has_integer_key
        self._deadline = table.deadline.name
        self._instant = deadline_parser(table)
        self._status = table.status.name if table.status else None
        self._status_word = text_reader(table.status) if table.status else text_of
        self._is_status_filled_up = is_filled_up(table.status)
        self._version = table.version.name if table.version else None
        watched = [column for column in (*table.key, table.deadline, table.status, table.version) if column is not None]
        self._renamed = tuple(column.names for column in watched if column.others)
        self._columns = tuple(column.names for column in watched)
        # orjson makes floats of JSON's numbers, which would round a numeric key; json keeps their text, slower.
        exact = any(is_number(column.type) for column in (*table.key, table.status) if column is not None)
        self._loads: Callable[[bytes], Any] = loads_exactly if exact else loads
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
                return Begin(parse_lsn(parsed["lsn"]), parse_instant(parsed["timestamp"]), integer_of(parsed["xid"]))
            if action == "C":
                return Commit(parse_lsn(parsed["lsn"]), parse_lsn(parsed["nextlsn"]))
            if action == "T":
                return Truncate() if self._is_ours(parsed) else None
        except (*VALUE_ERRORS, RecursionError) as error:
            return self._salvaged(line, error)
        if action == "M":
            return self._note(parsed)
        raise DecodeError("wal2json sent an action that isn't known", remedy="use wal2json 2.x") from None

    def _note(self, line: Mapping[str, Any]) -> Note | None:
        """A logical message; None where it isn't one of ours."""
        is_ours = line.get("prefix") == PREFIX and line.get("transactional") is True
        return parse_note(line.get("content", ""), self._table) if is_ours else None

    def _salvaged(self, line: bytes, error: Exception) -> Change | Unreadable | None:
        """A row of which some bytes are no UTF-8, or a value is not what its column is for. DecodeError for any other.

        A SQL_ASCII database may hold any bytes, and they reach us as they are.
        """
        if line.startswith(_LOGICAL_MESSAGE):
            return None  # anybody's, with any bytes in it: a NUL cuts it short
        try:
            parsed = loads_leniently(line)
            action = parsed["action"]
            is_row = action in _ROWS
            is_foreign = is_row and parsed.keys() >= {"schema", "table"} and not self._is_ours(parsed)
        except (*VALUE_ERRORS, RecursionError):
            is_row = is_foreign = False
        if not is_row:
            # The kind of error only: the text of it may quote the row.
            kind = type(error).__name__
            raise DecodeError(f"wal2json sent a line that can't be read ({kind})", remedy=_REMEDY) from None
        if is_foreign:
            return None
        try:
            change = self._change(action, parsed)
            if change is not None:
                _require_text(change)
                return change
        except VALUE_ERRORS:
            pass
        return unreadable("wal2json", line, self._parts(action, parsed))

    def _parts(self, action: str, line: Mapping[str, Any]) -> Iterator[tuple[str, Callable[[], object]]]:
        """What a row's line is made of, for `unreadable`."""
        values: dict[str, Any] = {}
        for side, which in _ROWS[action]:
            yield f"the list {side!r}", partial(self._side, line, side)
            values = values | self._side(line, side)
            self._require_same_type(values.get(self._deadline))
            yield f"{which}key", partial(self._require_key, values)
            for column in self._row_columns():
                if column in values or not which:  # the identity needn't log it
                    yield f"{which}column {column!r}", partial(self._require_column, column, values)

    def _side(self, line: Mapping[str, Any], side: str) -> dict[str, Any]:
        return self._by_name(line[side])

    def _require_same_type(self, deadline: Any) -> None:
        """DecodeError for an instant as another type writes it: that is wrong with every row, and no NULL."""
        if type(deadline) is not str or _is_read(self._instant, deadline):
            return
        if any(_is_read(parse_instant, deadline + rest) for rest in ("", "+00", " 00:00:00+00")):
            raise DecodeError(
                f"the deadline column {self._deadline!r} was of another type then",
                remedy="see `cdcwatch check`, and start again; docs/runbook.md, 'A row that cannot be understood'",
            )

    def _row_columns(self) -> list[str]:
        return [name for name in (self._deadline, self._status, self._version) if name]

    def _require_key(self, values: Mapping[str, Any]) -> None:
        if not self._integer_key:
            for name, read in self._key:
                _encoded(read(values[name]))
        self._key_of(values)

    def _require_column(self, column: str, values: Mapping[str, Any]) -> None:
        """Reads it alone: the others are NULL, which is never a trouble."""
        row = self._row({**dict.fromkeys(self._row_columns()), column: values[column]})
        _encoded(row.status or "")

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
        values = by_name(columns)
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
            return integer_of(values[self._key[0][0]])
        return canonical_key([read(values[name]) for name, read in self._key], integer=False)

    def _row(self, values: Mapping[str, Any]) -> Row:
        deadline = values[self._deadline]
        status = values[self._status] if self._status else None
        return Row(
            None if deadline is None else self._instant(deadline),
            status if status is None else self._status_text(status),
            version_of(values[self._version]) if self._version else None,
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
            version_of(identity.get(self._version)) if self._version else None,
        )


class Recoding:
    """For a database that isn't UTF-8: wal2json's lines come in its encoding, whatever client_encoding says."""

    def __init__(self, decoder: Decoder, encoding: str) -> None:
        self._decoder, self._encoding = decoder, encoding

    def options(self) -> Mapping[str, str]:
        """The decoder's."""
        return self._decoder.options()

    def decode(self, payload: bytes | memoryview) -> AnyMessage | None:
        """One line."""
        try:
            line = str(payload, self._encoding).encode()
        except UnicodeError:
            raise DecodeError(f"wal2json sent a line that is not {self._encoding}", remedy=_REMEDY) from None
        return self._decoder.decode(line)


def _require_text(change: Change) -> None:
    """UnicodeError where a text of it came as bytes that are none."""
    _encoded(str(change.key))
    _encoded(str(change.old_key))
    for row in (change.old, change.new):
        if row is not None and row.status is not None:
            _encoded(row.status)


def _is_read(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def _encoded(text: str) -> bytes:
    return text.encode()
