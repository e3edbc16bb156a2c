"""A stream's entries, read in pages, and what stands in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cdcwatch.handoff.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE: Final = 1000
Entry = tuple[bytes, dict[bytes, bytes]]
FIRST: Final = b"-"
_SEQUENCES: Final = 1_000_000
"""Of a millisecond, in the number that stands for an entry's id."""


def entries(client: Any, stream: str, after: bytes | None, last: bytes) -> Iterator[Entry]:
    """Those behind `after` (None: all) up to `last`, the oldest first."""
    begin = FIRST if after is None else b"(" + after
    while True:
        found: list[Entry] = client.xrange(stream, begin, last, PAGE)
        yield from found
        if len(found) < PAGE:
            return
        begin = b"(" + found[-1][0]


def newest_first(client: Any, stream: str, last: bytes) -> Iterator[Entry]:
    """Those up to `last`, the newest first."""
    end = last
    while True:
        found: list[Entry] = client.xrevrange(stream, end, FIRST, PAGE)
        yield from found
        if len(found) < PAGE:
            return
        end = b"(" + found[-1][0]


def last_id(client: Any, stream: str) -> bytes | None:
    """Of the newest entry; None where there is none."""
    found: list[Entry] = client.xrevrange(stream, count=1)
    return found[0][0] if found else None


def record_of(partition: int, entry: Entry) -> Record:
    """An entry as subscribers read it. A dead letter's key is its id. `offset`: milliseconds, then six digits."""
    number, fields = entry
    milliseconds, sequence = number.split(b"-")
    key = fields.get(b"key")
    if key is None and b"type" not in fields:
        key = fields.get(b"id")
    return Record(
        partition,
        int(milliseconds) * _SEQUENCES + int(sequence),
        int(milliseconds),
        fields.get(b"value", b""),
        key,
    )
