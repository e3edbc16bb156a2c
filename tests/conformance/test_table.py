"""One suite for every `Table`: the fake that simulations run on must not be kinder than PostgreSQL."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from cdcwatch.close.outcome import Outcome
from cdcwatch.deadline.schedule import Due
from cdcwatch.errors import ConnectionBrokeError, UnavailableError
from cdcwatch.instant import INFINITY_US, NEGATIVE_INFINITY_US, instant_sql
from tests.fakes.table import WATCHED, FakeClock, FakeDatabase, FakeRow, FakeTable
from tests.orders import Orders

HOUR_US = 3_600_000_000


class FakeWorld:
    def __init__(self, *, deletes=False):
        self.deletes = deletes
        self.database = FakeDatabase(replace(WATCHED, deletes=deletes))
        self.table = FakeTable(self.database, FakeClock())
        self.table.connect()
        self.now_us = self.database.now_us

    def put(self, key, deadline_us, status="pending", version=0):
        self.database.rows[key] = FakeRow(status, deadline_us, version)

    def delete(self, key):
        del self.database.rows[key]

    def status(self, key):
        row = self.database.rows.get(key)
        return row and row.status

    def refuse(self, *keys):
        self.database.poison |= set(keys)

    def breaks(self, key):
        self.database.breaking.add(key)

    @contextmanager
    def held(self, key):
        self.database.locked.add(key)
        yield
        self.database.locked.discard(key)


class PostgresWorld:
    def __init__(self, database, *, zone="", deletes=False):
        """`zone`: deadlines without time zone, by its clocks (which are never put back)."""
        self.zone, self.deletes = zone, deletes
        kind = {"deadline_type": "timestamp without time zone", "zone": zone} if zone else {}
        self.orders = Orders(database, deletes=deletes, **kind)
        self.table = self.orders.open_table(page_rows=3)
        self.now_us = self.table.sample_clock(1)[0].database_us

    def put(self, key, deadline_us, status="pending", version=0):
        self.orders.connection.execute(
            f"INSERT INTO orders (id, status, expires_at, version) VALUES (%s, %s, {self.deadline}, %s)"
            " ON CONFLICT (id) DO UPDATE SET status = excluded.status, expires_at = excluded.expires_at,"
            " version = excluded.version",
            [key, status, None if deadline_us is None else instant_sql(deadline_us), version],
        )

    @property
    def deadline(self):
        return f"%s::timestamptz AT TIME ZONE '{self.zone}'" if self.zone else "%s"

    def delete(self, key):
        self.orders.connection.execute("DELETE FROM orders WHERE id = %s", [key])

    def status(self, key):
        row = self.orders.connection.execute("SELECT status FROM orders WHERE id = %s", [key]).fetchone()
        return row and row[0]

    def refuse(self, *keys):
        if self.deletes:
            self.orders.connection.execute("CREATE TABLE lines (order_id bigint REFERENCES orders)")
            self.orders.connection.execute("INSERT INTO lines SELECT unnest(%s::bigint[])", [list(keys)])
            return
        self.orders.connection.execute(
            f"ALTER TABLE orders ADD CONSTRAINT refused CHECK (status <> 'expired' OR id NOT IN ({', '.join(map(str, keys))}))"
        )

    def breaks(self, key):
        self.orders.connection.execute(
            "CREATE FUNCTION breaks() RETURNS trigger LANGUAGE plpgsql AS"
            " $$ BEGIN PERFORM pg_terminate_backend(pg_backend_pid()); RETURN old; END $$;"
            f" CREATE TRIGGER breaks BEFORE {'DELETE' if self.deletes else 'UPDATE'} ON orders FOR EACH ROW"
            f" WHEN (old.id = {key}) EXECUTE FUNCTION breaks()"
        )

    @contextmanager
    def held(self, key):
        with self.orders.database.connect(autocommit=False) as other:
            other.execute("SELECT 1 FROM orders WHERE id = %s FOR UPDATE", [key])
            yield
            other.rollback()


@pytest.fixture(
    params=[
        "fake",
        "fake, deletes",
        "postgres",
        "postgres, local times",
        "postgres, deletes",
        "postgres, deletes, local",
    ]
)
def world(request):
    deletes = "deletes" in request.param
    if request.param.startswith("fake"):
        yield FakeWorld(deletes=deletes)
        return
    zone = "Asia/Kolkata" if "local" in request.param else ""
    world = PostgresWorld(request.getfixturevalue("database"), zone=zone, deletes=deletes)
    yield world
    world.table.disconnect()
    world.orders.connection.close()


def outcomes(report):
    return {unclosed.due.key: unclosed.outcome for unclosed in report.unclosed}


def test_a_due_order_is_closed_once(world):
    deadline_us = world.now_us - 5_000_000
    world.put(1, deadline_us, version=4)
    (closed,) = world.table.close([Due(1, deadline_us, 4)]).closed
    assert (closed.key, closed.deadline_us, closed.version) == (1, deadline_us, 4 if world.deletes else 5)
    assert closed.lateness_us >= 5_000_000
    assert world.status(1) == (None if world.deletes else "expired")
    report = world.table.close([Due(1, deadline_us, 4)])
    assert (report.closed, outcomes(report)) == ([], {1: Outcome.GONE if world.deletes else Outcome.ALREADY_CLOSED})


def test_every_other_end_is_named(world):
    past_us, future_us = world.now_us - 1000, world.now_us + HOUR_US
    world.put(1, past_us, status="paid")
    world.put(2, past_us, version=1)  # moved unseen
    world.put(3, future_us)
    world.put(4, future_us, version=0)  # extended without a version
    world.put(5, None)
    world.put(6, INFINITY_US)
    world.put(8, past_us)
    batch = [Due(key, past_us, 0) for key in (1, 2, 4, 5, 6, 7, 8)] + [Due(3, future_us, 0)]
    report = world.table.close(batch)
    assert [closed.key for closed in report.closed] == [8]
    assert outcomes(report) == {
        1: Outcome.PAID,
        2: Outcome.MOVED,
        3: Outcome.NOT_DUE,
        4: Outcome.MOVED,
        5: Outcome.CLEARED,
        6: Outcome.CLEARED,
        7: Outcome.GONE,
    }
    rows = {unclosed.due.key: unclosed.row for unclosed in report.unclosed}
    assert rows[7] is None
    assert rows[2] == ("pending", 1, past_us, True)
    assert rows[4] == ("pending", 0, future_us, False)
    assert world.status(4) == "pending"


def test_i01_a_held_order_is_passed_by_and_closed_later(world):
    past_us = world.now_us - 1000
    world.put(1, past_us)
    world.put(2, past_us)
    batch = [Due(2, past_us, 0), Due(1, past_us, 0)]
    with world.held(1):
        report = world.table.close(batch)
        assert [closed.key for closed in report.closed] == [2]
        assert outcomes(report) == {1: Outcome.LOCKED}
    assert [closed.key for closed in world.table.close(batch[1:]).closed] == [1]


def test_an_order_whose_close_fails_stands_alone(world):
    past_us = world.now_us - 1000
    for key in range(1, 21):
        world.put(key, past_us)
    world.refuse(7, 13)
    report = world.table.close([Due(key, past_us, 0) for key in range(1, 21)])
    assert outcomes(report) == {7: Outcome.FAILED, 13: Outcome.FAILED}
    assert len(report.closed) == 18
    assert report.error
    assert all(unclosed.error and not unclosed.is_tables_fault for unclosed in report.unclosed)
    assert world.status(7) == "pending"
    world.table.tell_given_up(report.unclosed, 8)


def test_an_order_that_breaks_the_connection_does_so_with_its_batch(world):
    past_us = world.now_us - 1000
    for key in (1, 2):
        world.put(key, past_us)
    world.breaks(2)
    with pytest.raises(ConnectionBrokeError):
        world.table.close([Due(1, past_us, 0), Due(2, past_us, 0)])
    assert world.status(1) == "pending"
    world.table.disconnect()
    world.table.connect()
    assert len(world.table.close([Due(1, past_us, 0)]).closed) == 1


def test_nothing_to_close(world):
    report = world.table.close([])
    assert (report.closed, report.unclosed) == ([], [])


def test_open_deadlines_come_in_order_within_the_range(world):
    through_us = world.now_us + HOUR_US
    expected = [(NEGATIVE_INFINITY_US, 50), (-(10**15), 49)]
    expected += [(world.now_us + key % 4 - 2, key) for key in range(12)] + [(through_us, 40)]
    for deadline_us, key in expected:
        world.put(key, deadline_us, version=3)
    world.put(60, through_us + 1)
    world.put(61, INFINITY_US)
    world.put(62, None)
    world.put(63, world.now_us, status="paid")
    chunks = list(world.table.open_deadlines(None, through_us))
    read = [due for chunk in chunks for due in chunk]
    assert len(chunks) > 2
    assert sorted((due.deadline_us, due.key) for due in read) == sorted(expected)
    assert [due.deadline_us for due in read] == sorted(due.deadline_us for due in read)
    assert {due.version for due in read} == {3}
    after = [due.key for chunk in world.table.open_deadlines(world.now_us, through_us) for due in chunk]
    assert sorted(after) == [3, 7, 11, 40]


def keys_of(page):
    return [one.due.key for one in page.orders]


def test_what_is_overdue_comes_oldest_first_in_pages(world):
    def overdue(limit, mark_us=None, since_us=None, grace_us=5_000_000):
        return world.table.overdue(mark_us=mark_us, since_us=since_us, grace_us=grace_us, limit=limit)

    ago_us = world.now_us - 60_000_000
    for key in range(1, 8):
        world.put(key, ago_us + key // 3, version=key)
    world.put(10, NEGATIVE_INFINITY_US)
    world.put(11, world.now_us + HOUR_US)
    world.put(12, INFINITY_US)
    world.put(13, None)
    world.put(14, ago_us, status="paid")
    world.put(15, world.now_us - 1_000)
    first = overdue(4)
    assert keys_of(first)[0] == 10
    assert sorted(keys_of(first)[1:3]) == [1, 2]
    assert not first.is_last
    assert first.orders[1].due == Due(keys_of(first)[1], ago_us, keys_of(first)[1])
    rest = overdue(20, mark_us=first.orders[-1].mark_us)
    assert sorted(keys_of(rest)) == [3, 4, 5, 6, 7]
    assert rest.is_last
    assert {*keys_of(overdue(20)), *keys_of(rest)} == {*range(1, 8), 10}
    assert sorted(keys_of(overdue(20, since_us=ago_us))) == [3, 4, 5, 6, 7]
    assert 15 in keys_of(overdue(20, grace_us=0))
    assert sorted(keys_of(overdue(20, grace_us=60_000_000 - 10**6 * 3600))) == [*range(1, 8), 10, 15]
    assert overdue(8).is_last is False
    assert overdue(9).is_last is True


def test_the_clock_is_read(world):
    samples = world.table.sample_clock(3)
    assert len(samples) == 3
    assert all(sample.before_us <= sample.after_us for sample in samples)
    assert abs(samples[-1].database_us - world.now_us) < HOUR_US


def test_without_a_connection_the_database_is_away(world):
    world.table.disconnect()
    world.table.disconnect()
    for use in (
        lambda: world.table.close([Due(1, world.now_us, 0)]),
        lambda: world.table.sample_clock(1),
        lambda: list(world.table.open_deadlines(None, world.now_us)),
        lambda: world.table.overdue(mark_us=None, since_us=None, grace_us=0, limit=1),
    ):
        with pytest.raises(UnavailableError):
            use()
    world.table.connect()
    world.table.connect()
    assert world.table.sample_clock(1)
