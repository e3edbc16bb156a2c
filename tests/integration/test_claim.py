"""Claims on a real PostgreSQL, and the threads that call and record: races, fences, retries, crashes, ends."""

from __future__ import annotations

import json
import threading
from collections import Counter
from functools import partial

import pytest
from psycopg.conninfo import make_conninfo

from cdcwatch.close.attempt import Answer as Result
from cdcwatch.close.attempt import body_of, idempotency_key
from cdcwatch.close.claim import ClaimTable, Ended, Takes
from cdcwatch.close.clock import SystemClock
from cdcwatch.close.errands import Errands
from cdcwatch.close.outcome import Outcome
from cdcwatch.close.outside import HttpOutside
from cdcwatch.close.workers import NoObserver
from cdcwatch.deadline.schedule import Due
from cdcwatch.errors import ConfigurationError, PreconditionError
from cdcwatch.table import ClaimStatuses, Column
from tests.endpoint import Answer, Endpoint
from tests.orders import Orders
from tests.waiting import wait_until

STATUSES = ClaimStatuses("closing", "close_failed")
WAIT_S = 30


class Shop:
    """A table of orders whose closes are claims, and tables opened on it."""

    def __init__(self, database, *, changes=None, also="", **options):
        self.orders = Orders(database, claim=STATUSES, **options)
        self.orders.make_claims()
        self.connection = self.orders.connection
        self._database, self._changes, self._also = database, changes, also
        self.opened = []

    def table(self, *, stuck_after_s=300.0, room=lambda: True):
        """A connected one, and the list of what it claims."""
        claims = []
        dsn = make_conninfo(self._database.dsn, options="-c statement_timeout=15s")
        takes = Takes(claims.extend, room)
        table = ClaimTable(
            dsn, self.orders.watched, SystemClock(), stuck_after_s=stuck_after_s, takes=takes,
            changes=self._changes, also=self._also,
        )  # fmt: skip
        table.connect()
        self.opened.append(table)
        return table, claims

    def dues(self):
        now_us = self.opened[0].sample_clock(1)[0].database_us
        return [due for chunk in self.opened[0].open_deadlines(None, now_us + 3_600_000_000) for due in chunk]

    def claim(self, table):
        return table.close(self.dues())

    def kept(self):
        return self.connection.execute(
            "SELECT key, claim_id::text, attempt, last_error, next_at - started_at FROM cdcwatch.claims ORDER BY key"
        ).fetchall()

    def row(self, order):
        return self.connection.execute("SELECT status::text, version FROM orders WHERE id = %s", [order]).fetchone()


@pytest.fixture
def shop_of(database):
    made = []

    def make(**options):
        made.append(Shop(database, **options))
        return made[-1]

    yield make
    for shop in made:
        for table in shop.opened:
            table.disconnect()
        shop.connection.close()


def outcomes(report):
    return Counter(unclosed.outcome for unclosed in report.unclosed)


def test_a_claim_is_the_status_and_the_row_of_claims_in_one(shop_of):
    shop = shop_of()
    table, claims = shop.table()
    shop.orders.insert(1, 2, 3, version=4)
    shop.orders.insert(9, due_in_s=3600)
    dues = {due.key: due for due in shop.dues()}
    report = table.close([*dues.values()])
    assert (sorted(report.claimed), report.closed, outcomes(report)) == ([1, 2, 3], [], {Outcome.NOT_DUE: 1})
    assert shop.row(1) == ("closing", 5)
    assert shop.row(9) == ("pending", 0)
    for claim in claims:
        due = dues[claim.key]
        assert (claim.attempt, claim.status, claim.version, claim.deadline_us) == (1, "pending", 4, due.deadline_us)
        assert claim.idempotency_key == idempotency_key(shop.orders.watched, claim.key, due.deadline_us)
    assert [(key, attempt, error) for key, _, attempt, error, _ in shop.kept()] == [
        ("1", 1, ""),
        ("2", 1, ""),
        ("3", 1, ""),
    ]
    # Whoever comes next, with the same word of the stream, is told so.
    other, others = shop.table()
    assert outcomes(other.close([*dues.values()])) == {Outcome.CLAIMED: 3, Outcome.NOT_DUE: 1}
    assert (others, len(claims)) == ([], 3)


def test_two_at_once_never_claim_one_order_twice(shop_of):
    shop = shop_of()
    tables = [shop.table() for _ in range(3)]
    shop.orders.insert(*range(300))
    dues = shop.dues()
    together = threading.Barrier(3)

    def claim(table):
        together.wait()
        table.close(dues)

    threads = [threading.Thread(target=claim, args=(table,)) for table, _ in tables]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    taken = Counter(claim.key for _, claims in tables for claim in claims)
    for table, _ in tables:
        table.close(dues)  # what one passed by while another held it
    assert set(taken.values()) == {1}
    assert Counter(shop.orders.statuses()) == {"closing": 300}


def test_a_payment_a_move_and_another_deadline_are_not_claimed(shop_of, database):
    shop = shop_of()
    table, claims = shop.table()
    shop.orders.insert(1, 2, 3, 4)
    dues = shop.dues()
    shop.connection.execute("UPDATE orders SET status = 'paid' WHERE id = 1")
    shop.connection.execute("UPDATE orders SET version = 1 WHERE id = 2")
    shop.connection.execute("UPDATE orders SET expires_at = expires_at - interval '1 s' WHERE id = 3")
    with database.connect(autocommit=False) as payer:
        payer.execute("UPDATE orders SET status = 'paid' WHERE id = 4")
        assert outcomes(table.close(dues)) == {Outcome.PAID: 1, Outcome.MOVED: 2, Outcome.LOCKED: 1}
    assert (claims, shop.kept()) == ([], [])


def test_a_success_is_recorded_under_its_claim_and_no_other(shop_of):
    shop = shop_of(changes={"closed_at": "clock_timestamp()"})
    table, claims = shop.table()
    shop.orders.insert(1, 2)
    shop.claim(table)
    first, second = claims
    assert shop.connection.execute("SELECT count(closed_at) FROM orders").fetchone() == (0,)
    stranger = second._replace(claim_id="00000000-0000-0000-0000-000000000000")
    recorded = table.record_closed([Ended(first), Ended(stranger)])
    ((closed,), overtaken, fenced, refused, held) = recorded
    assert (closed.key, closed.version, overtaken, fenced, refused, held) == (1, 2, 0, 1, [], [])
    assert closed.lateness_us >= 1_000_000
    assert (shop.row(1), shop.row(2)) == (("expired", 2), ("closing", 1))
    assert shop.connection.execute("SELECT id FROM orders WHERE closed_at IS NOT NULL").fetchall() == [(1,)]
    assert table.record_closed([Ended(first)]).fenced == 1, "once"
    assert [row[0] for row in shop.kept()] == ["2"]


def test_a_silent_claim_is_taken_over_and_its_late_finisher_fenced_off(shop_of):
    shop = shop_of()
    slow, late = shop.table(stuck_after_s=0.0)
    quick, _ = shop.table()
    shop.orders.insert(1, 2)
    shop.claim(slow)
    taken, stuck = quick.take_over(10)
    assert stuck == 2
    assert {claim.idempotency_key for claim in taken} == {claim.idempotency_key for claim in late}
    assert {claim.attempt for claim in taken} == {1}, "an attempt of unknown end is made once more"
    assert slow.record_closed([Ended(late[0])]).fenced == 1
    assert slow.record_retry([Ended(late[0], "HTTP 503", 0.0)]) == 1
    assert slow.record_failed([Ended(late[0], "HTTP 400")]).fenced == 1
    slow.hand_back([Ended(late[0])])
    assert shop.orders.statuses() == ["closing", "closing"]
    assert len(quick.record_closed([Ended(claim) for claim in taken]).closed) == 2
    assert (shop.orders.statuses(), shop.kept()) == (["expired", "expired"], [])
    assert quick.take_over(10) == ([], 0)


def test_a_claim_that_is_held_is_not_taken(shop_of):
    shop = shop_of()
    table, claims = shop.table(stuck_after_s=300)
    shop.orders.insert(1)
    shop.claim(table)
    assert shop.table()[0].take_over(10) == ([], 0)
    table.hand_back([Ended(claims[0])])
    ((taken,), stuck) = shop.table()[0].take_over(10)
    assert (taken.attempt, stuck) == (1, 0), "an attempt that never began doesn't count"


def test_a_retry_waits_its_time_and_says_the_same(shop_of):
    shop = shop_of()
    table, claims = shop.table()
    shop.orders.insert(1, 2, version=7)
    shop.claim(table)
    table.record_retry([Ended(claims[0], "HTTP 503", 0.0), Ended(claims[1], "HTTP 429", 3600.0)])
    assert [(key, claim_id, error) for key, claim_id, _, error, _ in shop.kept()] == [
        ("1", None, "HTTP 503"), ("2", None, "HTTP 429"),
    ]  # fmt: skip
    ((taken,), stuck) = table.take_over(10)
    assert (taken.key, taken.attempt, stuck) == (claims[0].key, 2, 0)
    watched = shop.orders.watched
    assert body_of(watched, taken) == body_of(watched, claims[0])
    assert taken.idempotency_key == claims[0].idempotency_key
    assert taken.claim_id != claims[0].claim_id


def test_what_waits_for_later_is_not_looked_at(shop_of):
    shop = shop_of()
    table, _ = shop.table()
    shop.connection.execute("CREATE INDEX ON cdcwatch.claims (relation, next_at)")
    shop.connection.execute(
        "INSERT INTO cdcwatch.claims SELECT 'orders', n::text, NULL, gen_random_uuid(), 1, now(), now() + interval '1 h',"
        " now(), 'pending', 0, '' FROM generate_series(1, 20000) n; ANALYZE cdcwatch.claims"
    )
    parameters = {"claim": "00000000-0000-0000-0000-000000000000", "stuck_after_s": 300, "rows": 200}
    plan = shop.connection.execute("EXPLAIN " + table._claiming.take_over, parameters).fetchall()
    assert any("Index Cond:" in line and "next_at <= statement_timestamp()" in line for (line,) in plan), plan


def test_what_left_the_processing_status_is_somebody_elses(shop_of):
    shop = shop_of()
    table, claims = shop.table(stuck_after_s=0.0)
    shop.orders.insert(1, 2, 3)
    shop.claim(table)
    shop.connection.execute("UPDATE orders SET status = 'paid' WHERE id = 1; DELETE FROM orders WHERE id = 2")
    recorded = table.record_closed([Ended(claim) for claim in claims if claim.key == 1])
    assert (recorded.closed, recorded.overtaken, recorded.fenced) == ([], 1, 0)
    taken, _ = table.take_over(10)
    assert [claim.key for claim in taken] == [3]
    assert [row[0] for row in shop.kept()] == ["3"], "the claim of what is gone is let go"
    assert shop.row(1) == ("paid", 1)


def test_an_order_put_back_by_hand_is_claimed_anew(shop_of):
    shop = shop_of()
    table, claims = shop.table()
    shop.orders.insert(1)
    shop.claim(table)
    table.record_retry([Ended(claims[0], "HTTP 503", 0.0)])
    shop.connection.execute("UPDATE orders SET status = 'pending', version = version + 1")
    assert shop.claim(table).claimed == [1]
    assert len(claims) == 2
    assert (claims[1].attempt, claims[1].idempotency_key) == (1, claims[0].idempotency_key)
    assert table.record_closed([Ended(claims[0])]).fenced == 1
    assert len(table.record_closed([Ended(claims[1])]).closed) == 1


KEYS = [
    (((Column("id", "bigint")),), [1, 2]),
    ((Column("id", "uuid"),), ["7ed68767-5f79-5a2b-a31b-9e4bd7aaa9b5", "00000000-0000-0000-0000-000000000001"]),
    ((Column("id", "character(5)"),), ["a", "b'c"]),
    ((Column("id", "timestamp with time zone"),), ["2026-11-30 10:15:00.5+00", "infinity"]),
    ((Column("sh op", "text"), Column("id", "numeric(12,2)")), [('a"é', "1.50"), ("%s", "2")]),
    ((Column("id", "bytea"),), [b"\x00\xff", b"b"]),
]


@pytest.mark.parametrize(("key", "values"), KEYS, ids=lambda given: str(given[0]))
def test_keys_of_every_kind_go_all_the_way(shop_of, key, values):
    shop = shop_of(key=key)
    table, claims = shop.table(stuck_after_s=0.0)
    shop.orders.insert(*values)
    assert len(shop.claim(table).claimed) == 2
    taken, _ = table.take_over(10)
    assert {claim.key for claim in taken} == {claim.key for claim in claims}
    table.record_retry([Ended(taken[0], "HTTP 503", 0.0)])
    assert len(table.record_closed([Ended(taken[1])]).closed) == 1
    taken, _ = table.take_over(10)
    assert table.record_failed([Ended(taken[0], "HTTP 400")]) == ([], 0, 0, [], [])
    assert sorted(shop.orders.statuses()) == ["close_failed", "expired"]
    assert shop.kept() == []


@pytest.mark.parametrize("kind", ["enum", "integer", "no version", "local times"])
def test_tables_as_they_are(shop_of, database, kind):
    if kind == "enum":
        with database.connect() as connection:
            connection.execute("CREATE TYPE state AS ENUM ('pending', 'closing', 'close_failed', 'expired')")
        shop = shop_of(status=Column("status", "state"))
    elif kind == "no version":
        shop = shop_of(version=None)
    elif kind == "local times":
        shop = shop_of(deadline_type="timestamp without time zone", zone="UTC")
        shop.connection.execute("SET timezone = 'UTC'")
    else:
        shop = shop_of(version=Column("version", "bigint"))
    table, claims = shop.table()
    shop.orders.insert(1, 2)
    assert len(shop.claim(table).claimed) == 2
    assert len(table.record_closed([Ended(claims[0])]).closed) == 1
    table.record_failed([Ended(claims[1], "HTTP 400")])
    assert sorted(shop.orders.statuses()) == ["close_failed", "expired"]


def test_also_runs_with_the_last_step_and_what_it_refuses_stands_alone(shop_of):
    shop = shop_of(
        also="INSERT INTO released SELECT id, version FROM closed; SELECT 1", changes={"closed_at": "clock_timestamp()"}
    )
    shop.connection.execute("CREATE TABLE released (id bigint CHECK (id <> 3), version int)")
    table, claims = shop.table()
    shop.orders.insert(*range(1, 6))
    shop.claim(table)
    assert shop.connection.execute("SELECT count(*) FROM released").fetchone() == (0,)
    recorded = table.record_closed([Ended(claim) for claim in claims])
    assert sorted(closed.key for closed in recorded.closed) == [1, 2, 4, 5]
    (refused,) = recorded.refused
    assert (refused.claim.key, "23514" in refused.error) == (3, True)
    assert shop.connection.execute("SELECT * FROM released ORDER BY id").fetchall() == [(n, 2) for n in (1, 2, 4, 5)]
    assert [row[0] for row in shop.kept()] == ["3"]


def test_a_row_that_others_hold_is_recorded_later(shop_of, database):
    shop = shop_of()
    table, claims = shop.table()
    shop.orders.insert(1, 2)
    shop.claim(table)
    table._connection.execute("SET lock_timeout = '50ms'")
    with database.connect(autocommit=False) as other:
        other.execute("SELECT FROM orders WHERE id = 2 FOR UPDATE")
        recorded = table.record_closed([Ended(claim) for claim in claims])
        assert [closed.key for closed in recorded.closed] == [1]
        assert [one.claim.key for one in recorded.held] == [2]
        other.rollback()
    assert len(table.record_closed(recorded.held).closed) == 1


def test_without_its_table_or_a_right_it_says_which(shop_of, database):
    shop = shop_of()
    shop.connection.execute("DROP TABLE cdcwatch.claims")
    with pytest.raises(PreconditionError, match="there is no table"):
        shop.table()


def test_without_room_nothing_is_claimed(shop_of):
    shop = shop_of()
    shop.table()
    table, claims = shop.table(room=lambda: False)
    shop.orders.insert(1)
    assert outcomes(shop.claim(table)) == {Outcome.DEFERRED: 1}
    assert (claims, shop.orders.statuses()) == ([], ["pending"])


# -- the threads -----------------------------------------------------------------------------------------------------


class Seen(NoObserver):
    def __init__(self):
        self.outcomes, self.answers, self.letters = Counter(), Counter(), 0

    def batch_settled(self, outcomes, lateness_us, batch_us):
        self.outcomes.update(outcomes)

    def called(self, answer, call_us):
        self.answers[answer] += 1

    def given_up(self, count):
        self.letters += count


class Running:
    """Errands on a shop, of an instance of its own."""

    def __init__(self, shop, url, *, concurrency=4, attempts=8, stuck_after_s=300.0, timeout_s=5.0, batch_rows=200):
        self.seen = Seen()
        outside = HttpOutside(url, partial(body_of, shop.orders.watched), connections=concurrency, timeout_s=timeout_s)
        self.errands = Errands(
            outside, SystemClock(), self.seen, concurrency=concurrency, batch_rows=batch_rows, attempts=attempts,
            newest_start_s=stuck_after_s - timeout_s, failed_status="close_failed",
        )  # fmt: skip
        takes = Takes(self.errands.claimed, self.errands.wait_for_room)
        options = {"stuck_after_s": stuck_after_s, "takes": takes}

        def make():
            return ClaimTable(shop._database.dsn, shop.orders.watched, SystemClock(), **options)

        self.table = make()
        self.table.connect()
        shop.opened.append(self.table)
        self.errands.start(make)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        assert self.errands.stop(WAIT_S)


@pytest.fixture
def endpoint():
    with Endpoint().serving() as endpoint:
        yield endpoint


def test_claimed_orders_are_called_and_closed_over_few_connections(shop_of, endpoint):
    shop = shop_of()
    shop.orders.insert(*range(1, 301), version=2)
    with Running(shop, endpoint.url) as running:
        while dues := shop.dues():
            running.table.close(dues[:100])
        wait_until(lambda: not len(running.errands), WAIT_S, "all are recorded")
    assert Counter(shop.orders.statuses()) == {"expired": 300}
    assert (running.seen.outcomes, running.seen.answers) == ({Outcome.CLOSED: 300}, {Result.SUCCEEDED: 300})
    assert endpoint.effects == {str(n): 1 for n in range(1, 301)}
    assert endpoint.connections <= 4
    request = endpoint.requests[0]
    assert request.headers["content-type"] == "application/json"
    assert (request.body["status"], request.body["version"], request.body["table"]) == ("pending", 2, "public.orders")
    assert request.body["deadline"].endswith("Z")


def test_a_passing_failure_is_tried_again_with_the_same_key_and_body(shop_of, endpoint):
    shop = shop_of()
    shop.orders.insert(1, 2)
    said = {
        "1": [Answer(503, {"retry-after": "0"}), Answer(429), Answer(200)],
        "2": [Answer(409), Answer(204, {}, b"")],
    }
    endpoint.answer = lambda request: said[request.order].pop(0)
    with Running(shop, endpoint.url) as running:
        running.table.close(shop.dues())
        wait_until(lambda: shop.orders.statuses() == ["expired"] * 2, WAIT_S, "closed after all")
    assert (endpoint.effects, len(endpoint.requests)) == ({"1": 1, "2": 1}, 5)
    assert len({(request.key, json.dumps(request.body)) for request in endpoint.requests}) == 2
    assert running.seen.answers == {Result.FAILED: 3, Result.SUCCEEDED: 2}


def test_a_refusal_and_the_last_attempt_end_in_the_failed_status(shop_of, endpoint):
    shop = shop_of()
    shop.orders.insert(1, 2, 3)
    answers = {"1": Answer(422), "2": Answer(500), "3": Answer(302, {"location": "http://127.0.0.1:1/"})}
    endpoint.answer = lambda request: answers[request.order]
    with Running(shop, endpoint.url, attempts=2) as running:
        running.table.close(shop.dues())
        wait_until(lambda: running.seen.letters == 3, WAIT_S, "all are given up")
    assert shop.orders.statuses() == ["close_failed"] * 3
    assert Counter(request.order for request in endpoint.requests) == {"1": 1, "2": 2, "3": 2}
    assert shop.kept() == []


@pytest.mark.parametrize("how", ["silent", "cut", "nobody"])
def test_no_answer_is_a_failed_attempt(shop_of, endpoint, how):
    shop = shop_of()
    shop.orders.insert(1)
    url, go_on = endpoint.url, threading.Event()

    def silent(_):
        go_on.wait(WAIT_S)
        return Answer()

    def cut(_):
        raise ConnectionResetError

    endpoint.answer = silent if how == "silent" else cut
    if how == "nobody":
        url = "http://127.0.0.1:1/"
    with Running(shop, url, timeout_s=0.3) as running:
        running.table.close(shop.dues())
        wait_until(lambda: running.seen.answers[Result.FAILED] >= 1, WAIT_S, "it failed")
        wait_until(lambda: any("no answer (" in row[3] for row in shop.kept()), WAIT_S, "it is recorded")
        go_on.set()
        endpoint.answer = lambda _: Answer()
        if how != "nobody":
            wait_until(lambda: shop.orders.statuses() == ["expired"], WAIT_S, "closed after all")
    assert endpoint.effects == ({} if how == "nobody" else {"1": 1})


def test_a_stop_ends_the_calls_under_way_and_hands_back_the_others(shop_of, endpoint):
    shop = shop_of()
    shop.orders.insert(*range(1, 11))
    go_on = threading.Event()

    def waits(_):
        go_on.wait(WAIT_S)
        return Answer()

    endpoint.answer = waits
    with Running(shop, endpoint.url, concurrency=2) as running:
        running.table.close(shop.dues())
        wait_until(lambda: len(endpoint.requests) == 2, WAIT_S, "two are called")
        ended = []
        stopping = threading.Thread(target=lambda: ended.append(running.errands.stop(WAIT_S)))
        stopping.start()
        wait_until(lambda: sum(row[1] is None for row in shop.kept()) == 8, WAIT_S, "eight are handed back")
        go_on.set()
        stopping.join()
        assert ended == [True]
    assert Counter(shop.orders.statuses()) == {"expired": 2, "closing": 8}
    with Running(shop, endpoint.url):
        wait_until(lambda: Counter(shop.orders.statuses()) == {"expired": 10}, WAIT_S, "the next takes them up")
    assert set(endpoint.effects.values()) == {1}
    assert len(endpoint.requests) == 10


def test_a_process_that_died_between_answer_and_record_has_one_effect(shop_of, endpoint):
    """Played by one that calls and never records."""
    shop = shop_of()
    dead, claims = shop.table(stuck_after_s=1.0)
    shop.orders.insert(1, 2)
    shop.claim(dead)
    outside = HttpOutside(endpoint.url, partial(body_of, shop.orders.watched), connections=1, timeout_s=5)
    assert {outside.call(claim).answer for claim in claims} == {Result.SUCCEEDED}
    with Running(shop, endpoint.url, stuck_after_s=10.0) as running:
        wait_until(lambda: shop.orders.statuses() == ["expired"] * 2, WAIT_S, "another records it")
        assert dead.record_closed([Ended(claim) for claim in claims]).fenced == 2
    assert endpoint.effects == {"1": 1, "2": 1}
    assert len(endpoint.requests) == 4
    assert running.seen.outcomes == {Outcome.CLOSED: 2}
    outside.close()


def test_answers_wait_for_a_database_that_is_away(shop_of, endpoint):
    shop = shop_of()
    shop.orders.insert(*range(1, 21))
    with Running(shop, endpoint.url) as running:
        shop.claim(running.table)
        shop.connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
            " AND pid <> pg_backend_pid()"
        )
        wait_until(lambda: Counter(shop.orders.statuses()) == {"expired": 20}, WAIT_S, "all are recorded")
        wait_until(lambda: not len(running.errands), WAIT_S, "and let go")
    assert len(endpoint.requests) == 20
    assert shop.kept() == []


def test_answers_wait_for_a_table_that_is_away(shop_of, endpoint):
    shop = shop_of()
    shop.orders.insert(1)
    go_on = threading.Event()
    endpoint.answer = lambda _: Answer(200 if go_on.wait(WAIT_S) else 500)
    with Running(shop, endpoint.url) as running:
        shop.claim(running.table)
        shop.connection.execute("ALTER TABLE cdcwatch.claims RENAME TO elsewhere")
        go_on.set()
        wait_until(lambda: "cdcwatch.claims" in running.errands.last_error, WAIT_S, "it says what is missing")
        assert len(running.errands) == 1
        shop.connection.execute("ALTER TABLE cdcwatch.elsewhere RENAME TO claims")
        wait_until(lambda: shop.orders.statuses() == ["expired"], WAIT_S, "recorded")
        wait_until(lambda: not running.errands.last_error, WAIT_S, "all is well")
    assert len(endpoint.requests) == 1


def test_a_failed_status_that_the_table_refuses_waits_for_another_attempt(shop_of, endpoint):
    shop = shop_of()
    shop.connection.execute("ALTER TABLE orders ADD CONSTRAINT refused CHECK (status <> 'close_failed')")
    shop.orders.insert(1)
    endpoint.answer = lambda _: Answer(422)
    with Running(shop, endpoint.url) as running:
        running.table.close(shop.dues())
        wait_until(lambda: any("constraint refused" in row[3] for row in shop.kept()), WAIT_S, "it waits")
        shop.connection.execute("ALTER TABLE orders DROP CONSTRAINT refused")
        wait_until(lambda: shop.orders.statuses() == ["close_failed"], WAIT_S, "given up after all")
    assert running.seen.letters == 1


def test_an_ipv6_address_is_read():
    outside = HttpOutside("https://[::1]:8443/a?b=1", lambda _: b"", connections=1, timeout_s=1)
    assert (outside.scheme, outside.host, outside._pool.port) == ("https", "[::1]", 8443)
    for wrong in ("https://", "http://host:port/", "mailto:shop@example.com"):
        with pytest.raises(ConfigurationError, match=r"close\.claim\.url"):
            HttpOutside(wrong, lambda _: b"", connections=1, timeout_s=1)


def test_a_password_in_the_address_is_sent_and_never_told(shop_of, endpoint):
    shop = shop_of()
    shop.orders.insert(1)
    url = endpoint.url.replace("http://", "http://shop:s%40cret@")
    with Running(shop, url) as running:
        running.table.close(shop.dues())
        wait_until(lambda: shop.orders.statuses() == ["expired"], WAIT_S, "closed")
    assert endpoint.requests[0].headers["authorization"] == "Basic c2hvcDpzQGNyZXQ="


def test_due_orders_alone_are_claimed(shop_of):
    shop = shop_of()
    table, claims = shop.table()
    shop.orders.insert(1, due_in_s=3600)
    (due,) = shop.dues()
    assert outcomes(table.close([due])) == {Outcome.NOT_DUE: 1}
    assert outcomes(table.close([Due(1, due.deadline_us - 7_200_000_000, 0)])) == {Outcome.MOVED: 1}
    assert claims == []
