"""What every level of the record of handled events does, asked of all three of them."""

from __future__ import annotations

import threading
import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest

from cdcwatch.consume import Claim, Identity, MemoryStore, PostgresStore, RedisStore, Verdict
from cdcwatch.errors import ConfigurationError, PreconditionError, UnavailableError
from tests import services
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdcwatch.consume import Store

OURS, BUSY, COMPLETED, GIVEN_UP = Verdict.OURS, Verdict.BUSY, Verdict.COMPLETED, Verdict.GIVEN_UP
A, B, C = (Identity("/shop", letter) for letter in "abc")
LONG = 600.0


@pytest.fixture(scope="module")
def prepared(postgres: services.Postgres) -> Iterator[services.Database]:
    """A database with the table; each test is a group of its own."""
    with services.fresh_database(postgres) as database:
        store = PostgresStore(database.dsn)
        store.install()
        store.close()
        yield database


@pytest.fixture(params=["memory", "redis", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[Any]:
    made: Store
    if request.param == "memory":
        made = MemoryStore()
    elif request.param == "redis":
        made = RedisStore(request.getfixturevalue("redis_server").url, prefix=request.getfixturevalue("stream"))
    else:
        made = PostgresStore(request.getfixturevalue("prepared").dsn)
    made.open(uuid.uuid4().hex)
    yield made
    made.close()


def verdicts(claims: list[Claim]) -> list[Verdict]:
    return [claim.verdict for claim in claims]


def test_an_event_is_one_owners_until_it_is_completed(store: Store) -> None:
    assert store.begin([A, B], "me", LONG) == [Claim(OURS, 1), Claim(OURS, 1)]
    # The answer may have been lost: asked again it is the same attempt.
    assert store.begin([A, B], "me", LONG) == [Claim(OURS, 1), Claim(OURS, 1)]
    (other,) = store.begin([A], "other", LONG)
    assert other.verdict is BUSY
    assert LONG - 60 * PATIENCE < other.wait_s <= LONG
    assert store.known([A, B, C]) == set()
    assert store.complete([A], "me") == set()
    assert store.known([A, B, C]) == {A}
    assert verdicts(store.begin([B, A, C], "other", LONG)) == [BUSY, COMPLETED, OURS]
    assert store.complete([A], "me") == set()  # once more, as after a lost answer


def test_who_was_taken_over_neither_completes_nor_fails_nor_releases(store: Store) -> None:
    assert store.begin([A], "dead", 0) == [Claim(OURS, 1)]
    time.sleep(0.002)  # Redis counts milliseconds
    assert store.begin([A], "me", LONG) == [Claim(OURS, 2, is_takeover=True)]
    assert store.renew([A], "dead", LONG) == {A}
    assert store.renew([A], "me", LONG) == set()
    store.fail(A, "dead", "ValueError", is_given_up=True)
    store.release([A], "dead")
    assert store.complete([A], "dead") == {A}
    assert store.begin([A], "third", LONG)[0].verdict is BUSY
    assert store.complete([A], "me") == set()
    store.fail(A, "dead", "ValueError", is_given_up=True)
    assert store.begin([A], "third", LONG)[0].verdict is COMPLETED


def test_a_renewed_lease_does_not_run_out(store: Store) -> None:
    store.begin([A], "me", 0)
    assert store.renew([A, B], "me", LONG) == {B}
    assert store.begin([A], "other", LONG)[0].verdict is BUSY


def test_attempts_are_counted_where_they_begin_and_not_where_nothing_began(store: Store) -> None:
    store.begin([A], "me", LONG)
    store.fail(A, "me", "ValueError", is_given_up=False)
    assert store.known([A]) == set()
    assert store.begin([A], "other", LONG) == [Claim(OURS, 2)]
    store.release([A, B], "other")
    assert store.begin([A], "me", LONG) == [Claim(OURS, 2)]
    store.release([A], "me")
    store.release([A], "me")
    assert store.begin([A], "me", LONG) == [Claim(OURS, 2)]
    store.fail(A, "me", "ValueError", is_given_up=True)
    assert store.begin([A], "me", LONG)[0].verdict is GIVEN_UP
    assert store.known([A]) == {A}
    # A first attempt that was released is a first one still.
    store.begin([B], "me", LONG)
    store.release([B], "me")
    assert store.begin([B], "other", LONG) == [Claim(OURS, 1)]


def test_what_is_forgotten_is_new(store: Store) -> None:
    store.begin([A], "me", LONG)
    store.fail(A, "me", "ValueError", is_given_up=True)
    assert store.forget([A, B]) == 1
    assert store.forget([A, B]) == 0
    assert store.begin([A], "me", LONG) == [Claim(OURS, 1)]


def test_a_record_that_is_gone_is_completed_all_the_same(store: Store) -> None:
    store.begin([A], "me", LONG)
    store.forget([A])  # as an emptied Redis
    assert store.complete([A], "me") == set()
    assert store.begin([A], "other", LONG)[0].verdict is COMPLETED


ODD = [
    Identity("a", "b:c"),
    Identity("a:b", "c"),
    Identity("a", 'b"],["c'),
    Identity("\0", "\0"),
    Identity("{x}", "{y}"),
    Identity("ü" * 3000, "id"),
    Identity("ü" * 3000, "other"),
    Identity("", "Ü\u2028'\\\t%s"),
]


def test_any_text_is_an_identity_of_its_own(store: Store) -> None:
    assert store.begin(ODD, "me", LONG) == [Claim(OURS, 1)] * len(ODD)
    assert store.complete(ODD[::2], "me") == set()
    assert store.known(ODD) == set(ODD[::2])
    assert store.renew(ODD[1::2], "me", LONG) == set()


def test_many_at_once_come_back_in_their_order(store: Store) -> None:
    many = [Identity("/shop", f"{number * 7919 % 1000}") for number in range(1000)]
    store.begin(many[::3], "other", LONG)
    assert verdicts(store.begin(many, "me", LONG)) == [OURS if place % 3 else BUSY for place in range(1000)]
    assert store.begin([], "me", LONG) == []
    assert store.complete([], "me") == store.known([]) == set()


def test_of_many_who_want_it_at_once_one_gets_it(store: Store) -> None:
    won: list[tuple[str, Identity]] = []
    start = threading.Barrier(6)

    def want(owner: str, identities: list[Identity]) -> None:
        start.wait()
        for identity, claim in zip(identities, store.begin(identities, owner, LONG), strict=True):
            if claim.verdict is OURS:
                won.append((owner, identity))

    wanted = [Identity("/shop", str(number)) for number in range(50)]
    threads = [
        threading.Thread(target=want, args=(str(number), wanted if number % 2 else wanted[::-1])) for number in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(identity for _, identity in won) == sorted(wanted)


@pytest.mark.parametrize("store", ["memory", "redis"], indirect=True)
def test_what_a_deeper_level_decided_is_remembered(store: Store) -> None:
    store.begin([A], "me", LONG)
    store.remember([A, B])
    assert store.known([A, B, C]) == {A, B}


# -- what only some of them have ---------------------------------------------------------------------------------------


def test_memory_is_bounded_by_count_and_age_but_keeps_what_is_in_hand() -> None:
    now_s = 0.0
    store = MemoryStore(most_events=3, keep_s=10, clock=lambda: now_s)
    ids = [Identity("/shop", str(number)) for number in range(6)]
    store.begin([A], "me", LONG)
    store.complete(ids, "me")
    assert store.known(ids) == set(ids[3:])
    assert len(store) == 3
    now_s = 9.9
    store.complete([B], "me")
    assert store.known([B, *ids]) == {B, ids[4], ids[5]}
    now_s = 10.0
    assert store.known([B, *ids]) == {B}
    assert store.begin([A], "other", LONG)[0].verdict is BUSY
    now_s = 15.0
    assert store.purge(5.0) == 1
    # Failed ones that nobody comes back for don't pile up either.
    for identity in ids:
        store.begin([identity], "me", LONG)
        store.fail(identity, "me", "ValueError", is_given_up=False)
    assert len(store._open) <= 3
    assert store.begin([A], "other", LONG)[0].verdict is BUSY


@pytest.mark.parametrize("store", ["redis", "postgres"], indirect=True)
def test_groups_do_not_see_each_other(store: Store) -> None:
    store.begin([A], "me", LONG)
    store.complete([A], "me")
    store.open("others")
    assert store.begin([A], "me", LONG) == [Claim(OURS, 1)]


@pytest.mark.parametrize("store", ["redis", "postgres"], indirect=True)
def test_two_of_them_share_what_they_know(store: Store, request: pytest.FixtureRequest) -> None:
    other: Store
    if isinstance(store, RedisStore):
        other = RedisStore(request.getfixturevalue("redis_server").url, prefix=request.getfixturevalue("stream"))
    else:
        other = PostgresStore(request.getfixturevalue("prepared").dsn)
    store.open("shared")
    other.open("shared")
    store.begin([A, B], "me", LONG)
    store.complete([A], "me")
    assert verdicts(other.begin([A, B], "other", LONG)) == [COMPLETED, BUSY]
    other.close()


def test_redis_forgets_after_a_while(redis_server: services.Redis, stream: str) -> None:
    store = RedisStore(redis_server.url, prefix=stream, keep_s=0.001)
    store.open("tests")
    store.complete([A], "me")
    time.sleep(0.01)
    assert store.begin([A], "me", LONG) == [Claim(OURS, 1)]
    store.close()


def test_postgres_purges_what_is_old_in_batches(database: services.Database) -> None:
    store = PostgresStore(database.dsn, keep_s=3600)
    store.install()
    store.install()  # again: nothing changes
    with pytest.raises(PreconditionError):
        store.purge()
    store.open("tests")
    ids = [Identity("/shop", str(number)) for number in range(25)]
    store.begin([*ids, A, B, C], "me", LONG)
    store.complete(ids, "me")
    store.fail(A, "me", "ValueError", is_given_up=True)
    store.fail(B, "me", "ValueError", is_given_up=False)
    with database.connect() as connection:
        connection.execute("UPDATE cdcwatch.processed_events SET changed_at = now() - interval '1 day'")
        store.complete(ids[:3], "me")
        connection.execute("INSERT INTO cdcwatch.processed_events SELECT 'others', source, event_id, state, attempts,"
                           " owner, lease_until, last_error, is_given_up, changed_at FROM cdcwatch.processed_events")  # fmt: skip
        assert store.purge(86_400 * 2) == 0
        assert store.purge(batch_rows=10) == 23
        left = connection.execute(
            "SELECT consumer, state, count(*) FROM cdcwatch.processed_events GROUP BY 1, 2"
        ).fetchall()
    assert sorted(left) == [
        ("others", "completed", 25),
        ("others", "failed", 2),
        ("others", "processing", 1),
        ("tests", "completed", 3),
        ("tests", "failed", 1),
        ("tests", "processing", 1),
    ]
    store.close()


def test_what_is_missing_is_told_with_its_remedy(database: services.Database, role: str) -> None:
    store = PostgresStore(database.dsn)
    with pytest.raises(PreconditionError, match=r"no table cdcwatch\.processed_events") as told:
        store.open("tests")
    assert "sql/install_consume.sql" in told.value.remedy
    store.install()
    store.open("tests")
    store.close()
    weak = PostgresStore(f"{database.dsn} user={role}")
    with pytest.raises(PreconditionError):
        weak.open("tests")
    weak.close()
    with pytest.raises(ConfigurationError):
        RedisStore("http://nowhere")


def test_a_level_that_is_away_says_so() -> None:
    gone: list[Store] = [
        RedisStore("redis://me:secret@127.0.0.1:1/0"),
        PostgresStore("host=127.0.0.1 port=1 password=secret"),
    ]
    for store in gone:
        with pytest.raises(UnavailableError):
            store.open("tests")
        with pytest.raises(UnavailableError, match=r"127\.0\.0\.1.*1.*refused") as told:
            store.begin([A], "me", LONG)
        assert "secret" not in str(told.value)
        store.close()
