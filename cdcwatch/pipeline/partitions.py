"""What becomes of a partitioned table whose partitions change while it is watched.

The heap is loaded again from the table. The topic gets the orders that an attached partition brought along; of those
that leave with a partition, or in the TRUNCATE of one, nothing is logged and nothing can be said. One that was detached
and attached again has left and come.
https://www.postgresql.org/docs/current/ddl-partitioning.html#DDL-PARTITIONING-DECLARATIVE-MAINTENANCE
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Final

from cdcwatch.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from contextlib import AbstractContextManager

    from cdcwatch.deadline.event import Event
    from cdcwatch.decode.leaves import Leaves
    from cdcwatch.pipeline.arrivals import Arrivals
    from cdcwatch.table import Attachment, Leaf, WatchedTable

    Read = Callable[[Collection[int]], AbstractContextManager[tuple[int, Iterator[Event]]]]

_CHUNK_EVENTS: Final = 2000
_CATCH_UP_S: Final = 3.0
"""No snapshot is taken while the stream is further behind."""
_PATIENCE_S: Final = 30.0
"""A snapshot of the table is not held longer for a sink that takes nothing."""

_log = logging.getLogger(__name__)


class Partitions:
    """Told of the table at every look of the warden, in its thread."""

    def __init__(
        self,
        table: WatchedTable,
        *,
        leaves: Leaves | None,
        arrivals: Arrivals,
        read: Read | None,
        reload: Callable[[bool], None],
        passed: Callable[[int], bool],
        current_lsn: Callable[[], int],
        named: Callable[[Collection[int]], Collection[Leaf]],
    ) -> None:
        """The parts of the service that must know.

        `leaves`: of wal2json's decoders. `read`: the open orders of some partitions as snapshot events, and an LSN
        before which all they show has committed; None where nothing is published. `reload`: the heap, emptied before
        or not. `passed`: whether the stream was read beyond an LSN. `named`: tables by their OIDs, those there are.
        """
        self._leaves, self._arrivals, self._read, self._reload = leaves, arrivals, read, reload
        self._passed, self._current_lsn, self._named = passed, current_lsn, named
        self._seen = {leaf.oid: leaf for leaf in table.leaves or ()}
        self._leaving: list[tuple[int, Leaf]] = []
        self._forgotten: set[Attachment] = set()

    def begin(self, known: tuple[Attachment, ...] | None) -> None:
        """Before the stream is read: `known` is of the progress record; None: the topic knows what there is now."""
        gone = {one.oid for one in known or ()} - self._seen.keys()
        for one in known or ():
            if one.oid in self._seen and one.is_over(self._seen[one.oid].attachment):
                _tell_away(self._seen[one.oid])
        if gone and self._leaves is not None:
            # Detached while nobody looked: the stream may still hold what happened to them before.
            left = self._named(gone)
            for leaf in left:
                self._leaves.admit(leaf)
            lsn = self._current_lsn()
            self._leaving += [(lsn, leaf) for leaf in left]
        self._arrivals.known = _attachments(self._seen) if known is None else known

    def look(self, found: WatchedTable) -> None:
        """UnavailableError when the database went away over it: the next look goes on."""
        now = {leaf.oid: leaf for leaf in found.leaves or ()}
        self._tell_heap(now)
        self._dismiss(now)
        known = self._arrivals.known
        if known is None:
            return
        again = {now[one.oid].attachment for one in known if one.oid in now and one.is_over(now[one.oid].attachment)}
        new = (now.keys() - {one.oid for one in known}) | {one.oid for one in again}
        if not new:
            self._arrivals.known = _attachments(now)
            self._arrivals.turn()
        elif self._arrivals.give([], after_lsn=self._current_lsn(), timeout_s=_CATCH_UP_S):
            if again <= self._forgotten:
                self._add(new, now)
            else:
                # The stream is past the time when it was away; read at the next look, by when all that is forgotten
                # shows in the table.
                self._arrivals.forget()
                self._forgotten = again

    def _tell_heap(self, now: dict[int, Leaf]) -> None:
        before, self._seen = self._seen, now
        come = [leaf for oid, leaf in now.items() if oid not in before]
        left = [leaf for oid, leaf in before.items() if oid not in now]
        away = [leaf for oid, leaf in now.items() if oid in before and before[oid].stamp != leaf.stamp]
        emptied = [leaf for oid, leaf in now.items() if oid in before and before[oid].filenode != leaf.filenode]
        for leaf in come:
            _log.info("the partition %s.%s has come", leaf.schema, leaf.name)
        for leaf in left:
            _log.warning("the partition %s.%s has left: its orders are not the table's any more", *leaf[1:3])
        for leaf in emptied:
            _log.warning("the partition %s.%s was truncated or rewritten: the heap is loaded again", *leaf[1:3])
        for leaf in away:
            _tell_away(leaf)
        if self._leaves is not None:
            for leaf in now.values():
                self._leaves.admit(leaf)
        if left or emptied or away:
            self._reload(True)
        elif come:
            self._reload(False)
        if left and self._leaves is not None:
            lsn = self._current_lsn()
            self._leaving += [(lsn, leaf) for leaf in left]

    def _dismiss(self, now: dict[int, Leaf]) -> None:
        """What the stream says of a partition that has left is ours until the stream has passed the place."""
        names = {(leaf.schema, leaf.name) for leaf in now.values()}
        still = []
        for lsn, leaf in self._leaving:
            if not self._passed(lsn):
                still.append((lsn, leaf))
            elif self._leaves is not None and (leaf.schema, leaf.name) not in names:
                self._leaves.dismiss(leaf)
        self._leaving = still

    def _add(self, new: Collection[int], now: dict[int, Leaf]) -> None:
        """The orders of new partitions into the topic. What breaks off is done again, whole, at a later look."""
        known = _attachments(now)
        if self._read is None:
            self._arrivals.known = known
            return
        count = 0
        with self._read(new) as (lsn, events):
            # Empty: before the table is read, and so locked against DDL, the stream must have come that far.
            given = self._arrivals.give([], after_lsn=lsn, timeout_s=_PATIENCE_S)
            for chunk in iter(lambda: list(itertools.islice(events, _CHUNK_EVENTS)), []):
                given = given and self._arrivals.give(chunk, after_lsn=lsn, timeout_s=_PATIENCE_S)
                count += len(chunk)
                if not given:
                    break
            if not (given and self._arrivals.give([], after_lsn=lsn, timeout_s=_PATIENCE_S, known=known)):
                raise UnavailableError("the sink takes nothing now", remedy="new partitions are read at a later look")
        self._arrivals.turn()
        _log.info("%d open orders of new partitions were read", count)


def _attachments(leaves: dict[int, Leaf]) -> tuple[Attachment, ...]:
    return tuple(sorted(leaf.attachment for leaf in leaves.values()))


def _tell_away(leaf: Leaf) -> None:
    _log.warning(
        "the partition %s.%s was detached and attached again: its orders are read again, and of those that went"
        " meanwhile nothing can be said",
        leaf.schema,
        leaf.name,
    )
