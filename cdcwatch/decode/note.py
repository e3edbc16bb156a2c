"""What a closing process writes into the WAL for the reader of the stream: a transactional logical message.

The topic has one writer, the reader; what the closer has to tell takes the same way as the orders, with a commit LSN
and an ordinal, so that it is told once. Notes are ASCII: pgoutput sends them as they are, in whatever encoding the
database has. https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from cdcwatch.instant import FIRST_US, LAST_US, NEGATIVE_INFINITY_US
from cdcwatch.table import canonical_key

if TYPE_CHECKING:
    from cdcwatch.table import Key, WatchedTable

PREFIX: Final = "cdcwatch"
CLOSING: Final = "closing"
_CLOSE_FAILED: Final = "close_failed"
_MOST_ERROR_CHARACTERS: Final = 300


class CloseFailure(NamedTuple):
    """An order whose close has failed as often as `close.attempts` allows."""

    table_oid: int
    key: tuple[str, ...]
    """The key columns' texts."""
    deadline_us: int
    """Microseconds since 2000-01-01 UTC."""
    version: int
    """0 where the table has none."""
    attempts: int
    error: str
    """SQLSTATE, its name and the constraint; no value of the row."""

    def to_json(self) -> str:
        """The message's content."""
        return json.dumps({"note": _CLOSE_FAILED, **self._asdict()}, separators=(",", ":"))


class Closing(NamedTuple):
    """Orders that the transaction at hand is about to delete because they were due (`close.action = "delete"`).

    It stands before the deletes, so that whoever reads them knows already; sql/close.sql writes it.
    """

    table_oid: int
    keys: frozenset[Key]


Note = CloseFailure | Closing


def parse_note(content: bytes | str, table: WatchedTable) -> Note | None:
    """A message's content; None for another table's, and for what others wrote under our prefix, as anybody may."""
    try:
        note = orjson.loads(content)
        kind = note.pop("note")
        if kind == CLOSING:
            return _closing(note, table)
        if kind != _CLOSE_FAILED:
            return None
        failure = CloseFailure(**{**note, "key": tuple(note["key"])})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return failure if failure.table_oid == table.oid and _is_sound(failure, len(table.key)) else None


def _closing(note: dict[str, Any], table: WatchedTable) -> Closing | None:
    """Keys are numbers where they are one integer; else lists of the columns' texts, as hexadecimal UTF-8."""
    if note["table_oid"] != table.oid:
        return None
    keys: list[Any] = note["keys"]
    if table.has_integer_key:
        return Closing(table.oid, frozenset(keys)) if all(type(key) is int for key in keys) else None
    texts = [[bytes.fromhex(text).decode() for text in key] for key in keys]
    if any(len(key) != len(table.key) for key in texts):
        return None
    return Closing(table.oid, frozenset(canonical_key(key, integer=False) for key in texts))


def _is_sound(failure: CloseFailure, key_columns: int) -> bool:
    numbers: tuple[Any, ...] = (failure.deadline_us, failure.version, failure.attempts)
    return (
        all(type(number) is int for number in numbers)
        and (FIRST_US <= failure.deadline_us <= LAST_US or failure.deadline_us == NEGATIVE_INFINITY_US)
        and len(failure.key) == key_columns
        and all(type(text) is str for text in failure.key)
        and type(failure.error) is str
        and len(failure.error) <= _MOST_ERROR_CHARACTERS
    )
