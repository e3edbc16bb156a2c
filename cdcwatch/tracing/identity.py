"""Which trace an order's deadline is, and whether it is followed: the same in every process. Pure.

The trace's id is the order's Idempotency-Key, a UUID of table, key and deadline; the span in the topic is its root.
https://www.w3.org/TR/trace-context/#trace-id
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Final, NamedTuple

from cdcwatch.close.attempt import identity_of

if TYPE_CHECKING:
    from cdcwatch.table import Key

_ALL: Final = 2**32
_SPAN_MASK: Final = 2**64 - 1


class TraceIdentity(NamedTuple):
    """Of one order's one deadline."""

    trace_id: int
    """128 bits."""
    root_id: int
    """64 bits: the span of its event in the topic."""


def trace_identity(table: str, key: Key, deadline_us: int) -> TraceIdentity:
    """`table` is its qualified name."""
    trace_id = identity_of(table, key, deadline_us).int
    # A version 5 UUID's lower half begins with the variant's bits: never 0, which would be no id.
    return TraceIdentity(trace_id, trace_id & _SPAN_MASK)


class Choice:
    """Follows a share of the orders, by their keys: reader and closer choose the same ones."""

    def __init__(self, ratio: float) -> None:
        """`ratio`: 0 to 1."""
        self._below = int(ratio * _ALL)

    def __call__(self, key: Key) -> bool:
        """Whether this order is followed."""
        return zlib.crc32(str(key).encode()) < self._below

    def has(self, key: bytes) -> bool:
        """The same of a Kafka key."""
        return zlib.crc32(key) < self._below
