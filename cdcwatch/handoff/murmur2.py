"""Kafka's murmur2 hash as Java clients compute it: where a key's records stand.

https://github.com/apache/kafka/blob/4.0.0/clients/src/main/java/org/apache/kafka/common/utils/Utils.java
"""

from __future__ import annotations

_MASK = 0xFFFF_FFFF
_M = 0x5BD1_E995


def murmur2(data: bytes) -> int:
    """The hash, unsigned."""
    length = len(data)
    hashed = 0x9747_B28C ^ length
    for at in range(0, length - length % 4, 4):
        k = int.from_bytes(data[at : at + 4], "little") * _M & _MASK
        k = (k ^ k >> 24) * _M & _MASK
        hashed = (hashed * _M & _MASK) ^ k
    rest = data[length - length % 4 :]
    if rest:
        hashed = (hashed ^ int.from_bytes(rest, "little")) * _M & _MASK
    hashed = (hashed ^ hashed >> 13) * _M & _MASK
    return hashed ^ hashed >> 15


def partition_of(key: bytes, partitions: int) -> int:
    """Where a Java producer puts a record with this key."""
    return (murmur2(key) & 0x7FFF_FFFF) % partitions
