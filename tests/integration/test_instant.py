"""Instants against the server that wrote them: the same integers, the same order (F1, F2)."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from cdcwatch.database import Instant, connect, register_instants
from cdcwatch.instant import INFINITY_US, NEGATIVE_INFINITY_US, instant_sql, parse_instant

if TYPE_CHECKING:
    from tests.services import Database

FIRST_US, LAST_US = -211_813_488_000_000_000, 9_223_371_331_199_999_999


def _instants() -> list[int]:
    chance = random.Random(7)
    wide = [chance.randint(FIRST_US, LAST_US) for _ in range(300)]
    near = [chance.randint(-(10**17), 10**17) for _ in range(300)]
    seconds = [chance.randint(-(10**10), 10**10) * 1_000_000 for _ in range(300)]
    edges = [FIRST_US, LAST_US, INFINITY_US, NEGATIVE_INFINITY_US, 0, 1, -1, 86_400_000_000, -86_400_000_001]
    return wide + near + seconds + edges


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/St_Johns", "Europe/Amsterdam"])
def test_the_servers_text_means_the_servers_integer_and_sorts_alike(database: Database, zone: str) -> None:
    instants = _instants()
    with database.connect(options=f"-c DateStyle=ISO -c TimeZone={zone}") as connection:
        connection.execute("CREATE TABLE moments (at timestamptz)")
        with connection.cursor().copy("COPY moments FROM STDIN") as copy:
            for us in instants:
                copy.write_row((instant_sql(us),))
        rows = connection.execute("SELECT at::text, timestamptz_send(at) FROM moments ORDER BY moments.at").fetchall()
    assert [int.from_bytes(sent, "big", signed=True) for _, sent in rows] == sorted(instants)
    assert [parse_instant(text) for text, _ in rows] == sorted(instants)


@pytest.mark.parametrize(("binary", "style"), [(True, "ISO"), (False, "ISO"), (True, "SQL, DMY"), (True, "German")])
def test_parameters_and_results_are_integers(database: Database, binary: bool, style: str) -> None:
    with connect(database.dsn, application_name="test") as connection:
        register_instants(connection)
        connection.execute(f"SET DateStyle = '{style}'".encode())
        connection.execute("SET TimeZone = 'Asia/Kolkata'")
        for us in _instants():
            row = connection.execute("SELECT %s::timestamptz", [Instant(us)], binary=binary).fetchone()
            assert row == (us,)
