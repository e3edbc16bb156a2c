"""The table's open orders against what the topic says: only where the two differ there is an event.

What is open in the table and not in the topic, or with another deadline, is scheduled or moved; what is open in the
topic and not in the table has expired or is cancelled, by the row it has now. Equal ones are not told again.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from cdcwatch import failpoints
from cdcwatch.deadline.event import Gap
from cdcwatch.deadline.position import Position
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.handoff.progress import Progress
from cdcwatch.handoff.told import Told
from cdcwatch.lsn import format_lsn
from cdcwatch.table import canonical_key, key_texts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Protocol

    from cdcwatch.deadline.event import Event, EventEncoder, Stamp
    from cdcwatch.decode.change import Row
    from cdcwatch.handoff.progress import Origin, SnapshotMark
    from cdcwatch.handoff.sink import Sink
    from cdcwatch.slot.stream import SlotFacts
    from cdcwatch.table import Attachment, Key, WatchedTable

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


class TableRead(NamedTuple):
    """A table, its events, and a read of it."""

    read: Read
    table: WatchedTable
    encoder: EventEncoder
    topic: str = ""
    """As of `Event`."""


def publish_reconciled(
    sink: Sink,
    reads: Sequence[TableRead],
    *,
    facts: SlotFacts,
    origin: Origin,
    before: Progress | None,
    reason: str | None,
) -> Progress:
    """Publishes what the tables say and their topics don't, and the record with which the stream goes on.

    `reads`: of one moment, of every table of `origin`; or, where nothing is missing, of those that are new to `before`.
    `before`: the topic's record. `reason`: of a gap; None: nothing is missing, or the topic knows nothing yet.
    UnavailableError: to be done again; what a sink that isn't transactional holds of it by then is not told again.
    """
    told = [_told(sink, one, facts, origin, before) for one in reads]
    has_history = any(one.has_history for one in told)
    if before is None and reason is None and has_history:
        reason = "the topic holds earlier events of the table, and no progress of this slot"
        _log.warning("%s: told to its subscribers as a gap, and the table is read", reason)
    progress = _progress(reads, facts, origin, before, is_gap=reason is not None, has_history=has_history)
    reconciliations = [
        Reconciliation(one.read, known, one.table, DeadlineRule(one.table), one.encoder)
        for one, known in zip(reads, told, strict=True)
    ]
    events = [
        reconciliation.events(_gap_event(one, known, facts, before, reason))
        for one, known, reconciliation in zip(reads, told, reconciliations, strict=True)
    ]
    sink.publish_snapshot(failpoints.passing("snapshot.scanned", itertools.chain.from_iterable(events)), progress)
    failpoints.reached("snapshot.published")
    for one, reconciliation in zip(reads, reconciliations, strict=True):
        _log.info(
            "%s was read: %d open orders were news to the topic, %d it knew, %d it took for open had ended",
            one.table.qualified_name if origin.further else "the table",
            reconciliation.stated_count,
            reconciliation.equal_count,
            reconciliation.ended_count,
            extra={"table": one.table.qualified_name, "lsn": format_lsn(one.read.mark.lsn)},
        )
    return progress


def _told(sink: Sink, one: TableRead, facts: SlotFacts, origin: Origin, before: Progress | None) -> Told:
    """What the table's topic says, under each name that the table had."""
    names = {one.table.qualified_name}
    if before is not None:
        # Of the only one, whatever it was called then; of several it is told apart by its OID.
        alone = not (origin.further or before.origin.further)
        names |= {table.name for table in before.origin.tables if alone or table.oid == one.table.oid}
    databases = {origin.database, *([before.origin.database] if before else [])}
    known = {f"{database}/{name}" for database in databases for name in names}

    def made(partitions: int) -> Told:
        return Told(one.encoder.source, known, partitions=partitions, slot_lsn=facts.confirmed_flush_lsn)

    return sink.survey(made, one.topic)


def _gap_event(
    one: TableRead, told: Told, facts: SlotFacts, before: Progress | None, reason: str | None
) -> Event | None:
    gap = None
    if reason is not None:
        gap = Gap(reason, before.position.end_lsn if before else None, facts.confirmed_flush_lsn)
    elif before is not None and told.has_history and all(one.table.oid != table.oid for table in before.origin.tables):
        gap = Gap(f"{one.table.qualified_name} was not watched by this slot meanwhile", None, one.read.mark.lsn)
    if gap is None or told.has_gap(gap):
        return None
    return one.encoder.gap(gap, one.read.mark.lsn, one.read.time_us)


def _progress(
    reads: Sequence[TableRead],
    facts: SlotFacts,
    origin: Origin,
    before: Progress | None,
    *,
    is_gap: bool,
    has_history: bool,
) -> Progress:
    """The record after the read."""
    mark = reads[0].read.mark
    if not has_history:
        is_first = before is None or len(reads) < len(origin.tables)
        mark = replace(mark, visibility=mark.visibility._replace(to_first_close=is_first))
    if len(reads) < len(origin.tables):
        only = frozenset(one.table.oid for one in reads)
        mark = replace(mark, visibility=mark.visibility._replace(only_tables=only))
    if before is not None and not is_gap:
        base = replace(before.under(origin), snapshot=mark, additions=before.additions + 1)
    else:
        base = Progress(origin, Position(end_lsn=facts.confirmed_flush_lsn), mark)
    leaves = {one.table.oid: _attachments(one.table) for one in reads}
    known = (leaves.get(table.oid, of) for table, of in zip(origin.tables, base.each_partitions, strict=True))
    first, *further = known
    return replace(base, partitions=first, further_partitions=tuple(further))


def _attachments(table: WatchedTable) -> tuple[Attachment, ...] | None:
    return None if table.leaves is None else tuple(sorted(leaf.attachment for leaf in table.leaves))
