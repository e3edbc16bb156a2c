"""Where a process begins: after what the sink holds of the slot's stream, or with a read of the table."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from cdcwatch.deadline.position import Position
from cdcwatch.errors import CdcwatchError, PreconditionError
from cdcwatch.log import told_of
from cdcwatch.lsn import format_lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cdcwatch.handoff.progress import Origin, Progress, TableMark
    from cdcwatch.slot.stream import SlotFacts

REMEDY: Final = (
    "cdcwatch run --accept-gap reads the table again and publishes what the topic lacks as snapshot events;"
    " cdcwatch recover does the same and ends"
)

_log = logging.getLogger(__name__)


class StartOverError(CdcwatchError):
    """What this process has in memory no longer holds: another one had the slot meanwhile, or a column was renamed.

    Nothing is wrong: begin anew, as a standby if it still has the slot.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason, remedy="nothing: it is begun anew by itself")


class StoppedError(CdcwatchError):
    """The process is to end, and nothing was begun."""

    def __init__(self) -> None:
        super().__init__("stopped before it began", remedy="start again")


def where_to_begin(
    progress: Progress | None,
    facts: SlotFacts,
    origin: Origin,
    *,
    is_exact: bool,
    accept_gap: bool,
    server_lsn: Callable[[], int],
    publish_snapshot: Callable[[Progress | None, str | None], Progress],
    reads_again: bool = False,
) -> Progress:
    """What the stream is to be taken for read through, and its snapshot mark.

    `progress` is what the sink's record says, `is_exact` whether that record is written in one piece with its events.
    PreconditionError when events may be missing, unless `accept_gap`; then, as at a first start and where `reads_again`
    says so, the table is read: `publish_snapshot` gets the record and the reason of the gap, if there is one.
    """
    gap = None
    try:
        # Asked after the record was read: the process before us may have written it a moment ago.
        require_no_gap(facts, progress, origin, server_lsn=server_lsn() if progress else 0)
    except PreconditionError as error:
        if not accept_gap:
            raise
        _log.warning("gap accepted: %s", error, extra=told_of(error, lsn=facts.confirmed_flush_lsn))
        gap = str(error)
    added = [] if progress is None else added_tables(progress.origin, origin)
    if added:
        names = ", ".join(table.name for table in added)
        _log.info("%s: new to the slot; read, and compared with what its topic holds", names)
    if progress is None or gap is not None or reads_again or added:
        progress = publish_snapshot(progress, gap)
    progress = progress.under(origin)
    if is_exact:
        return progress
    # The topic may hold less than the record says where progress and events are not one piece.
    return replace(progress, position=Position(end_lsn=facts.confirmed_flush_lsn))


def added_tables(before: Origin, now: Origin) -> list[TableMark]:
    """The tables of which the slot's progress knows nothing, where it knows of others or they come with others."""
    if not (before.further or now.further):
        return []
    known = {table.oid for table in before.tables}
    return [table for table in now.tables if table.oid not in known]


def require_no_gap(facts: SlotFacts, progress: Progress | None, origin: Origin, *, server_lsn: int) -> None:
    """PreconditionError when the slot no longer holds what comes after our events.

    `server_lsn`: where the server's WAL ends.

    Nothing is confirmed before the progress record says so: a slot that stands beyond it was made anew or moved.
    """
    if progress is None:
        return
    remedy = REMEDY
    if progress.gap is not None:
        raise PreconditionError(
            f"events may be missing, for the stream was interrupted when this was found: {progress.gap}", remedy=remedy
        )
    if progress.origin.system_identifier != origin.system_identifier:
        raise PreconditionError("the topic's progress is of another database system", remedy=remedy)
    if progress.origin.timeline != origin.timeline and not descends_from(facts, progress):
        raise PreconditionError(
            f"the topic's progress is of timeline {progress.origin.timeline}, and the server is on {origin.timeline}:"
            " it was promoted or restored, and may lack what the topic holds",
            remedy=remedy,
        )
    for before, now in _counterparts(progress.origin, origin):
        _require_same(before, now, told_by_oid=facts.plugin == "pgoutput")
    if progress.position.end_lsn > server_lsn:
        raise PreconditionError(
            f"the topic holds events up to {format_lsn(progress.position.end_lsn)}, and the server's WAL ends at"
            f" {format_lsn(server_lsn)}: it was restored from an older copy",
            remedy=remedy,
        )
    if facts.confirmed_flush_lsn > progress.position.end_lsn:
        raise PreconditionError(
            f"the slot stands at {format_lsn(facts.confirmed_flush_lsn)}, beyond the last event in the topic"
            f" ({format_lsn(progress.position.end_lsn)}): changes between the two are lost to it",
            remedy=remedy,
        )


def _counterparts(before: Origin, now: Origin) -> Iterator[tuple[TableMark, TableMark]]:
    """A table, and what the record holds in its place: of several the same one, or another one of its name."""
    if not (before.further or now.further):
        yield before.tables[0], now.tables[0]
        return
    by_oid = {table.oid: table for table in before.tables if table.oid}
    by_name = {table.name: table for table in before.tables if table.name}
    for table in now.tables:
        found = by_oid.get(table.oid) or by_name.get(table.name)
        if found is not None:
            yield found, table


def _require_same(before: TableMark, now: TableMark, *, told_by_oid: bool) -> None:
    if before.oid and now.oid and before.oid != now.oid:
        raise PreconditionError(
            f"the topic's progress is of another table than {now.name}: that one was called"
            f" {before.name}, and was dropped or renamed, or table.name was changed",
            remedy=REMEDY,
        )
    if before.name and before.name != now.name and not told_by_oid:
        raise PreconditionError(
            f"{before.name} is now called {now.name}: wal2json tells changes by name, and what the slot"
            " holds of the old one would be passed over",
            remedy=REMEDY,
        )
    if (
        before.publication.publication
        and now.publication.publication
        and before.publication.was_altered(now.publication)
    ):
        raise PreconditionError(
            f"the publication of {now.name} was altered, or is another one, since the topic's progress was"
            " noted: changes may have been left out",
            remedy=f"mend what `cdcwatch check` tells of it, then {REMEDY}",
        )


def descends_from(facts: SlotFacts, progress: Progress) -> bool:
    """Whether the server's timeline holds all that the topic tells: it left the record's at or after that position.

    A standby that was promoted with all of it, and with the slot, goes on as the old primary would have.
    https://www.postgresql.org/docs/current/protocol-replication.html#PROTOCOL-REPLICATION-TIMELINE-HISTORY
    """
    left_lsn = dict(facts.ancestry).get(progress.origin.timeline)
    if left_lsn is None:
        return False
    position, mark = progress.position, progress.snapshot
    # A transaction that the topic holds a part of begins its commit record before that: records are whole.
    reached = [position.end_lsn, position.commit_lsn + 1 if position.commit_lsn else 0, mark.lsn if mark else 0]
    return max(reached) <= left_lsn
