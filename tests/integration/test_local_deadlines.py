"""Deadlines of type timestamp and date on a real PostgreSQL: the window, the close, the commands, the service (F7)."""

from __future__ import annotations

import json
import re

import pytest

from cdcwatch.close.outcome import Outcome
from cdcwatch.database import Instant
from cdcwatch.deadline.schedule import Due
from cdcwatch.instant import NEGATIVE_INFINITY_US
from tests.command import cdcwatch, write_configuration
from tests.orders import Orders
from tests.slots import QUIET


@pytest.fixture
def orders_of(database):
    """Makes the table and its connected `Table`; closes both."""
    made = []

    def make(kind, zone, **table):
        orders = Orders(database, deadline_type=kind, zone=zone)
        opened = orders.open_table(**table)
        made.append((orders, opened))
        return orders, opened

    yield make
    for orders, opened in made:
        opened.disconnect()
        orders.connection.close()


@pytest.mark.parametrize("kind", ["timestamp without time zone", "date"])
def test_the_window_of_local_times_is_read_by_the_index_too(orders_of, kind):
    orders, table = orders_of(kind, "Europe/Amsterdam")
    orders.connection.execute(
        "CREATE INDEX deadlines ON orders (expires_at) WHERE status = 'pending';"
        " INSERT INTO orders (id, status, expires_at, version)"
        " SELECT id, 'pending', localtimestamp + id * interval '1 hour', 0 FROM generate_series(1, 20000) AS id;"
        " ANALYZE orders"
    )
    now_us = table.sample_clock(1)[0].database_us
    bounds = {"after": Instant(now_us), "through": Instant(now_us + 3_600_000_000), "page": Instant(now_us)}
    for statement in (table._statements.first_page, table._statements.next_page):
        plan = table._connection.execute("EXPLAIN (ANALYZE, FORMAT TEXT) " + statement, bounds).fetchall()
        text = "\n".join(line for (line,) in plan)
        assert "Index Scan using deadlines" in text
        assert "Sort" not in text
        removed = re.search(r"Rows Removed by Filter: (\d+)", text)
        assert int(removed[1]) < 100  # two days of room, of 833


@pytest.mark.parametrize("kind", ["timestamp without time zone", "date"])
@pytest.mark.parametrize("zone", ["Europe/Amsterdam", "Pacific/Apia"])
def test_f07_pages_of_local_times_hold_every_order_of_the_range(orders_of, kind, zone):
    """Through a gap and an overlap, in whose local order the instants are not."""
    orders, _ = orders_of(kind, zone)
    connection = orders.connection
    connection.execute(
        "INSERT INTO orders (id, status, expires_at, version)"
        " SELECT row_number() OVER (), 'pending', local, 0"
        " FROM unnest(ARRAY['2011-12-28', '2026-03-28 20:00', '2026-10-24 20:00']::timestamp[]) AS start,"
        " generate_series(start, start + interval '3 days', '30 min') AS local"
    )
    connection.execute("INSERT INTO orders VALUES (0, 'infinity', 'pending'), (-1, '-infinity', 'pending')")
    instants = dict(
        connection.execute(
            f"SELECT id, (extract(epoch FROM expires_at::timestamp AT TIME ZONE '{zone}' - '2000-01-01 00:00+00') * 1000000)::int8"
            " FROM orders WHERE id > 0"
        )
    )
    instants[-1] = NEGATIVE_INFINITY_US
    times = sorted(set(instants.values()))
    paged = orders.open_table(page_rows=7)
    middle = times[len(times) // 2]
    ranges = [
        (None, middle),
        (None, times[-1]),
        *((after_us, times[-2]) for after_us in times[1 : len(times) // 2 : 5]),
    ]
    for after_us, through_us in ranges:
        read = [due for chunk in paged.open_deadlines(after_us, through_us) for due in chunk]
        wanted = {key for key, us in instants.items() if (after_us is None or us > after_us) and us <= through_us}
        assert {due.key: due.deadline_us for due in read} == {key: instants[key] for key in wanted}
        assert len(read) == len(wanted)
        worst = NEGATIVE_INFINITY_US
        for due in read:
            assert due.deadline_us >= worst - paged.disorder_us
            worst = max(worst, due.deadline_us)
    paged.disconnect()


@pytest.mark.parametrize("kind", ["timestamp without time zone", "date"])
def test_f07_nothing_is_closed_before_the_zones_clocks_say_so(orders_of, kind):
    """Whatever the session's own time zone is, and whatever our estimate was."""
    orders, table = orders_of(kind, "Pacific/Kiritimati")  # a day ahead of Honolulu
    orders.connection.execute(f"ALTER DATABASE {orders.database.name} SET TimeZone = 'Pacific/Honolulu'")
    table.disconnect()
    table.connect()
    now_us = table.sample_clock(1)[0].database_us
    step = "interval '1 day'" if kind == "date" else "interval '2 s'"
    orders.connection.execute(
        "INSERT INTO orders (id, status, expires_at, version)"
        f" SELECT n, 'pending', date_trunc('{'day' if kind == 'date' else 'second'}',"
        f" clock_timestamp() AT TIME ZONE 'Pacific/Kiritimati') + n * {step}, 0 FROM generate_series(-1, 1) AS n"
    )
    report = table.close([Due(key, now_us - 5_000_000, 0) for key in (-1, 0, 1)])
    assert {closed.key for closed in report.closed} == {-1, 0}
    assert all(closed.lateness_us >= 0 for closed in report.closed)
    (left,) = report.unclosed
    assert (left.due.key, left.outcome) == (1, Outcome.MOVED)
    assert left.row.deadline_us > now_us
    again = table.close([Due(1, left.row.deadline_us, 0)])
    assert [unclosed.outcome for unclosed in again.unclosed] == [Outcome.NOT_DUE]


@pytest.mark.parametrize("kind", ["timestamp without time zone", "date"])
def test_f07_also_reads_the_deadline_in_its_own_type(orders_of, kind):
    orders, table = orders_of(
        kind, "Europe/Amsterdam", also="INSERT INTO seen SELECT id, expires_at, pg_typeof(expires_at)::text FROM closed"
    )
    orders.connection.execute(f"CREATE TABLE seen (id int, at {kind}, type text)")
    orders.connection.execute(
        "INSERT INTO orders (id, status, expires_at, version) VALUES (1, 'pending', '2020-07-01', 0)"
    )
    (closed,) = table.close([Due(1, 0, 0)]).closed
    assert orders.connection.execute("SELECT at::text LIKE '2020-07-01%', type FROM seen").fetchall() == [(True, kind)]
    assert closed.deadline_us == 646_869_600_000_000  # 2020-06-30 22:00 UTC


SHOP = """
[slot]
name = "{slot}"
plugin = "{plugin}"
[table]
time_zone = "America/New_York"
"""


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
@pytest.mark.parametrize("kind", ["timestamp", "date"])
def test_f07_the_commands_speak_of_instants(database, tmp_path, kind, plugin):
    shop = write_configuration(
        tmp_path / "shop.toml", database.dsn, SHOP.format(slot=f"slot_{database.name}", plugin=plugin) + QUIET
    )
    with database.connect() as connection:
        connection.execute(
            f"CREATE TABLE orders (id bigint PRIMARY KEY, status text NOT NULL, expires_at {kind}, version int)"
        )
        told = cdcwatch("check", "-c", shop)
        assert told.code == 0, told.said
        assert "CREATE INDEX CONCURRENTLY" in told.out
        connection.execute("CREATE INDEX deadlines ON orders (expires_at) WHERE status = 'pending'")
        assert cdcwatch("slot", "create", "-c", shop).code == 0
        connection.execute(
            "INSERT INTO orders VALUES (1, 'pending', '2040-07-01', 0), (2, 'pending', '2020-01-01', 0),"
            " (3, 'pending', 'infinity', 0), (4, 'pending', '-infinity', 0), (5, 'pending', '9999-12-31', 0),"
            " (6, 'pending', '294276-12-31', 0), (7, 'pending', '4714-11-24 BC', 0), (8, 'pending', NULL, 0)"
        )
        checks = {one["name"]: one for one in json.loads(cdcwatch("check", "--json", "-c", shop).out)["checks"]}
        assert checks["index"]["message"] == "due orders are found by the index deadlines"
        assert (checks["time_zone"]["state"], "America/New_York" in checks["time_zone"]["message"]) == ("ok", True)
    instants = {
        "4": "-infinity", "7": "-4713-11-24T00:00:00.000000Z", "2": "2020-01-01T05:00:00.000000Z",
        "1": "2040-07-01T04:00:00.000000Z", "5": "9999-12-31T05:00:00.000000Z", "6": "+294276-12-31T23:59:59.999999Z",
    }  # fmt: skip
    pending = json.loads(cdcwatch("pending", "--json", "-c", shop).out)
    assert {row["key"]["id"]: row["deadline"] for row in pending["pending"]} == instants
    assert pending["overdue_rows"] == 3
    story = json.loads(cdcwatch("explain", "1", "--json", "-c", shop).out)
    assert story["row"]["deadline"] == instants["1"]
    peeked = json.loads(cdcwatch("slot", "peek", "--json", "--explain", "-c", shop).out)["changes"]
    shown = {change["key"]: change["event"]["data"]["deadline"] for change in peeked if change["event"]}
    assert shown == instants
