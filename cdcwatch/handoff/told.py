"""What a topic says of every order after all of its records: who is open, with which deadline. Pure.

Memory goes with the orders that are open in the topic, 110 to 200 bytes each: key and deadline, nothing of the others.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from cdcwatch.deadline.event import GAP_TYPE
from cdcwatch.deadline.rule import CANCELLED, EXPIRED, MOVED, SCHEDULED
from cdcwatch.handoff.murmur2 import partition_of
from cdcwatch.instant import read_instant
from cdcwatch.lsn import parse_lsn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from cdcwatch.deadline.event import Gap

_LIVE: Final = frozenset({SCHEDULED, MOVED})
_OVER: Final = frozenset({CANCELLED, EXPIRED})


class Said(NamedTuple):
    """Of an order that is open in the topic."""

    deadline_us: int
    is_ours: bool
    """Under the source that our events have; else another server or another name of the table told it."""


class Told:
    """Fed with the records of every partition in their order."""

    def __init__(self, source: str, tables: Collection[str], *, partitions: int, slot_lsn: int = 0) -> None:
        """`source`: our events'. `tables`: `database/schema.table`, whose events count whichever server they are of.

        `slot_lsn`: where the slot stands. Snapshot events from there on are of a first read that broke off.
        """
        self._source, self._tables, self.partitions = source, frozenset(tables), partitions
        self._slot_lsn = slot_lsn
        self._ours: defaultdict[int, dict[bytes, int]] = defaultdict(dict)
        self._others: defaultdict[int, dict[bytes, int]] = defaultdict(dict)
        self._gaps: dict[int, dict[str, Any]] = {}
        self._sources: dict[str, bool] = {}
        self.has_history = False
        """Whether it holds events of a stream before the slot's, or of what the slot has sent."""

    def note(self, partition: int, key: bytes | None, value: bytes) -> None:
        """A record. What is no event of ours changes nothing."""
        if not value:
            self._forget(partition, key)
            return
        try:
            event = orjson.loads(value)
            kind, source, data = event["type"], event["source"], event["data"]
            if not self._is_about_us(source):
                return
            deadline_us = read_instant(data["deadline"]) if kind in _LIVE else 0
            is_first_read = data["snapshot"] and parse_lsn(data["commit_lsn"]) >= self._slot_lsn
        except (ValueError, KeyError, TypeError, AttributeError):
            return
        self.has_history = self.has_history or not is_first_read
        if kind == GAP_TYPE:
            self._gaps[partition] = {name: data.get(name) for name in ("reason", "from_lsn", "to_lsn")}
        elif kind in _LIVE and key is not None:
            ours, others = self._ours[partition], self._others[partition]
            mine, other = (ours, others) if source == self._source else (others, ours)
            other.pop(key, None)
            mine[key] = deadline_us
        elif kind in _OVER:
            self._forget(partition, key)

    def _is_about_us(self, source: str) -> bool:
        known = self._sources.get(source)
        if known is None:
            known = self._sources[source] = source == self._source or source.partition("/")[2] in self._tables
        return known

    def _forget(self, partition: int, key: bytes | None) -> None:
        """An order that is over, or, without a key, all of the partition: a TRUNCATE."""
        for kept in (self._ours, self._others):
            if key is None:
                kept[partition].clear()
            else:
                kept[partition].pop(key, None)

    # -- a topic that got more partitions ----------------------------------------------------------------------------

    def strays(self) -> set[bytes]:
        """Open orders whose last word may stand in another partition: they were told before partitions were added."""
        return {
            key
            for kept in (self._ours, self._others)
            for partition, keys in kept.items()
            for key in keys
            if partition_of(key, self.partitions) != partition
        }

    def settle(self, key: bytes) -> None:
        """A stray of which the partition where it belongs has told: what that one says counts."""
        home = partition_of(key, self.partitions)
        for kept in (self._ours, self._others):
            for partition, keys in kept.items():
                if partition != home:
                    keys.pop(key, None)

    # -- what came of it ---------------------------------------------------------------------------------------------

    def take(self, key: bytes) -> Said | None:
        """What it says of an order, which is then forgotten; None: it is not open there."""
        said = None
        for kept, is_ours in ((self._others, False), (self._ours, True)):
            for keys in kept.values():
                deadline_us = keys.pop(key, None)
                if deadline_us is not None:
                    said = Said(deadline_us, is_ours)
        return said

    def left(self) -> Iterator[tuple[bytes, int]]:
        """Orders that were not taken, and their deadlines."""
        for kept in (self._ours, self._others):
            for keys in kept.values():
                yield from keys.items()

    def has_gap(self, gap: Gap) -> bool:
        """Whether this gap is the last that every partition tells of."""
        return all(self._gaps.get(partition) == gap.data for partition in range(self.partitions))
