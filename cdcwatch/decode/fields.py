"""The fields that pgoutput's messages are made of. Pure.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from typing import Any, Final

COLUMN_COUNT: Final = struct.Struct("!h")
INT8: Final = struct.Struct("!q")
INT4: Final = struct.Struct("!i")
_INTEGER_FORMS: Final = {2: struct.Struct("!h"), 4: INT4, 8: INT8}
UNCHANGED: Final = object()
"""Stands for a TOASTed value that was not sent again."""
NULL, _UNCHANGED, TEXT, BINARY = (ord(kind) for kind in "nutb")


def name_at(data: bytes, at: int) -> tuple[str, int]:
    """A NUL-terminated name and where it ends."""
    end = data.index(b"\0", at)
    return data[at:end].decode(), end + 1


def expect(data: bytes, at: int, kind: int) -> int:
    """Where what follows begins. ValueError where another byte stands."""
    if data[at] != kind:
        raise ValueError
    return at + 1


def tuple_at(data: bytes, at: int, width: int) -> tuple[list[Any], int]:
    """The values of TupleData as bytes, None for NULL, and where it ends. ValueError when it is cut short."""
    (count,) = COLUMN_COUNT.unpack_from(data, at)
    if count != width:
        raise ValueError
    at += 2
    values: list[Any] = []
    for _ in range(count):
        kind = data[at]
        if kind in (BINARY, TEXT):
            begin = at + 5
            at = begin + int.from_bytes(data[at + 1 : begin], "big")
            if at > len(data):
                raise ValueError
            values.append(data[begin:at])
        elif kind in (NULL, _UNCHANGED):
            values.append(None if kind == NULL else UNCHANGED)
            at += 1
        else:
            raise ValueError
    return values, at


def integer_of(value: Any, *, binary: bool) -> int:
    """A smallint, integer or bigint."""
    # Neither NULL nor a value that was not sent again has a length.
    number: int = _INTEGER_FORMS[len(value)].unpack(value)[0] if binary else int(value)
    return number
