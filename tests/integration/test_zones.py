"""Local times against the server that reads them: gaps, overlaps, centuries, the calendar's ends (F7)."""

from __future__ import annotations

import random
from functools import cache
from typing import TYPE_CHECKING
from zoneinfo import available_timezones

import pytest
from msgspec.structs import replace
from psycopg import sql

from cdcwatch.columns import deadline_instant
from cdcwatch.database import connect
from cdcwatch.errors import ConfigurationError
from cdcwatch.instant import DAY_US, FIRST_US, INFINITY_US, LAST_US, NEGATIVE_INFINITY_US, instant_sql
from cdcwatch.slot.zones import require_zone
from cdcwatch.table import Column
from cdcwatch.zone import Zone, deadline_parser
from tests.fakes.table import WATCHED

if TYPE_CHECKING:
    from tests.services import Database

ZONES = [
    "Europe/Amsterdam",
    "America/New_York",
    "America/St_Johns",
    "Australia/Lord_Howe",  # half an hour of summer
    "Africa/Casablanca",  # summer time that pauses for Ramadan
    "Pacific/Apia",  # skipped a day
    "Asia/Tokyo",
    "America/Sao_Paulo",  # midnight was in the gap
    "Asia/Kathmandu",
    "UTC",
]
HOUR_US = 3_600_000_000


def _locals(zone: str) -> list[int]:
    """Every quarter of an hour around changes of the clock, and anything anywhere."""
    chance = random.Random(zone)
    around = [day * DAY_US + quarter * HOUR_US // 4 for day in _changes(zone) for quarter in range(-8, 32)]
    wide = [chance.randint(FIRST_US, LAST_US) for _ in range(300)]
    near = [chance.randint(-80 * 365 * DAY_US, 120 * 365 * DAY_US) for _ in range(500)]
    edges = [
        FIRST_US, FIRST_US + DAY_US - 1, FIRST_US + DAY_US, LAST_US, LAST_US - DAY_US, LAST_US - DAY_US + 1,
        INFINITY_US, NEGATIVE_INFINITY_US, 0, 1, -1,
    ]  # fmt: skip
    return around + wide + near + edges


@cache
def _changes(zone: str) -> list[int]:
    """Days since 2000 on which the offset changes: some of a century."""
    read = Zone(zone).instant_us

    def changes(first: int, days: int) -> bool:
        return read((first + days) * DAY_US) - read(first * DAY_US) != days * DAY_US

    weeks = [day for day in range(-70 * 365, 50 * 365, 7) if changes(day, 7)]
    chance = random.Random(zone)
    chosen = chance.sample(weeks, min(12, len(weeks))) + weeks[:4]
    return [next(day for day in range(week, week + 7) if changes(day, 1)) for week in chosen]


@pytest.mark.parametrize("zone", ZONES)
def test_f07_a_timestamp_means_the_instant_that_the_server_takes_it_for(database: Database, zone: str) -> None:
    table = replace(WATCHED, deadline=Column("at", "timestamp without time zone"), zone=zone)
    moments = _locals(zone)
    with connect(database.dsn, application_name="test") as connection:
        connection.execute("SET TimeZone = 'Asia/Kolkata'")
        connection.execute("CREATE TABLE moments (place int, at timestamp)")
        with connection.cursor().copy("COPY moments FROM STDIN") as copy:
            for place, us in enumerate(moments):
                copy.write_row((place, instant_sql(us).replace("+00", "")))
        rows = connection.execute(
            sql.SQL("SELECT at::text, {} FROM moments ORDER BY place").format(
                deadline_instant(table, sql.Identifier("at"))
            ),
            binary=True,
        ).fetchall()
    read, parse = Zone(zone).instant_us, deadline_parser(table)
    assert [read(us) for us in moments] == [us for _, us in rows]
    assert [parse(text) for text, _ in rows] == [us for _, us in rows]


@pytest.mark.parametrize("zone", ZONES)
def test_f07_a_date_means_the_beginning_of_its_day(database: Database, zone: str) -> None:
    table = replace(WATCHED, deadline=Column("at", "date"), zone=zone)
    chance = random.Random(zone)
    days = [chance.randint(-2_451_500, 2_145_000_000) for _ in range(200)] + list(range(-9000, 20_000, 17))
    days += [*_changes(zone), FIRST_US // DAY_US, LAST_US // DAY_US, LAST_US // DAY_US + 1]
    with connect(database.dsn, application_name="test") as connection:
        connection.execute("CREATE TABLE moments (place int, at date)")
        connection.execute(
            "INSERT INTO moments SELECT place, date '2000-01-01' + day FROM unnest(%s::int[]) WITH ORDINALITY AS d (day, place)",
            [[day for day in days if day < 2_145_000_000]],
        )
        connection.execute("INSERT INTO moments VALUES (-2, 'infinity'), (-1, '-infinity'), (0, '5874897-12-31')")
        rows = connection.execute(
            sql.SQL("SELECT at::text, {} FROM moments ORDER BY place").format(
                deadline_instant(table, sql.Identifier("at"))
            ),
            binary=True,
        ).fetchall()
    parse = deadline_parser(table)
    assert [parse(text) for text, _ in rows] == [us for _, us in rows]
    assert [us for _, us in rows[:3]] == [INFINITY_US, NEGATIVE_INFINITY_US, LAST_US]
    read = Zone(zone).instant_us
    assert [read(day * DAY_US) for day in days] == [us for _, us in rows[3:]]


def test_every_zone_that_both_know_is_the_same_to_both_or_refused(database: Database) -> None:
    """A name that the server takes for an abbreviation, CET, has no summer time there."""
    known = sorted(available_timezones())
    refused, agreeing = [], set()
    with connect(database.dsn, application_name="test") as connection:
        names = connection.execute("SELECT name FROM pg_timezone_names WHERE name = ANY (%s)", [known])
        for (name,) in names.fetchall():
            try:
                require_zone(connection, name)
            except ConfigurationError as error:
                refused.append((name, "abbreviation" in str(error)))
            else:
                agreeing.add(name)
        rows = connection.execute(
            "SELECT name, (extract(epoch FROM local - timestamp '2000-01-01') * 1000000)::int8, local AT TIME ZONE name"
            " FROM unnest(%s::text[]) AS name,"
            " generate_series(timestamp '2025-01-01', '2027-01-01', '37 hours') AS local",
            [sorted(agreeing)],
            binary=True,
        ).fetchall()
    zones = {name: Zone(name) for name in agreeing}
    assert len(zones) > 400
    assert [(name, local) for name, local, us in rows if zones[name].instant_us(local) != us] == []
    assert set(refused) <= {(name, True) for name in ("CET", "EET", "MET", "WET")}
    assert "Europe/Amsterdam" in agreeing
    assert "UTC" in agreeing


def test_a_zone_that_the_server_does_not_know_is_refused(database: Database) -> None:
    with connect(database.dsn, application_name="test") as connection:
        with pytest.raises(ConfigurationError) as caught:
            require_zone(connection, "Atlantis/Capital")
        assert "pg_timezone_names" in caught.value.remedy
