"""The names of our keys in Redis, and in which of a cluster's hash slots they lie. Pure.

https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/#hash-tags
"""

from __future__ import annotations

import binascii
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdcwatch.settings import RedisSettings

_HASH_SLOTS: Final = 16384
PARTITIONS_FIELD: Final = "#partitions"
"""Of the progress hash, beside the slots' own fields: no slot's name has a `#`. Scripts use `#moving <slot>`, too."""


def streams_of(topic: str, partitions: int) -> list[str]:
    """A table's streams, by partition: `<topic>` itself where there is one, `<topic>.<n>` of several."""
    return [topic] if partitions == 1 else [f"{topic}.{number}" for number in range(partitions)]


def dead_stream(topic: str) -> str:
    """Of the rows that could not be understood, and the orders that could not be closed."""
    return f"{topic}.dead"


def progress_key(settings: RedisSettings) -> str:
    """A hash: how far each slot's stream is in Redis, under the slot's name."""
    return f"{settings.stream}.progress"


def owner_key(settings: RedisSettings) -> str:
    """A hash: who may write for a slot."""
    return f"{settings.stream}.owner"


def staged_key(settings: RedisSettings, slot: str) -> str:
    """A stream: events on their way to being there all at once."""
    return f"{settings.stream}.staged.{slot}"


def group_name(settings: RedisSettings, slot: str) -> str:
    """`redis.group`, or what is made of the slot: workers of one slot share the work, of two slots they don't."""
    return settings.group or f"cdcwatch.{slot}"


def members_key(topic: str, group: str) -> str:
    """A sorted set: the workers of a consumer group, by their last sign of life."""
    return f"{topic}.members.{group}"


def leases_key(topic: str, group: str) -> str:
    """A hash: which worker has which partition."""
    return f"{topic}.leases.{group}"


def hash_slot(key: str) -> int:
    """Where a cluster keeps a key: by what stands in its first braces, or by all of it."""
    _, opened, rest = key.partition("{")
    tag, closed, _ = rest.partition("}")
    counted = tag if opened and closed and tag else key
    return binascii.crc_hqx(counted.encode(), 0) % _HASH_SLOTS


def share_a_hash_slot(keys: Iterable[str]) -> bool:
    """Whether a script may touch all of them in a cluster."""
    return len({hash_slot(key) for key in keys}) <= 1
