"""Whose an overdue order is, among the instances that sweep: weighted rendezvous hashing of its key. Pure.

Every instance computes the same from the key's canonical text, whatever the key's type is, and from who is alive. When
an instance goes, only its own share moves; when one comes, it takes its share and nothing else changes hands. Two that
see the members differently for a moment both take an order, or neither until their next look: the closing UPDATE
decides.
https://www.ietf.org/archive/id/draft-ietf-bess-weighted-hrw-02.html
"""

from __future__ import annotations

from hashlib import blake2b
from math import log
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdcwatch.table import Key

# With half a step added this many bits are still exact in a double, and the fraction is never 0 or 1.
_BITS: Final = 52
_DIGEST_BYTES: Final = 8


class Member(NamedTuple):
    """An instance that is alive."""

    id: str
    weight: float
    """Greater than 0: its share against the others'."""


class Shard:
    """The share of one instance."""

    def __init__(self, own_id: str, members: Sequence[Member]) -> None:
        """Whoever isn't among the members has no share; without any members everything is everybody's."""
        self._own_id = own_id
        self._members = tuple(sorted(members))

    @property
    def members(self) -> tuple[Member, ...]:
        """All of them, in the order of their ids."""
        return self._members

    def has(self, key: Key) -> bool:
        """Whether the order with this key is ours."""
        members = self._members
        if not members:
            return True
        if len(members) == 1:
            return members[0].id == self._own_id
        text = str(key).encode()
        return max(members, key=lambda member: (_score(member, text), member.id)).id == self._own_id


def _score(member: Member, text: bytes) -> float:
    """Exponential with the weight as its rate, upside down: the chance to be the highest is the weight's share."""
    digest = blake2b(text, digest_size=_DIGEST_BYTES, key=member.id.encode()).digest()
    fraction = ((int.from_bytes(digest) >> (8 * _DIGEST_BYTES - _BITS)) + 0.5) / 2**_BITS
    return -member.weight / log(fraction)
