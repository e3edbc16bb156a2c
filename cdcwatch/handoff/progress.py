"""The progress record: how far the sink holds one slot's stream, written with the events it speaks of. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson

from cdcwatch.deadline.position import Position, SnapshotVisibility
from cdcwatch.lsn import format_lsn, parse_lsn
from cdcwatch.table import NO_PUBLICATION, Attachment, PublicationStamp


@dataclass(frozen=True, slots=True)
class Origin:
    """Which stream: IDENTIFY_SYSTEM's answer and the slot."""

    system_identifier: str
    timeline: int
    database: str
    slot: str
    table_oid: int = 0
    """Of the watched table; 0 in records of versions that didn't note it."""
    table_name: str = ""
    """As it was called then, `schema.name`."""
    publication: PublicationStamp = NO_PUBLICATION
    """Of the publication then; empty where there is none, and in records of versions that didn't note it."""


@dataclass(frozen=True, slots=True)
class SnapshotMark:
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


@dataclass(frozen=True, slots=True)
class Progress:
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
                },
            }
        )

    @classmethod
    def from_json(cls, value: bytes) -> Progress:
        """The inverse. ValueError or KeyError when it isn't such a record."""
        record = orjson.loads(value)
        mark = record["snapshot"]
        return cls(
            Origin(
                record["system_identifier"],
                record["timeline"],
                record["database"],
                record["slot"],
                record.get("table_oid", 0),
                record.get("table_name", ""),
                PublicationStamp(*record.get("publication", ())),
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
                ),
                mark.get("tells_all", False),
            ),
            record.get("gap"),
            _partitions(record),
            record.get("additions", 0),
        )

    def covers(self, other: Progress) -> bool:
        """Whether the sink that holds this one holds what `other` stands behind."""
        return other._order <= self._order

    @property
    def _order(self) -> tuple[Position, int, bool]:
        """Records follow each other in this order, some at one position."""
        return self.position, self.additions, self.gap is not None


def _partitions(record: dict[str, Any]) -> tuple[Attachment, ...] | None:
    oids = record.get("partitions")
    if oids is None:
        return None
    # Without stamps in records of versions that didn't note them.
    return tuple(map(Attachment, oids, record.get("attached") or [""] * len(oids)))
