"""Every precondition of database and broker, as far as both can be reached."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcwatch.database import connect
from cdcwatch.errors import CdcwatchError
from cdcwatch.inspection.changes import options_of
from cdcwatch.inspection.gap import gap_check
from cdcwatch.inspection.outside import claim_checks
from cdcwatch.slot.check import Check, failed
from cdcwatch.slot.preflight import preflight

if TYPE_CHECKING:
    from cdcwatch.settings import Settings


def all_checks(settings: Settings) -> tuple[list[Check], CdcwatchError | None]:
    """Database, then broker. The error with which the database could not be asked at all, where it could not."""
    error = None
    try:
        with connect(settings.postgres.dsn, application_name="cdcwatch check") as connection:
            checks = preflight(connection, settings, options_of(settings))
            checks += claim_checks(connection, settings)
        gap = gap_check(settings)
        checks += [gap] if gap is not None else []
    except CdcwatchError as caught:
        error, checks = caught, [failed("database", caught)]
    return [*checks, *broker_checks(settings)], error


def broker_checks(settings: Settings) -> list[Check]:
    """Of the sink alone; none where it isn't Kafka."""
    if settings.sink.kind != "kafka":
        return []
    from cdcwatch.handoff.preflight import broker_checks as ask  # noqa: PLC0415  librdkafka only where it is used

    return ask(settings)
