"""What a closing process writes into the WAL for the reader of the stream: a transactional logical message.

The topic has one writer, the reader; what the closer has to tell takes the same way as the orders, with a commit LSN
and an ordinal, so that it is told once. https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
"""

from __future__ import annotations

from typing import Final, NamedTuple

import orjson

PREFIX: Final = "cdcwatch"
_CLOSE_FAILED: Final = "close_failed"


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


def parse_note(content: bytes | str, table_oid: int) -> CloseFailure | None:
    """The inverse; None for another table's, and for what somebody else wrote under our prefix."""
    try:
        note = orjson.loads(content)
        if note.pop("note") != _CLOSE_FAILED or note["table_oid"] != table_oid:
            return None
        return CloseFailure(**{**note, "key": tuple(map(str, note["key"]))})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
