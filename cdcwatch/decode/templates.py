"""Reads pgoutput's usual row with one unpack, by the shape of rows that were read before.

A message of a known length and action nearly always has a known shape: which columns come, in which form, how long.
Every byte of the shape is compared, so that a row of another one is merely read the longer way.
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cdcwatch.decode.change import INSERT, UPDATE, Change, Row
from cdcwatch.decode.fields import BINARY, COLUMN_COUNT, INT4, NULL, TEXT

if TYPE_CHECKING:
    from collections.abc import Callable

_MOST_TRIES: Final = 1000
"""A text that never has the same length twice must cost neither time nor memory."""
_MESSAGE_HEAD_BYTES: Final = 5  # action, relation
_TUPLE_HEAD_BYTES: Final = 3  # which tuple, how many columns
_VALUE_HEAD_BYTES: Final = 5  # form, length
_INSERT: Final = ord("I")
_NEW_TUPLE: Final = ord("N")
_INTEGERS: Final = {2: "h", 4: "i", 8: "q"}
_new = tuple.__new__  # what a NamedTuple's own constructor comes to, in half the time


class Places(NamedTuple):
    """Where a relation's watched columns stand in its tuples, and what its replica identity logs."""

    key: int
    deadline: int
    version: int
    status: int
    logs_old_row: bool
    """Deadline and status: then no old tuple means that neither changed."""
    logs_version: bool


class _Template(NamedTuple):
    unpack: Callable[[bytes], tuple[Any, ...]]
    heads: tuple[bytes, ...]
    """What stands before each value: every other thing that `unpack` gives."""
    key: int
    deadline: int
    version: int
    status: int
    """Where they are in what `unpack` gives."""
    old: tuple[int, int, int, int] | None
    """The same of the old tuple; meaningless where the identity doesn't log them."""


class Templates:
    """For a relation with an integer key, a status, a version and an instant, all in binary."""

    def __init__(self) -> None:
        self._places: Places | None = None
        self._tries = 0
        self._templates: dict[int, _Template] = {}
        self._statuses: dict[bytes, str] = {}

    def begin(self, places: Places | None) -> None:
        """The relation was described, perhaps anew. None: it has no such columns."""
        self._places, self._tries = places, 0
        self._templates, self._statuses = {}, {}

    def read(self, data: bytes) -> Change | None:
        """An insert or update; None for what has no template yet, and for anything unusual."""
        template = self._templates.get(len(data) << 8 | data[0])
        if template is None:
            return None
        unpack, heads, key_at, deadline_at, version_at, status_at, old = template
        values = unpack(data)
        status = self._statuses.get(values[status_at])
        if values[::2] != heads or status is None:
            return None
        key, new = values[key_at], _new(Row, (values[deadline_at], status, values[version_at]))
        if data[0] == _INSERT:
            return _new(Change, (INSERT, key, new, None, None))
        return self._updated(key, new, values, old)

    def learn(self, data: bytes, change: Change) -> None:
        """From a row that was read the longer way."""
        places, new = self._places, change.new
        if places is None or new is None or new.status is None or self._tries >= _MOST_TRIES:
            return
        self._tries += 1
        template = _template(data, places)
        if template is not None:
            self._templates[len(data) << 8 | data[0]] = template
            self._statuses[template.unpack(data)[template.status]] = new.status

    def _updated(
        self, key: int, new: Row, values: tuple[Any, ...], old: tuple[int, int, int, int] | None
    ) -> Change | None:
        places = self._places
        if places is None:
            return None
        if old is None:
            row = None
            if places.logs_old_row:
                row = new if places.logs_version else _new(Row, (new[0], new[1], None))
            return _new(Change, (UPDATE, key, new, row, None))
        key_at, deadline_at, version_at, status_at = old
        old_key, row = values[key_at], None
        if places.logs_old_row:
            status = self._statuses.get(values[status_at])
            if status is None:
                return None
            row = _new(Row, (values[deadline_at], status, values[version_at] if places.logs_version else None))
        return _new(Change, (UPDATE, key, new, row, None if old_key == key else old_key))


def _template(data: bytes, places: Places) -> _Template | None:
    """Of a whole message; None where a watched column has not its usual form."""
    heads, forms = [data[:_MESSAGE_HEAD_BYTES]], ["0s"]
    at, is_new = _MESSAGE_HEAD_BYTES, False
    found: list[tuple[int, int, int, int]] = []
    while not is_new:
        is_new = data[at] == _NEW_TUPLE
        wanted = {places.key, places.deadline, places.status, places.version}
        if not is_new:  # the identity may log less
            logged = {places.deadline, places.status} if places.logs_old_row else set()
            wanted = {places.key, *logged, *({places.version} if places.logs_version else ())}
        heads.append(data[at : at + _TUPLE_HEAD_BYTES])
        forms.append("0s")
        (width,) = COLUMN_COUNT.unpack_from(data, at + 1)
        at += _TUPLE_HEAD_BYTES
        first = len(heads)
        for place in range(width):
            kind, size, head_bytes = data[at], 0, 1
            if kind in (BINARY, TEXT):
                size, head_bytes = INT4.unpack_from(data, at + 1)[0], _VALUE_HEAD_BYTES
            elif kind != NULL or place in wanted:
                return None
            form = f"{size}s"
            if place in wanted and place != places.status:
                if kind != BINARY or size not in _INTEGERS:
                    return None
                form = _INTEGERS[size]
            heads.append(data[at : at + head_bytes])
            forms.append(form)
            at += head_bytes + size
        key, deadline, version, status = (2 * (first + place) + 1 for place in places[:4])
        found.append((key, deadline, version, status))
    if at != len(data):
        return None
    *old, new = found
    layout = "".join(f"{len(head)}s{form}" for head, form in zip(heads, forms, strict=True))
    return _Template(struct.Struct(f"!{layout}").unpack, tuple(heads), *new, old[0] if old else None)
