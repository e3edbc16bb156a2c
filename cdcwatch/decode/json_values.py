"""wal2json's lines as JSON, and the values in them as the watched columns need them. Pure.

Numbers keep their digits, texts are as PostgreSQL itself writes them.
https://www.postgresql.org/docs/current/datatype.html
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdcwatch.table import Column

_WORDS: Final = {"t": "true", "f": "false"}
_LONGEST_INTEGER: Final = len("-9223372036854775808")


def by_name(columns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A line's columns or identity."""
    return {column["name"]: column["value"] for column in columns}


def text_reader(column: Column) -> Callable[[Any], str]:
    """Reads a key or status column's text: as `cdcwatch.columns.key_text` has it."""
    if column.type == "bytea":
        return _hex
    return _word if column.base and column.kind == "boolean" else text_of


def _hex(value: Any) -> str:
    """Bytes, of which it leaves out the mark that tells hex from other text."""
    return f"\\x{text_of(value)}"


def _word(value: Any) -> str:
    """A domain over boolean, which it writes as a text of one letter."""
    return _WORDS[value]


def text_of(value: Any) -> str:
    """A column's text as PostgreSQL writes it."""
    if type(value) is str:
        return value
    if value is True or value is False:
        return "true" if value else "false"
    if type(value) is int:
        return str(value)
    raise TypeError


def integer_of(value: Any) -> int:
    """TypeError for anything else: a float, true."""
    if type(value) is not int:
        raise TypeError
    return value


def version_of(value: Any) -> int | None:
    """The same, and NULL."""
    return None if value is None else integer_of(value)


def is_number(type_name: str) -> bool:
    """Whether the type's values come as JSON numbers that orjson would round."""
    return type_name.startswith(("numeric", "real", "double precision"))


def loads(line: bytes) -> Any:
    """A line. ValueError where it is none."""
    try:
        return orjson.loads(line)
    except orjson.JSONDecodeError as error:
        if "infinity" not in str(error):
            raise
        # Some column's numeric has more digits than a double holds: no reason to stop.
        return loads_exactly(line)


def loads_exactly(line: bytes) -> Any:
    """JSON with every fractional number as its text: 1.10 stays 1.10."""
    return json.loads(line.decode(), parse_float=str, parse_int=_exact_integer)


def loads_leniently(line: bytes) -> Any:
    """Bytes that are no UTF-8 stay in the texts, as surrogates."""
    return json.loads(line.decode(errors="surrogateescape"), parse_float=str, parse_int=_exact_integer)


def _exact_integer(digits: str) -> int | str:
    # Python makes no integers of thousands of digits; no integer type of PostgreSQL has more than 19.
    return int(digits) if len(digits) <= _LONGEST_INTEGER else digits
