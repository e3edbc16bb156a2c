"""Whether `run` would stop at a gap: by its own rule, over what slot, topic and server say now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdcwatch.errors import CdcwatchError, PreconditionError
from cdcwatch.handoff.bus import bus_of
from cdcwatch.handoff.progress import Origin, TableMark
from cdcwatch.pipeline.beginning import require_no_gap
from cdcwatch.pipeline.inquiry import Inquiry
from cdcwatch.slot.check import Check
from cdcwatch.slot.stream import ReplicationConnection

if TYPE_CHECKING:
    from cdcwatch.settings import Settings

_NAME: Final = "gap"
_APPLICATION: Final = "cdcwatch check"


def find_gap(settings: Settings) -> PreconditionError | None:
    """The gap at which `run` would stop; None where it would not, or has published nothing yet.

    Errors of the database, the slot (missing, lost, another database's) and the broker.
    """
    connection = ReplicationConnection(settings.postgres.for_replication(), application_name=_APPLICATION)
    try:
        facts = connection.facts(settings.slot.name)
    finally:
        connection.close()
    bus = bus_of(settings)
    if bus is None:
        return None
    # After the slot: the topic's progress is never behind what was confirmed before. Before the server's end.
    progress, inquiry = bus.progress(), Inquiry(settings)
    found = inquiry.surroundings()
    first, *further = (TableMark(table.oid, table.qualified_name, table.publication) for table in found.tables)
    stream = (facts.system_identifier, facts.timeline, facts.database, settings.slot.name)
    origin = Origin(*stream, *first, tuple(further))
    try:
        require_no_gap(facts, progress, origin, server_lsn=found.current_lsn)
    except PreconditionError as error:
        return error
    return None


def gap_check(settings: Settings) -> Check | None:
    """None where another check says why `run` doesn't start."""
    if settings.sink.kind == "none":
        return None
    try:
        gap = find_gap(settings)
    except CdcwatchError:
        return None
    if gap is not None:
        return Check(_NAME, "fail", f"run stops: {gap}", gap.remedy)
    return Check(_NAME, "ok", "the slot holds what follows the topic's events")
