"""Deadlines without time zone: allowed with a `table.time_zone` that the server knows, as we do.

https://www.postgresql.org/docs/current/datatype-datetime.html#DATATYPE-TIMEZONES
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg

from cdcwatch.errors import ConfigurationError, PreconditionError
from cdcwatch.instant import format_instant, parse_date
from cdcwatch.queries import query
from cdcwatch.zone import Zone

if TYPE_CHECKING:
    from cdcwatch.table import WatchedTable

COMPARED_YEARS: Final = 10
_WINTER_AND_SUMMER_US: Final = (parse_date("2025-01-15"), parse_date("2025-07-15"))


def require_instants(table: str, column: str, type_name: str, time_kind: str, zone: str) -> None:
    """PreconditionError unless the deadline says which instant it is. Names as SQL writes them."""
    if time_kind == "timestamptz" or (time_kind and zone):
        return
    mend = (
        f"ALTER TABLE {table} ALTER COLUMN {column} TYPE timestamptz (rewrites the table),"
        " or name another column in table.deadline"
    )
    if time_kind:
        mend = (
            'say in table.time_zone which zone\'s clocks it goes by ("Europe/Amsterdam"; "UTC" when the application'
            f" stores UTC; a wrong zone closes hours early or late), or {mend}"
        )
    raise PreconditionError(
        f"column {column} of {table} is {type_name}: a deadline must be a timestamptz,"
        " or a timestamp or date with table.time_zone",
        remedy=mend,
    )


def require_zone(connection: psycopg.Connection[Any], zone: str) -> None:
    """ConfigurationError unless the server knows the zone, and not as an abbreviation: its CET has no summer.

    https://www.postgresql.org/docs/current/datetime-config-files.html
    """
    try:
        row = connection.execute(query("preflight", "time_zone"), {"zone": zone}).fetchone()
    except psycopg.errors.InvalidParameterValue:
        raise ConfigurationError(
            f"table.time_zone {zone!r} is no time zone that the server knows",
            remedy="choose one of: SELECT name FROM pg_timezone_names",
        ) from None
    offset_us = row[1] if row else None
    if offset_us is None:
        return
    instant_us = Zone(zone).instant_us
    if any(instant_us(local_us) != local_us - offset_us for local_us in _WINTER_AND_SUMMER_US):
        raise ConfigurationError(
            f"table.time_zone {zone!r} is an abbreviation to the server, the same offset all year",
            remedy="name the zone by a city, as Europe/Amsterdam",
        )


def first_disagreement(connection: psycopg.Connection[Any], table: WatchedTable) -> str | None:
    """The first local time of the years to come that the server's zone data and ours read differently; else None."""
    if not table.zone:
        return None
    instant_us = Zone(table.zone).instant_us
    wanted = {"zone": table.zone, "years": COMPARED_YEARS}
    for local_us, server_us in connection.execute(query("preflight", "zone_samples"), wanted, binary=True):
        if instant_us(local_us) != server_us:
            return format_instant(local_us).removesuffix("Z")
    return None
