"""What a closing process writes into the WAL for the reader of the stream: a transactional logical message.

The topic has one writer, the reader; what the closer has to tell takes the same way as the orders, with a commit LSN
and an ordinal, so that it is told once. https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from cdcwatch.instant import FIRST_US, LAST_US, NEGATIVE_INFINITY_US

if TYPE_CHECKING:
    from cdcwatch.table import WatchedTable

PREFIX: Final = "cdcwatch"
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
        return orjson.dumps({"note": _CLOSE_FAILED, **self._asdict()}).decode()


def parse_note(content: bytes | str, table: WatchedTable) -> CloseFailure | None:
    """The inverse; None for another table's, and for what somebody else wrote under our prefix, which anybody may."""
    try:
        note = orjson.loads(content)
        if note.pop("note") != _CLOSE_FAILED:
            return None
        failure = CloseFailure(**{**note, "key": tuple(note["key"])})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return failure if failure.table_oid == table.oid and _is_sound(failure, len(table.key)) else None


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
