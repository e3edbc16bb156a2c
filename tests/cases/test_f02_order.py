"""F2: what is due next in memory is what the server's ORDER BY has next, over all of its calendar."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cdcwatch.database import connect
from cdcwatch.deadline.schedule import Schedule
from cdcwatch.instant import FIRST_US, INFINITY_US, LAST_US, NEGATIVE_INFINITY_US, instant_sql
from tests import services

if TYPE_CHECKING:
    from collections.abc import Iterator

    import psycopg

    from tests.services import Postgres

edges = st.sampled_from([FIRST_US, LAST_US, INFINITY_US, NEGATIVE_INFINITY_US, 0, 1, -1])
instants = edges | st.integers(FIRST_US, LAST_US) | st.integers(-(10**9), 10**9)


@pytest.fixture(scope="module")
def connection(postgres: Postgres) -> Iterator[psycopg.Connection[tuple[int, ...]]]:
    with services.fresh_database(postgres) as database, connect(database.dsn, application_name="test") as connection:
        connection.execute("CREATE TABLE moments (key int, at timestamptz)")
        yield connection


@given(deadlines=st.lists(instants, min_size=1, max_size=60), coarse_before_us=instants)
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_f02_the_heap_has_the_servers_order(
    connection: psycopg.Connection[tuple[int, ...]], deadlines: list[int], coarse_before_us: int
) -> None:
    connection.execute("TRUNCATE moments")
    with connection.cursor().copy("COPY moments FROM STDIN") as copy:
        for row in enumerate(map(instant_sql, deadlines)):
            copy.write_row(row)
    rows = connection.execute("SELECT key, at FROM moments ORDER BY at, key", binary=True).fetchall()
    schedule = Schedule(window_end_us=INFINITY_US, coarse_before_us=coarse_before_us)
    for key, us in enumerate(deadlines):
        schedule.put(key, us, 0)
    popped = [(due.key, due.deadline_us) for due in schedule.pop_due(LAST_US, len(deadlines))]
    assert popped == [row for row in rows if row[1] != INFINITY_US]  # what never comes is not held
    assert len(schedule) == 0
