"""Every precondition of database and broker, as far as both can be reached."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdcwatch.database import connect
from cdcwatch.errors import CdcwatchError
from cdcwatch.handoff.bus import bus_of
from cdcwatch.inspection.also import also_check
from cdcwatch.inspection.changes import options_of
from cdcwatch.inspection.gap import gap_check
from cdcwatch.inspection.outside import claim_checks
from cdcwatch.slot.check import Check, failed
from cdcwatch.slot.preflight import preflight

if TYPE_CHECKING:
    from cdcwatch.settings import Settings


_OF_THE_STREAM: Final = frozenset(
    {
        "replication",
        "wal_level",
        "slots",
        "walsenders",
        "role",
        "plugin",
        "identity",
        "publication",
        "slot",
        "retention",
        "idle_limit",
        "failover",
        "transactions",
        "gap",
    }
)
"""What only who reads the slot needs."""


def all_checks(settings: Settings, role: str = "all") -> tuple[list[Check], CdcwatchError | None]:
    """Database, then broker. The error with which the database could not be asked at all, where it could not.

    `role`: of what `run --role` needs.
    """
    if role == "read":
        settings = settings.without_closes()
    checks, error = _database_checks(settings)
    if role in {"close", "sweep"}:
        checks = [one for one in checks if one.name not in _OF_THE_STREAM]
    if role == "sweep":
        return checks, error
    if settings.sink.kind == "none":
        return [*checks, _no_sink(role)], error
    return [*checks, *broker_checks(settings, hears=role == "close")], error


def _no_sink(role: str) -> Check:
    message = 'sink.kind = "none": no events are published'
    if role == "close":
        return Check(
            "sink", "fail", f"{message}, which --role close hears of orders by", 'set sink.kind to "kafka" or "redis"'
        )
    return Check("sink", "ok", message)


def _database_checks(settings: Settings) -> tuple[list[Check], CdcwatchError | None]:
    error = None
    try:
        with connect(settings.postgres.dsn, application_name="cdcwatch check") as connection:
            checks = preflight(connection, settings, options_of(settings))
            for one in settings.each():
                checks += [*claim_checks(connection, one), *filter(None, [also_check(connection, one)])]
        gap = gap_check(settings)
        checks += [gap] if gap is not None else []
    except CdcwatchError as caught:
        error, checks = caught, [failed("database", caught)]
    return checks, error


def broker_checks(settings: Settings, *, hears: bool = False) -> list[Check]:
    """Of the sink alone; none where there is none. `hears`: as `--role close` needs it."""
    bus = bus_of(settings)
    return [] if bus is None else bus.checks(hears=hears)
