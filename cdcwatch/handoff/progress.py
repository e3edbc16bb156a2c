"""The progress record: how far the sink holds one slot's stream, written with the events it speaks of. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import orjson
from msgspec import Struct
from msgspec.structs import replace

from cdcwatch.deadline.position import Position, SnapshotVisibility
from cdcwatch.lsn import format_lsn, parse_lsn
from cdcwatch.table import NO_PUBLICATION, Attachment, PublicationStamp


class TableMark(NamedTuple):
    """A watched table, as it was when progress was noted."""

    oid: int = 0
    """0 in records of versions that didn't note it."""
    name: str = ""
    """`schema.name`."""
    publication: PublicationStamp = NO_PUBLICATION
    """Empty where there is none, and in records of versions that didn't note it."""


class Origin(Struct, frozen=True):
    """Which stream: IDENTIFY_SYSTEM's answer and the slot."""

    system_identifier: str
    timeline: int
    database: str
    slot: str
    table_oid: int = 0
    table_name: str = ""
    publication: PublicationStamp = NO_PUBLICATION
    """As of a TableMark: of the watched table, of several the first."""
    further: tuple[TableMark, ...] = ()
    """Of several tables the others."""

    @property
    def tables(self) -> tuple[TableMark, ...]:
        """All of them."""
        return (TableMark(self.table_oid, self.table_name, self.publication), *self.further)


class SnapshotMark(Struct, frozen=True):
    """A read of the table whose events are in the sink."""

    lsn: int
    """Every transaction that the read shows commits before this LSN."""
    visibility: SnapshotVisibility
    tells_all: bool = False
    """The stream tells what the read has shown, too: it has come to the first close among that."""

    @property
    def skipped(self) -> SnapshotVisibility | None:
        """The transactions that the stream passes over."""
        return None if self.tells_all else self.visibility


class Progress(Struct, frozen=True):
    """Events through `position` are in the sink."""

    origin: Origin
    position: Position
    snapshot: SnapshotMark | None = None
    """Kept until the slot has passed it: until then the stream still holds transactions that the read has shown."""
    gap: str | None = None
    """Why events may be missing before `position`, found out after it was reached; None when none are known to be."""
    partitions: tuple[Attachment, ...] | None = None
    """The partitions whose orders the topic knows; None where the table has none."""
    additions: int = 0
    """How often orders were added that the stream did not tell: two records at one position differ in this."""
    further_partitions: tuple[tuple[Attachment, ...] | None, ...] = ()
    """As `partitions`, of the tables after the first."""

    def under(self, origin: Origin) -> Progress:
        """The same progress as another start has its tables: in another order, or without some of them."""
        if not (self.origin.further or origin.further):
            return replace(self, origin=origin)
        known = dict(zip((table.oid for table in self.origin.tables), self.each_partitions, strict=False))
        first, *further = (known.get(table.oid) for table in origin.tables)
        return replace(self, origin=origin, partitions=first, further_partitions=tuple(further))

    @property
    def each_partitions(self) -> tuple[tuple[Attachment, ...] | None, ...]:
        """`partitions` of every table."""
        missing = len(self.origin.further) - len(self.further_partitions)
        return (self.partitions, *self.further_partitions, *([None] * missing))

    def to_json(self) -> bytes:
        """The record's value."""
        mark = self.snapshot
        additional: dict[str, Any] = {}
        if self.partitions is not None:
            additional = {
                "partitions": [partition.oid for partition in self.partitions],
                "attached": [partition.stamp for partition in self.partitions],
                "additions": self.additions,
            }
        if self.origin.publication.publication:
            additional["publication"] = self.origin.publication[:2]
        if self.origin.further:
            further = zip(self.origin.further, self.each_partitions[1:], strict=True)
            additional |= {"additions": self.additions, "further_tables": [_table_json(*one) for one in further]}
        return orjson.dumps(
            {
                **additional,
                "system_identifier": self.origin.system_identifier,
                "timeline": self.origin.timeline,
                "database": self.origin.database,
                "slot": self.origin.slot,
                "table_oid": self.origin.table_oid,
                "table_name": self.origin.table_name,
                "end_lsn": format_lsn(self.position.end_lsn),
                "commit_lsn": format_lsn(self.position.commit_lsn),
                "ordinal": self.position.ordinal,
                "gap": self.gap,
                "snapshot": None
                if mark is None
                else {
                    "lsn": format_lsn(mark.lsn),
                    "xmin": str(mark.visibility.xmin),
                    "xmax": str(mark.visibility.xmax),
                    "in_progress": [str(xid) for xid in sorted(mark.visibility.in_progress)],
                    "to_first_close": mark.visibility.to_first_close,
                    "tells_all": mark.tells_all,
                    **({} if mark.visibility.only_tables is None else {"tables": sorted(mark.visibility.only_tables)}),
                },
            }
        )

    @classmethod
    def from_json(cls, value: bytes) -> Progress:
        """The inverse. ValueError or KeyError when it isn't such a record."""
        record = orjson.loads(value)
        mark, further = record["snapshot"], record.get("further_tables", ())
        return cls(
            Origin(
                record["system_identifier"],
                record["timeline"],
                record["database"],
                record["slot"],
                record.get("table_oid", 0),
                record.get("table_name", ""),
                PublicationStamp(*record.get("publication", ())),
                tuple(TableMark(one["oid"], one["name"], PublicationStamp(*one["publication"])) for one in further),
            ),
            Position(parse_lsn(record["end_lsn"]), parse_lsn(record["commit_lsn"]), record["ordinal"]),
            None
            if mark is None
            else SnapshotMark(
                parse_lsn(mark["lsn"]),
                SnapshotVisibility(
                    int(mark["xmin"]),
                    int(mark["xmax"]),
                    frozenset(int(xid) for xid in mark["in_progress"]),
                    mark.get("to_first_close", False),
                    frozenset(mark["tables"]) if "tables" in mark else None,
                ),
                mark.get("tells_all", False),
            ),
            record.get("gap"),
            _partitions(record),
            record.get("additions", 0),
            tuple(_partitions(one) for one in further),
        )

    def covers(self, other: Progress) -> bool:
        """Whether the sink that holds this one holds what `other` stands behind."""
        return other._order <= self._order

    @property
    def _order(self) -> tuple[Position, int, bool]:
        """Records follow each other in this order, some at one position."""
        return self.position, self.additions, self.gap is not None


def _table_json(table: TableMark, partitions: tuple[Attachment, ...] | None) -> dict[str, Any]:
    known: dict[str, Any] = {}
    if partitions is not None:
        known = {"partitions": [one.oid for one in partitions], "attached": [one.stamp for one in partitions]}
    return {"oid": table.oid, "name": table.name, "publication": table.publication[:2], **known}


def _partitions(record: dict[str, Any]) -> tuple[Attachment, ...] | None:
    oids = record.get("partitions")
    if oids is None:
        return None
    # Without stamps in records of versions that didn't note them.
    return tuple(map(Attachment, oids, record.get("attached") or [""] * len(oids)))
