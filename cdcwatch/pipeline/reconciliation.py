"""The table's open orders against what the topic says: only where the two differ there is an event.

What is open in the table and not in the topic, or with another deadline, is scheduled or moved; what is open in the
topic and not in the table has expired or is cancelled, by the row it has now. Equal ones are not told again.
"""

from __future__ import annotations

import itertools
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cdcwatch import failpoints
from cdcwatch.deadline.event import Gap
from cdcwatch.deadline.position import Position
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.handoff.progress import Progress
from cdcwatch.handoff.told import Told
from cdcwatch.table import canonical_key, key_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Protocol

    from cdcwatch.deadline.event import Event, EventEncoder, Stamp
    from cdcwatch.decode.change import Row
    from cdcwatch.handoff.progress import Origin, SnapshotMark
    from cdcwatch.handoff.sink import Sink
    from cdcwatch.slot.stream import SlotFacts
    from cdcwatch.table import Key, WatchedTable

    class Read(Protocol):
        """A read of the table under one snapshot."""

        mark: SnapshotMark
        time_us: int

        @property
        def stamp(self) -> Stamp:
            """Of its events."""
            ...

        def open_rows(self) -> Iterator[tuple[Key, Row]]:
            """The open orders with a deadline that comes."""
            ...

        def rows_of(self, keys: Sequence[Key]) -> Mapping[Key, Row]:
            """The rows that these orders have."""
            ...


_CHUNK_KEYS: Final = 500

_log = logging.getLogger(__name__)


class Reconciliation:
    """Its events are to be published in one piece with the progress record."""

    def __init__(self, read: Read, told: Told, table: WatchedTable, rule: DeadlineRule, encoder: EventEncoder) -> None:
        self._read, self._told, self._table = read, told, table
        self._rule, self._encoder = rule, encoder
        self.equal_count = self.stated_count = self.ended_count = 0

    def events(self, gap: Event | None = None) -> Iterator[Event]:
        """The gap first, where there is one, so that every subscriber knows why what follows comes."""
        if gap is not None:
            yield gap
        yield from self._stated()
        yield from self._ended()

    def _stated(self) -> Iterator[Event]:
        rule, told, encoder, stamp = self._rule, self._told, self._encoder, self._read.stamp
        for key, row in self._read.open_rows():
            said = told.take(str(key).encode())
            # Under another source it is another event to subscribers: told once under ours.
            known_us = said.deadline_us if said is not None and said.is_ours else None
            derived = rule.restated(known_us, row)
            if derived is None:
                self.equal_count += 1
                continue
            self.stated_count += 1
            yield encoder.snapshot(key, derived, stamp)

    def _ended(self) -> Iterator[Event]:
        """Looked up in the same snapshot: what a row is now says how its order ended."""
        rule, encoder, stamp = self._rule, self._encoder, self._read.stamp
        orders, foreign_count = self._told.left(), 0
        while chunk := list(itertools.islice(orders, _CHUNK_KEYS)):
            wanted = {key: told_us for text, told_us in chunk if (key := self._key(text)) is not None}
            foreign_count += len(chunk) - len(wanted)
            rows = self._read.rows_of(list(wanted)) if wanted else {}
            for key, told_us in wanted.items():
                self.ended_count += 1
                yield encoder.snapshot(key, rule.vanished(told_us, rows.get(key)), stamp)
        if foreign_count:
            _log.warning("%d orders of the topic have keys of another form than the table's: left alone", foreign_count)

    def _key(self, text: bytes) -> Key | None:
        """The order's key; None where it can't be one of this table's columns."""
        columns = len(self._table.key)
        try:
            decoded = text.decode()
            if columns == 1:
                return canonical_key([decoded], integer=self._table.has_integer_key)
            texts = key_texts(decoded, columns)
            return decoded if isinstance(texts, list) and len(texts) == columns else None
        except ValueError:
            return None


def publish_reconciled(
    sink: Sink,
    read: Read,
    table: WatchedTable,
    encoder: EventEncoder,
    *,
    facts: SlotFacts,
    origin: Origin,
    before: Progress | None,
    reason: str | None,
) -> Progress:
    """Publishes what the table says and the topic doesn't, and the record with which the stream goes on.

    `before`: the topic's record. `reason`: of a gap; None: nothing is missing, or the topic knows nothing yet.
    UnavailableError: to be done again; what a sink that isn't transactional holds of it by then is not told again.
    """
    known = {f"{one.database}/{one.table_name}" for one in (origin, *([before.origin] if before else [])) if one}

    def told_of(partitions: int) -> Told:
        return Told(encoder.source, known, partitions=partitions, slot_lsn=facts.confirmed_flush_lsn)

    told = sink.survey(told_of)
    if before is None and reason is None and told.has_history:
        reason = "the topic holds earlier events of the table, and no progress of this slot"
    gap = None
    if reason is not None:
        gap = Gap(reason, before.position.end_lsn if before else None, facts.confirmed_flush_lsn)
    if before is not None and gap is None:
        position, additions = before.position, before.additions + 1
    else:
        position, additions = Position(end_lsn=facts.confirmed_flush_lsn), 0
    leaves = None if table.leaves is None else tuple(sorted(leaf.attachment for leaf in table.leaves))
    mark = read.mark
    if before is None and not told.has_history:
        mark = replace(mark, visibility=mark.visibility._replace(to_first_close=True))
    progress = Progress(origin, position, mark, partitions=leaves, additions=additions)
    reconciliation = Reconciliation(read, told, table, DeadlineRule(table), encoder)
    event = None
    if gap is not None and not told.has_gap(gap):
        event = encoder.gap(gap, read.mark.lsn, read.time_us)
    sink.publish_snapshot(failpoints.passing("snapshot.scanned", reconciliation.events(event)), progress)
    failpoints.reached("snapshot.published")
    _log.info(
        "the table was read: %d open orders were news to the topic, %d it knew, %d it took for open had ended",
        reconciliation.stated_count,
        reconciliation.equal_count,
        reconciliation.ended_count,
    )
    return progress
