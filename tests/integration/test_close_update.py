"""The closing statement on a real PostgreSQL: races, key types, tables that lack columns, errors, plans, restarts."""

from __future__ import annotations

import random
import threading
from collections import Counter

import psycopg
import pytest

from cdcwatch.close import clock as clocks
from cdcwatch.close.agenda import Agenda
from cdcwatch.close.clock import DatabaseClock, SystemClock
from cdcwatch.close.closer import Closer
from cdcwatch.close.outcome import Outcome
from cdcwatch.close.update import PostgresTable
from cdcwatch.close.window import Window
from cdcwatch.close.workers import NoObserver, Workers
from cdcwatch.database import Instant
from cdcwatch.deadline.schedule import Due, Schedule
from cdcwatch.errors import ConnectionBrokeError, UnavailableError
from cdcwatch.instant import NEGATIVE_INFINITY_US
from cdcwatch.table import Column
from tests import services
from tests.orders import Orders
from tests.waiting import wait_until

HOUR_US = 3_600_000_000


@pytest.fixture
def orders_of(database):
    """Makes tables and their connected `Table`s; closes them all."""
    made = []

    def make(*, table=None, **options):
        orders = Orders(database, **options)
        opened = orders.open_table(**(table or {}))
        made.append((orders, opened))
        return orders, opened

    yield make
    for orders, opened in made:
        opened.disconnect()
        orders.connection.close()


def all_open(table):
    now_us = table.sample_clock(1)[0].database_us
    return [due for chunk in table.open_deadlines(None, now_us + HOUR_US) for due in chunk]


def outcomes(report):
    return Counter(unclosed.outcome for unclosed in report.unclosed)


class Seen(NoObserver):
    """Counts outcomes; `wait` returns when so many orders were settled one way or another."""

    def __init__(self):
        self.outcomes = Counter()
        self.lateness_us = []
        self.lost = threading.Event()

    def batch_settled(self, outcomes, lateness_us, batch_us):
        self.outcomes.update(outcomes)
        self.lateness_us += lateness_us

    def database_lost(self, error):
        self.lost.set()


class Running:
    """Agenda, window and workers on a table."""

    def __init__(self, dsn, watched, *, clock=None, concurrency=2, batch_rows=500, with_window=True):
        clock = clock or SystemClock()
        self.seen = Seen()
        schedule = Schedule(window_end_us=NEGATIVE_INFINITY_US, max_entries=100_000)
        self.agenda = Agenda(Closer(schedule, random=random.random), DatabaseClock(), clock)

        def make_table():
            return PostgresTable(dsn, watched, clock, changes={"closed_at": "clock_timestamp()"})

        self.window = Window(self.agenda, make_table(), clock, horizon_us=HOUR_US, max_entries=100_000)
        self.workers = Workers(
            self.agenda, make_table, clock, concurrency=concurrency, batch_rows=batch_rows, observer=self.seen
        )
        self._with_window = with_window

    def __enter__(self):
        self.workers.start()
        if self._with_window:
            self.window.start()
            assert self.window.ready.wait(120)
        else:
            self.agenda.extend_window(2**62)
        return self

    def __exit__(self, *_):
        assert self.workers.stop(30)
        if self._with_window:
            assert self.window.stop(30)


def test_i01_a_payment_under_way_wins(orders_of, database):
    orders, table = orders_of()
    orders.insert(1, 2)
    batch = all_open(table)
    with database.connect(autocommit=False) as payer:
        payer.execute("UPDATE orders SET status = 'paid', version = version + 1 WHERE id = 1")
        report = table.close(batch)
        assert outcomes(report) == {Outcome.LOCKED: 1}
        payer.commit()
    assert outcomes(table.close([due for due in batch if due.key == 1])) == {Outcome.PAID: 1}
    assert orders.statuses() == ["paid", "expired"]


def test_i01_an_uncommitted_payment_is_waited_for_by_the_workers(orders_of, database):
    orders, _ = orders_of()
    orders.insert(1, 2, 3)
    with database.connect(autocommit=False) as payer:
        payer.execute("UPDATE orders SET status = 'paid', version = version + 1 WHERE id = 2")
        with Running(database.dsn, orders.watched) as running:
            wait_until(
                lambda: running.seen.outcomes[Outcome.LOCKED] >= 3, 20, "the held order is tried again and again"
            )
            assert running.agenda.facts().retrying == 1
            payer.commit()
            wait_until(lambda: not len(running.agenda), 20, "nothing is pending")
            assert running.seen.outcomes[Outcome.PAID] == 1
    assert orders.statuses() == ["expired", "paid", "expired"]


def test_i02_an_extension_without_a_version_is_not_closed_early(orders_of):
    orders, table = orders_of()
    orders.insert(1)
    batch = all_open(table)
    orders.connection.execute("UPDATE orders SET expires_at = expires_at + interval '1 h'")
    report = table.close(batch)
    (unclosed,) = report.unclosed
    assert (unclosed.outcome, report.closed) == (Outcome.MOVED, [])
    assert unclosed.row.deadline_us == batch[0].deadline_us + HOUR_US
    assert orders.statuses() == ["pending"]


def test_i04_the_lock_rechecks_a_row_that_changed_before_it(orders_of, database):
    """A row version committed between snapshot and lock is judged as it is now."""
    orders, table = orders_of(extra="note text")
    orders.insert(*range(50))
    batch = all_open(table)
    stop = threading.Event()
    paid = []

    def pay():
        with database.connect() as payer:
            while not stop.is_set():
                key = random.randrange(50)
                changed = payer.execute(
                    "UPDATE orders SET status = 'paid', version = version + 1 WHERE id = %s AND status = 'pending'",
                    [key],
                )
                paid.extend([key] * changed.rowcount)

    payers = [threading.Thread(target=pay) for _ in range(3)]
    for payer in payers:
        payer.start()
    closed = Counter()
    pending = {due.key: due for due in batch}
    while pending:
        report = table.close(random.sample(list(pending.values()), min(5, len(pending))))
        closed.update(one.key for one in report.closed)
        for key in [one.key for one in report.closed] + [
            u.due.key for u in report.unclosed if u.outcome != Outcome.LOCKED
        ]:
            pending.pop(key, None)
    stop.set()
    for payer in payers:
        payer.join()
    assert set(closed.values()) <= {1}
    assert set(closed).isdisjoint(paid)
    assert len(closed) + len(paid) == 50


def test_a_version_that_moved_unseen_is_closed_with_the_new_one(orders_of, database):
    orders, table = orders_of()
    orders.insert(1, version=7)
    (due,) = all_open(table)
    with Running(database.dsn, orders.watched, with_window=False) as running:
        running.agenda.apply([(1, due.deadline_us, 3)])
        wait_until(lambda: running.seen.outcomes[Outcome.CLOSED] == 1, 20, "the order is closed")
        assert running.seen.outcomes == {Outcome.MOVED: 1, Outcome.CLOSED: 1}
    assert orders.connection.execute("SELECT version FROM orders").fetchone() == (8,)


def test_f11_a_clock_ahead_closes_nothing_early(orders_of, database, monkeypatch):
    """The estimate is made wrong, as by a jump of the database's clock back, and not measured before the attempt."""
    monkeypatch.setattr(clocks, "MEASURE_EVERY_US", 600_000_000)

    class Jumping(SystemClock):
        ahead_us = 0

        def monotonic_us(self):
            return super().monotonic_us() + self.ahead_us

    clock = Jumping()
    orders, _ = orders_of()
    orders.insert(1, due_in_s=30)
    with Running(database.dsn, orders.watched, clock=clock) as running:
        wait_until(lambda: running.agenda.facts().now_us is not None, 20, "the clock is measured")
        clock.ahead_us = 45_000_000
        running.agenda.apply([(99, 0, 0)])  # wakes the leader
        wait_until(lambda: running.seen.outcomes[Outcome.NOT_DUE], 20, "the early attempt is refused")
        wait_until(lambda: running.agenda.facts().overdue_us == 0, 20, "the estimate is right again")
        orders.connection.execute("UPDATE orders SET expires_at = clock_timestamp()")
        (deadline_us,) = orders.connection.execute(
            "SELECT (extract(epoch FROM expires_at) * 1e6)::bigint FROM orders"
        ).fetchone()
        running.agenda.apply([(1, deadline_us - 946_684_800_000_000, 0)])
        wait_until(lambda: running.seen.outcomes[Outcome.CLOSED], 20, "the order is closed")
    (late,) = orders.connection.execute("SELECT closed_at >= expires_at FROM orders").fetchone()
    assert late


KEYS = {
    "smallint": ((Column("id", "smallint"),), [-32768, 0, 32767]),
    "bigint": ((Column("id", "bigint"),), [-(2**63), 2**53 + 1, 2**63 - 1]),
    "uuid": ((Column("id", "uuid"),), ["7f000000-0000-4000-8000-00000000000a", "7F000000-0000-4000-8000-00000000000B"]),
    "text": ((Column("id", "text"),), ["", 'a"b', "{x,y}", "NULL", "é 😀 \\ %s %", " pad "]),
    "char": ((Column("id", "character(5)"),), ["ab", "abcde"]),
    "numeric": ((Column("id", "numeric(30,9)"),), ["1.10", "12345678901234567890.123456789"]),
    "timestamptz": ((Column("id", "timestamp with time zone"),), ["2026-01-01 00:00:00+00"]),
    "composite": (
        (Column("Shop Id", "uuid"), Column("no%", "text"), Column("part", "numeric")),
        [
            ("7f000000-0000-4000-8000-00000000000a", "a,b", "1.10"),
            ("7f000000-0000-4000-8000-00000000000a", 'a","b', "1.1"),
        ],
    ),
    "composite int": ((Column("shop", "integer"), Column("id", "bigint")), [(1, 2**53 + 1), (2, 1)]),
}


@pytest.mark.parametrize("kind", KEYS)
def test_any_primary_key(orders_of, kind):
    key, values = KEYS[kind]
    orders, table = orders_of(key=key, name='Or,der "X" é%')
    orders.insert(*values)
    batch = all_open(table)
    assert len({due.key for due in batch}) == len(values)
    assert all(isinstance(due.key, int) == (kind in ("smallint", "bigint")) for due in batch)
    orders.connection.execute("""UPDATE "Or,der ""X"" é%%" SET version = 1""".replace("%%", "%"))
    report = table.close(batch)
    assert outcomes(report) == {Outcome.MOVED: len(values)}
    report = table.close([due._replace(version=1) for due in batch])
    assert {one.key for one in report.closed} == {due.key for due in batch}


def test_blanks_of_a_padded_key_are_kept_as_the_stream_has_them(orders_of):
    orders, table = orders_of(key=(Column("id", "character(5)"),))
    orders.insert("ab")
    assert [due.key for due in all_open(table)] == ["ab   "]


def test_a_table_without_version(orders_of):
    orders, table = orders_of(version=None)
    orders.insert(1, 2)
    batch = all_open(table)
    orders.connection.execute("UPDATE orders SET expires_at = expires_at - interval '1 s' WHERE id = 2")
    report = table.close(batch)
    assert [(one.key, one.version) for one in report.closed] == [(1, 0), (2, 0)]


def test_a_table_without_status(orders_of):
    orders, table = orders_of(status=None, table={"changes": {"expires_at": "NULL", "closed_at": "clock_timestamp()"}})
    orders.insert(1, due_in_s=-2)
    (due,) = all_open(table)
    (closed,) = table.close([due]).closed
    assert closed.deadline_us == due.deadline_us
    assert closed.lateness_us >= 2_000_000
    assert outcomes(table.close([due])) == {Outcome.CLEARED: 1}


@pytest.mark.parametrize("kind", ["enum", "integer", "character(9)"])
def test_statuses_of_other_types(orders_of, database, kind):
    statuses = {"pending": "1", "waiting": "2", "expired": "3", "paid": "4"} if kind == "integer" else {}
    names = [statuses.get(name, name) for name in ("pending", "waiting", "expired", "paid")]
    if kind == "enum":
        with database.connect() as connection:
            connection.execute("CREATE TYPE order_status AS ENUM ('pending', 'waiting', 'expired', 'paid')")
    orders, table = orders_of(
        status=Column("status", "order_status" if kind == "enum" else kind),
        open=tuple(names[:2]),
        closed_status=names[2],
    )
    for key, status in enumerate((names[0], names[1], names[3])):
        orders.insert(key, status=status)
    batch = all_open(table)
    assert [due.key for due in batch] == [0, 1]
    report = table.close([*batch, batch[0]._replace(key=2)])
    assert [one.key for one in report.closed] == [0, 1]
    assert outcomes(report) == {Outcome.PAID: 1}
    assert outcomes(table.close(batch)) == {Outcome.ALREADY_CLOSED: 2}


def test_a_null_version_counts_as_zero(orders_of):
    orders, table = orders_of()
    orders.insert(1)
    orders.connection.execute("UPDATE orders SET version = NULL")
    assert [one.version for one in table.close(all_open(table)).closed] == [1]


def test_set_takes_any_expression(orders_of):
    orders, table = orders_of(
        table={"changes": {"note": "coalesce(note, '{}') || (version % 5) || orders.id || status"}}, extra="note text"
    )
    orders.insert(1, version=13)
    assert table.close(all_open(table)).closed
    assert orders.connection.execute("SELECT note, closed_at FROM orders").fetchone() == ("{}31pending", None)


ALSO = """
UPDATE stock SET free = free + (SELECT count(*) FROM closed);  -- 100 %s
INSERT INTO released SELECT id, expires_at, version FROM closed;
"""


def test_also_runs_in_the_closing_transaction(orders_of):
    orders, table = orders_of(table={"also": ALSO})
    orders.connection.execute(
        "CREATE TABLE stock (free integer NOT NULL CHECK (free < 20)); INSERT INTO stock VALUES (0)"
    )
    orders.connection.execute(
        "CREATE TABLE released (id bigint CHECK (id <> 4), expires_at timestamptz, version integer)"
    )
    orders.insert(*range(8), version=1)
    batch = all_open(table)
    report = table.close([*batch, Due(99, 0, 0)])
    assert sorted(one.key for one in report.closed) == [0, 1, 2, 3, 5, 6, 7]
    assert outcomes(report) == {Outcome.FAILED: 1, Outcome.GONE: 1}
    assert "CheckViolation" in report.error
    assert orders.statuses()[4] == "pending"
    assert orders.connection.execute("SELECT free FROM stock").fetchone() == (7,)
    released = orders.connection.execute(
        "SELECT count(*), min(r.version), bool_and(r.expires_at = o.expires_at) FROM released r JOIN orders o USING (id)"
    )
    assert released.fetchone() == (7, 2, True)
    assert table.close([Due(99, 0, 0)]).closed == []


def test_errors_quote_no_row(orders_of):
    orders, table = orders_of()
    orders.insert(1234567)
    orders.connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE 'order % is not to be closed', new.id; END $$;"
        " CREATE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    report = table.close(all_open(table))
    assert outcomes(report) == {Outcome.FAILED: 1}
    assert report.error == "SQLSTATE P0001 (RaiseException)"


def test_errors_of_the_table_name_the_next_step(orders_of):
    orders, table = orders_of()
    orders.insert(1)
    batch = all_open(table)
    orders.connection.execute("ALTER TABLE orders RENAME expires_at TO deadline")
    assert table.close(batch).error == "SQLSTATE 42703 (UndefinedColumn); see `cdcwatch check`"


def test_a_batch_of_failures_costs_a_bounded_number_of_statements(orders_of, monkeypatch):
    orders, table = orders_of()
    orders.insert(*range(200))
    batch = all_open(table)
    orders.connection.execute("ALTER TABLE orders ADD CHECK (status <> 'expired')")
    calls = []
    close = table._close
    monkeypatch.setattr(table, "_close", lambda part: calls.append(len(part)) or close(part))
    report = table.close(batch)
    assert len(calls) == 256
    assert outcomes(report).total() == 200
    assert set(outcomes(report)) == {Outcome.FAILED, Outcome.DEFERRED}


@pytest.mark.parametrize("one_in", [20, 2])
def test_healthy_orders_do_not_fail_with_refused_ones(orders_of, database, monkeypatch, one_in):
    orders, _ = orders_of()
    failed, batches = set(), []
    close = PostgresTable.close

    def closed(self, batch):
        report = close(self, batch)
        failed.update(one.due.key for one in report.unclosed if one.outcome is Outcome.FAILED)
        batches.append([due.key for due in batch])
        return report

    monkeypatch.setattr(PostgresTable, "close", closed)
    orders.connection.execute(
        "INSERT INTO orders (id, status, expires_at, version)"
        " SELECT id, 'pending', now() + interval '1 s', 0 FROM generate_series(1, 2000) AS id"
    )
    orders.connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF new.id % {one_in} = 0 THEN RAISE 'refused'; END IF; RETURN new; END $$;"
        " CREATE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION refuse()"
    )
    refused = set(range(one_in, 2001, one_in))
    with Running(database.dsn, orders.watched) as running:
        wait_until(lambda: running.seen.outcomes[Outcome.CLOSED] == 2000 - len(refused), 60, "the healthy are closed")
        wait_until(lambda: failed == refused, 60, "each of the refused is singled out")
        before = len(batches)
        wait_until(lambda: any(refused.intersection(batch) for batch in batches[before:]), 60, "they are tried again")
        assert all(refused.issuperset(batch) for batch in batches[before:])
        assert len(running.agenda) == len(refused)


def test_a_statement_that_gave_way_is_tried_again(orders_of, database):
    orders, table = orders_of()
    orders.insert(1)
    batch = all_open(table)
    table._connection.execute("SET lock_timeout = '10ms'")
    with database.connect(autocommit=False) as ddl:
        ddl.execute("LOCK TABLE orders")
        report = table.close(batch)
        assert outcomes(report) == {Outcome.LOCKED: 1}
        assert "55P03" in report.error
    assert table.close(batch).closed


def test_i04_two_workers_and_random_writers_never_deadlock(orders_of, database):
    orders, _ = orders_of()
    orders.connection.execute(
        "INSERT INTO orders (id, status, expires_at, version)"
        " SELECT id, 'pending', clock_timestamp() - interval '1 s', 0 FROM generate_series(1, 4000) AS id"
    )
    before = orders.connection.execute(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    stop = threading.Event()
    errors = []

    def write(residue):
        """Each writer has rows of its own, so that only the workers can be its partner in a deadlock."""
        with database.connect(autocommit=False) as writer:
            while not stop.is_set():
                keys = random.sample(range(residue, 4001, 2), 40)
                try:
                    for key in keys:
                        writer.execute("UPDATE orders SET closed_at = closed_at WHERE id = %s", [key])
                    writer.commit()
                except psycopg.Error as error:
                    errors.append(error.sqlstate)
                    writer.rollback()

    writers = []
    for residue in (1, 2):
        writers.append(threading.Thread(target=write, args=(residue,)))
        writers[-1].start()
    with Running(database.dsn, orders.watched, batch_rows=200) as running:
        wait_until(lambda: running.seen.outcomes[Outcome.CLOSED] == 4000, 60, "all are closed")
        stop.set()
        for writer in writers:
            writer.join()
        assert running.seen.outcomes[Outcome.FAILED] == 0
    assert errors == []
    after = orders.connection.execute(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    assert after == before


@pytest.mark.parametrize("kind", ["text", "character varying(20)", "order_status"])
def test_the_window_is_read_by_the_partial_index_alone(orders_of, database, kind):
    with database.connect() as connection:
        connection.execute("CREATE TYPE order_status AS ENUM ('pending', 'waiting', 'expired')")
    orders, table = orders_of(open=("pending", "waiting"), status=Column("status", kind))
    orders.connection.execute(
        "CREATE INDEX deadlines ON orders (expires_at) WHERE status IN ('pending', 'waiting');"
        " INSERT INTO orders (id, status, expires_at, version)"
        " SELECT id, 'waiting', clock_timestamp() + id * interval '1 min', 0 FROM generate_series(1, 20000) AS id;"
        " ANALYZE orders"
    )
    now_us = table.sample_clock(1)[0].database_us
    for statement in (table._statements.first_page, table._statements.next_page):
        plan = table._connection.execute(
            "EXPLAIN (ANALYZE, FORMAT TEXT) " + statement,
            {"after": Instant(now_us), "through": Instant(now_us + 10 * 60_000_000)},
        ).fetchall()
        text = "\n".join(line for (line,) in plan)
        assert "Index Scan using deadlines" in text
        assert "Filter" not in text
        assert "Sort" not in text


def test_the_close_finds_its_rows_by_the_key(orders_of):
    orders, table = orders_of()
    orders.connection.execute(
        "INSERT INTO orders (id, status, expires_at, version)"
        " SELECT id, 'pending', clock_timestamp() - interval '1 s', 0 FROM generate_series(1, 50000) AS id; ANALYZE orders"
    )
    parameters = table._statements.close_parameters([Due(key, 0, 0) for key in range(100)])
    plan = table._connection.execute("EXPLAIN " + table._statements.close_batch, parameters).fetchall()
    text = "\n".join(line for (line,) in plan)
    assert text.count("orders_pkey") == 2
    assert "Seq Scan" not in text


def test_orders_are_kept_while_the_database_is_away():
    with services.local_postgres() as server, services.fresh_database(server) as database:
        orders = Orders(database)
        orders.insert(*range(20), due_in_s=-1)
        orders.insert(100, due_in_s=3600)
        orders.connection.close()
        with Running(database.dsn, orders.watched, with_window=False) as running:
            wait_until(lambda: running.agenda.facts().now_us is not None, 20, "the clock is measured")
            deadline_us = running.agenda.facts().now_us
            server.kill()
            running.agenda.apply([(key, deadline_us, 0) for key in range(20)])
            assert running.seen.lost.wait(120)
            wait_until(lambda: running.workers.health().connected == 0, 30, "every connection is seen to be lost")
            assert len(running.agenda) == 20
            assert running.workers.health().last_error
            server.start()
            # The deadlines given were made up, so each order is first found to have moved.
            wait_until(lambda: running.seen.outcomes[Outcome.CLOSED] == 20, 60, "all are closed")
            wait_until(lambda: not running.workers.health().last_error, 30, "both are connected again")
        with database.connect() as connection:
            assert connection.execute(
                "SELECT count(*) FROM orders WHERE status = 'expired' AND version = 1"
            ).fetchone() == (20,)


def test_a_connection_cut_by_the_server_is_made_again(orders_of, database):
    orders, _ = orders_of()
    with Running(database.dsn, orders.watched, concurrency=1) as running:
        wait_until(lambda: running.workers.health().connected == 1, 20, "connected")
        orders.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'cdcwatch close' AND datname = current_database()"
        )
        orders.insert(1)
        running.window.reload()
        wait_until(lambda: running.seen.outcomes[Outcome.CLOSED] == 1, 30, "the order is closed")


def test_no_session_state_is_left(orders_of):
    orders, table = orders_of(table={"also": "SELECT 1"})
    orders.insert(1)
    table.close(all_open(table))
    connection = table._connection
    assert connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchone() == (0,)
    assert connection.execute("SELECT to_regclass('pg_temp.closed')").fetchone() == (None,)
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def refuse(orders, raising, key):
    """The close of `key` does `raising`, the others' do nothing."""
    orders.connection.execute(
        "CREATE OR REPLACE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
        f" IF new.id = {key} THEN {raising}; END IF; RETURN new; END $$;"
        " CREATE OR REPLACE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION refuse()"
    )


@pytest.mark.parametrize(
    ("state", "outcome", "is_tables_fault"),
    [
        ("08001", Outcome.FAILED, False),
        ("08006", Outcome.FAILED, False),
        ("25006", Outcome.FAILED, False),
        ("53400", Outcome.FAILED, False),
        ("57014", Outcome.FAILED, False),
        ("57P01", Outcome.FAILED, False),
        ("53100", Outcome.FAILED, True),
        ("53200", Outcome.FAILED, True),
        ("58030", Outcome.FAILED, True),
        ("40001", Outcome.LOCKED, False),
        ("40P01", Outcome.LOCKED, False),
        ("55P03", Outcome.LOCKED, False),
    ],
)
def test_what_an_order_raises_is_its_own_while_the_connection_lives(orders_of, state, outcome, is_tables_fault):
    orders, table = orders_of()
    orders.insert(*range(9))
    refuse(orders, f"RAISE 'secret' USING ERRCODE = '{state}'", 4)
    report = table.close(all_open(table))
    assert sorted(one.key for one in report.closed) == [0, 1, 2, 3, 5, 6, 7, 8]
    (unclosed,) = report.unclosed
    assert (unclosed.due.key, unclosed.outcome, unclosed.is_tables_fault) == (4, outcome, is_tables_fault)
    assert state in report.error
    assert "secret" not in report.error


def test_a_row_that_a_trigger_keeps_from_the_update_has_failed(orders_of, database):
    orders, table = orders_of()
    orders.insert(1, 2, 3)
    refuse(orders, "RETURN NULL", 2)
    batch = all_open(table)
    with database.connect(autocommit=False) as payer:
        payer.execute("SELECT FROM orders WHERE id = 3 FOR UPDATE")
        report = table.close(batch)
    assert [one.key for one in report.closed] == [1]
    assert {one.due.key: one.outcome for one in report.unclosed} == {2: Outcome.FAILED, 3: Outcome.LOCKED}
    assert report.error == "the UPDATE changed no row: a trigger?"


def test_a_server_that_takes_no_writes_is_away(orders_of):
    orders, table = orders_of()
    orders.insert(1)
    batch = all_open(table)
    table._connection.execute("SET default_transaction_read_only = on")
    with pytest.raises(UnavailableError, match="takes no writes") as caught:
        table.close(batch)
    assert not isinstance(caught.value, ConnectionBrokeError), "no order is suspected for it"


def test_a_broken_connection_is_told_without_the_servers_words(orders_of):
    orders, table = orders_of()
    orders.insert(1)
    refuse(orders, "PERFORM pg_terminate_backend(pg_backend_pid())", 1)
    with pytest.raises(ConnectionBrokeError) as caught:
        table.close(all_open(table))
    assert str(caught.value) == "PostgreSQL: the connection broke: SQLSTATE 57P01 (AdminShutdown)"


def test_a_statement_that_was_given_up_is_cancelled_and_its_locks_are_gone(orders_of, database):
    orders, _ = orders_of()
    orders.insert(1)
    hanging = orders.open_table(answer_timeout_s=0.5)
    batch = all_open(hanging)
    refuse(orders, "PERFORM pg_sleep(600)", 1)
    with pytest.raises(ConnectionBrokeError, match="no answer"):
        hanging.close(batch)
    active = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE '%%_wanted%%'"
    with database.connect() as connection:
        wait_until(
            lambda: connection.execute(active + " AND pid <> pg_backend_pid()", []).fetchone() == (0,), 10, "cancelled"
        )


def test_what_is_slow_to_fail_makes_the_others_wait_for_a_few_of_its_statements_only(orders_of, monkeypatch):
    orders, table = orders_of()
    orders.insert(*range(100))
    refuse(orders, "PERFORM pg_sleep(0.3); RAISE 'slow'", 3)
    calls = []
    close = table._close
    monkeypatch.setattr(table, "_close", lambda part: calls.append([due.key for due in part]) or close(part))
    report = table.close(all_open(table))
    assert (len(report.closed), [one.due.key for one in report.unclosed]) == (99, [3])
    assert [len(part) for part in calls if 3 in part] == [100, 13, 2, 1]
    assert [len(part) for part in calls[1:8]] == [13, *[13] * 6], (
        "the seven others of the eighths go before its own parts"
    )
