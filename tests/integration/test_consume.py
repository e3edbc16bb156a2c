"""`cdcwatch.consume` on real servers: what is repeated, what fails, who comes and goes."""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import redis
from prometheus_client import CollectorRegistry, generate_latest

from cdcwatch.consume import (
    BusyError,
    Claim,
    Event,
    Identity,
    MemoryStore,
    PostgresStore,
    RedisStore,
    TryAgain,
    Verdict,
    batch,
    each,
)
from cdcwatch.errors import ConfigurationError, PreconditionError
from tests.consuming import Effects, Feed, committed, consumer_of, group_name, length, running, said
from tests.services import Database, create_topic
from tests.topic import read_topic
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests import services

EFFECTS = "CREATE TABLE effects (event text NOT NULL, done_at timestamptz NOT NULL DEFAULT clock_timestamp())"


def effects_in(database: services.Database) -> list[str]:
    with database.connect() as connection:
        return [name for (name,) in connection.execute("SELECT event FROM effects ORDER BY event").fetchall()]


@pytest.fixture
def store(database: services.Database) -> Iterator[PostgresStore]:
    with database.connect() as connection:
        connection.execute(EFFECTS)
    made = PostgresStore(database.dsn)
    made.install()
    yield made
    made.close()


def test_every_kind_of_record_of_a_foreign_topic(
    kafka: services.Kafka, topic: str, store: PostgresStore, redis_server: services.Redis, stream: str, caplog: Any
) -> None:
    """Structured, binary, repeated, no event, tombstone, poison: on all three levels, with a batch handler."""
    group, effects, registry = group_name(), Effects(), CollectorRegistry()
    seen: dict[str, Event] = {}
    feed = Feed(kafka, topic)
    feed.tell(["a", "b", "a"], partition=0)
    feed.write(b"secret words", key="k", partition=0, headers={"trace": "t"})
    feed.write(None, key="b", partition=0)
    binary = {"ce_specversion": "1.0", "ce_id": "bin", "ce_source": "/else", "ce_type": "x", "ce_time": "2026-11-30T10:15:00.1234567+01:00"}  # fmt: skip
    feed.write(b'{"n": 1}', partition=0, headers={**binary, "ce_tenant": "7", "content-type": "application/json"})
    feed.write(said("poison", word="secret"), key="p", partition=0, headers={"trace": "u"})
    feed.tell(["c", "bin", "a"], partition=0)
    feed.tell(["a", "d"], partition=1)
    feed.flush()

    def handle(events: Sequence[Event]) -> None:
        if any(event.id == "poison" for event in events):
            raise ValueError("secret words")
        for event in events:
            effects.add(event)
            seen[f"{event.source}:{event.id}"] = event

    stores = [MemoryStore(), RedisStore(redis_server.url, prefix=stream), store]
    consumer = consumer_of(
        kafka, topic, group, handler=batch(handle), stores=stores, tries=3, registry=registry, lease_s=5
    )
    with running(consumer):
        wait_until(lambda: consumer.stats().total == 10, 30, "all is settled", every_s=0.05)
        wait_until(lambda: committed(kafka, topic, group) == 12, 20, "all is committed", every_s=0.2)
    assert effects.of == {"a": 1, "b": 1, "c": 1, "d": 1, "bin": 2}, "an id of another source is another event"
    event = seen["/else:bin"]
    assert (event.data, event.extensions, event.data_content_type) == ({"n": 1}, {"tenant": "7"}, "application/json")
    assert event.time is not None
    assert event.time.isoformat() == "2026-11-30T09:15:00.123456+00:00"
    stats = consumer.stats()
    assert (stats.handled, stats.duplicates, stats.dead_letters, stats.skipped) == (6, 3, 2, 1)
    page = generate_latest(registry).decode()
    assert f'cdcwatch_consume_duplicate_ratio{{group="{group}"}} 0.3' in page
    assert f'cdcwatch_consume_store_up{{group="{group}",store="redis"}} 1.0' in page
    letters = read_topic(kafka.bootstrap_servers, f"{topic}.{group}.dead")
    assert [(letter.key, letter.value) for letter in letters] == [
        (b"k", b"secret words"),
        (b"p", said("poison", word="secret")),
    ]
    told = [{name: value.decode() for name, value in letter.headers} for letter in letters]
    where = {"dead_topic": topic, "dead_partition": "0", "dead_group": group}
    assert told == [
        {"trace": "t", **where, "dead_offset": "3", "dead_attempts": "0",
         "dead_error": "neither JSON nor headers of a CloudEvent"},
        {"trace": "u", **where, "dead_offset": "6", "dead_attempts": "3", "dead_error": "ValueError"},
    ]  # fmt: skip
    assert "secret" not in caplog.text

    # Another process of the group, with an empty memory and from the beginning: all of it was handled before.
    again = consumer_of(
        kafka, topic, group_name(), handler=each(effects.add), stores=[MemoryStore(), store], types={"thing.happened"}
    )
    again._levels.open = lambda _: store.open(group)  # type: ignore[method-assign]
    with running(again):
        wait_until(lambda: again.stats().total == 9, 30, "all is heard again", every_s=0.05)
    assert sum(effects.of.values()) == 6
    assert again.stats().duplicates == 9


def test_a_rebalance_while_handlers_work_repeats_nothing(kafka: services.Kafka, topic: str, store: PostgresStore, database: services.Database, caplog: Any) -> None:  # fmt: skip
    group, effects, gate = group_name(), Effects(), threading.Event()
    names = [f"e{number}" for number in range(60)]
    Feed(kafka, topic).tell(names)

    def slow(event: Event) -> None:
        gate.wait(60)
        effects.add(event)

    caplog.set_level(logging.INFO, "cdcwatch.consume")
    first = consumer_of(kafka, topic, group, handler=each(slow), stores=[store])
    second = consumer_of(kafka, topic, group, handler=each(effects.add), stores=[PostgresStore(database.dsn)])
    with running(first):
        wait_until(
            lambda: len(first._member._crew.running() if first._member._crew else []) == 3,
            30,
            "all partitions are at work",
        )
        lanes = list(first._member._lanes.values())
        with running(second):
            wait_until(lambda: any(lane.is_ended() for lane in lanes), 30, "a partition is asked back")
            gate.set()
            wait_until(lambda: sum(effects.of.values()) >= 60, 30, "all are handled", every_s=0.05)
            wait_until(lambda: committed(kafka, topic, group) == 60, 20, "all is committed", every_s=0.2)
            assert second.stats().handled > 0
    assert effects.of == dict.fromkeys(names, 1)
    # What was finished for the rebalance was committed with it, and what was not begun was free at once.
    assert first.stats().duplicates + second.stats().duplicates == 0
    assert first.stats().taken_over + second.stats().taken_over == 0
    assert f"joined group {group}, has partitions {topic} 0 1 2" in caplog.messages
    gave = rf"gave back partitions {topic} (\d) of group {group}, has {topic} \d \d"
    (given,) = {told[1] for line in caplog.messages if (told := re.fullmatch(gave, line))}
    assert f"joined group {group}, has partitions {topic} {given}" in caplog.messages


def test_a_handler_longer_than_the_poll_interval_keeps_its_partition(kafka: services.Kafka, topic: str) -> None:
    interval_ms, group, effects = 6000, group_name(), Effects()
    store, seen = MemoryStore(), list[Verdict]()

    def long(event: Event) -> None:
        if event.id == "long":
            # The one wait for time itself: until the broker would have given the partition to others.
            until_s = time.monotonic() + interval_ms / 1000 + 1
            while time.monotonic() < until_s or not effects.of["elsewhere"]:
                threading.Event().wait(0.1)
            seen.extend(claim.verdict for claim in store.begin([event.identity], "another", 1))
        effects.add(event)

    feed = Feed(kafka, topic)
    feed.tell(["long", *map(str, range(400))], partition=0)
    consumer = consumer_of(
        kafka, topic, group, handler=each(long, size=10), stores=[store], lease_s=2,
        client={"max.poll.interval.ms": interval_ms}, queue_records=100,
    )  # fmt: skip
    with running(consumer):
        wait_until(lambda: consumer._member._paused, 30, "what can't be taken is paused")
        (lane,) = [lane for lane in consumer._member._lanes.values() if lane.waiting]
        feed.tell(["elsewhere"], partition=1)
        wait_until(lambda: len(effects.of) == 402, 30, "all are handled")
        assert lane in consumer._member._lanes.values(), "it was never taken away"
    assert set(effects.of.values()) == {1}
    # The other partition went on meanwhile.
    assert effects.order == ["elsewhere", "long", *map(str, range(400))]
    assert seen == [Verdict.BUSY], "the lease of 2 s is kept as long as the handler works"


def test_redis_alone_is_waited_for_and_below_postgres_passed_over(
    kafka: services.Kafka, topic: str, store: PostgresStore, own_redis: Any, caplog: Any
) -> None:
    feed = Feed(kafka, topic)
    alone, both = Effects(), Effects()
    with (
        running(consumer_of(kafka, topic, group_name(), handler=each(alone.add), stores=[MemoryStore(), RedisStore(own_redis.url)])) as on_redis,
        running(consumer_of(kafka, topic, group_name(), handler=each(both.add), stores=[RedisStore(own_redis.url), store])) as on_both,
    ):  # fmt: skip
        feed.tell(["a", "b"])
        wait_until(lambda: len(alone.of) == len(both.of) == 2, 30, "both are handled")
        own_redis.kill()
        feed.tell(["b", "c"])
        wait_until(lambda: on_both.stats().total == 4, 30, "PostgreSQL is asked instead")
        wait_until(lambda: on_redis.stats().away == ("redis",), 30, "without Redis nothing is handled")
        assert alone.of["c"] == 0
        assert on_both.stats().away == ("redis",)
        own_redis.start()
        wait_until(lambda: alone.of["c"] == 1, 30, "Redis is back")
        # Emptied: the durable level knows. Redis alone can't, and its memory above it does until it forgets.
        with redis.Redis.from_url(own_redis.url) as emptied:
            emptied.flushall()
        feed.tell(["a", "b", "c", "d"])
        wait_until(lambda: on_both.stats().total == 8 and on_redis.stats().total == 8, 30, "all are settled")
    assert both.of == alone.of == dict.fromkeys("abcd", 1)
    told = [line.getMessage() for line in caplog.records if "the store redis" in line.getMessage()]
    assert sum("is away" in line for line in told) == 2, "once a consumer"


def test_the_database_dies_over_transactions_and_each_effect_is_there_once(
    kafka: services.Kafka, topic: str, own_postgres: Any
) -> None:
    database = Database("postgres", own_postgres.dsn())
    with database.connect() as connection:
        connection.execute(EFFECTS)
    store = PostgresStore(database.dsn)
    store.install()
    names = [f"e{number}" for number in range(40)]
    Feed(kafka, topic).tell(names)
    inside, gate = threading.Event(), threading.Event()

    def handle(event: Event, connection: Any) -> None:
        connection.execute("INSERT INTO effects VALUES (%s)", [event.id])
        inside.set()
        gate.wait(60)

    consumer = consumer_of(
        kafka, topic, group_name(), handler=each(handle, in_transaction=True), stores=[MemoryStore(), store], tries=1
    )
    with running(consumer):
        assert inside.wait(60)
        own_postgres.kill()
        gate.set()
        wait_until(lambda: consumer.stats().away == ("postgres",), 30, "it is seen")
        assert consumer.stats().handled == 0
        own_postgres.start()
        wait_until(lambda: consumer.stats().total == 40, 30, "all are handled", every_s=0.05)
    assert effects_in(database) == sorted(names)
    assert consumer.stats().dead_letters == 0


def test_kafka_dies_and_what_was_handled_is_committed_when_it_is_back(own_kafka: Any, caplog: Any) -> None:
    group, effects = group_name(), Effects()
    topic = "things"
    create_topic(own_kafka, topic)
    feed, store = Feed(own_kafka, topic), MemoryStore()
    consumer = consumer_of(own_kafka, topic, group, handler=each(effects.add), stores=[store])
    with running(consumer):
        feed.tell(["a", "b", "c"])
        # The commit of these is not waited for: it may be lost with the broker.
        wait_until(lambda: len(effects.of) == 3, 30, "the first are handled")
        own_kafka.kill()
        wait_until(lambda: "waiting: Kafka" in caplog.text, 30, "it is told")
        own_kafka.start()
        feed.tell(["b", "d", "e"])
        wait_until(lambda: consumer.stats().total >= 6, 60, "it goes on", every_s=0.05)
        wait_until(lambda: committed(own_kafka, topic, group) == 6, 60, "all is committed", every_s=0.2)
    assert effects.of == dict.fromkeys("abcde", 1)
    # Without a broker there is an end all the same.
    with running(consumer_of(own_kafka, topic, group, handler=each(effects.add), stores=[store], drain_s=1)) as last:
        wait_until(lambda: last._member._lanes, 30, "it has partitions")
        own_kafka.kill()


def test_what_a_transaction_can_do_wrong_leaves_nothing(
    kafka: services.Kafka, topic: str, store: PostgresStore, database: services.Database
) -> None:
    """An error that the handler swallowed, a COMMIT that is refused, a commit of its own, and another's lock."""
    with database.connect() as connection:
        connection.execute("CREATE TABLE seen (event text UNIQUE DEFERRABLE INITIALLY DEFERRED)")
        connection.execute("INSERT INTO seen VALUES ('deferred')")
    Feed(kafka, topic).tell(["swallowed", "deferred", "commits", "away", "good"], partition=0)
    outages = [TryAgain(), TryAgain()]

    def handle(event: Event, connection: Any) -> None:
        connection.execute("INSERT INTO effects VALUES (%s)", [event.id])
        connection.execute("INSERT INTO seen VALUES (%s)", [event.id])
        if event.id == "swallowed":
            try:
                connection.execute("SELECT 1 / 0")
            except Exception:  # noqa: BLE001
                return
        if event.id == "commits":
            connection.commit()
        if event.id == "away" and outages:
            raise outages.pop()

    consumer = consumer_of(
        kafka, topic, group_name(), handler=each(handle, in_transaction=True), stores=[store], tries=2
    )
    with running(consumer):
        wait_until(lambda: consumer.stats().total == 5, 30, "all are settled", every_s=0.05)
    assert effects_in(database) == ["away", "good"]
    with database.connect() as connection:
        rows = connection.execute(
            "SELECT event_id, state, attempts, last_error, is_given_up FROM cdcwatch.processed_events ORDER BY 1"
        ).fetchall()
    assert rows == [
        ("away", "completed", 1, None, False),
        ("commits", "failed", 2, "psycopg.ProgrammingError", True),
        ("deferred", "failed", 2, "psycopg.errors.UniqueViolation", True),
        ("good", "completed", 1, None, False),
        ("swallowed", "failed", 2, "psycopg.errors.InFailedSqlTransaction", True),
    ]
    assert length(kafka, topic, 1) == 5


def test_two_transactions_want_the_same_event(store: PostgresStore, database: services.Database) -> None:
    """In different partitions, or after a rebalance that did not wait: the second waits, and is told."""
    event, other = Identity("/shop", "a"), PostgresStore(database.dsn)
    store.open("tests")
    other.open("tests")
    with store.transaction([event], "me"):
        with pytest.raises(BusyError), other.transaction([event], "other"):
            raise AssertionError("two at once")
        with other.transaction([Identity("/shop", "b")], "other") as (connection, _):
            assert connection.execute("SHOW lock_timeout").fetchone() == ("0",)
    with other.transaction([event], "other") as (_, (claim,)):
        assert claim.verdict is Verdict.COMPLETED
    # An attempt that is noted is counted once, whatever becomes of its transaction, and holds nobody up.
    later = Identity("/shop", "c")
    assert store.note_attempt(later, "me") == Claim(Verdict.OURS, 1)
    with pytest.raises(ZeroDivisionError), store.transaction([later], "me") as (_, claims):  # noqa: PT012
        assert claims == [Claim(Verdict.OURS, 1)]
        with pytest.raises(BusyError):
            other.note_attempt(later, "other")
        raise ZeroDivisionError
    store.fail_after_rollback(later, "me", "ZeroDivisionError")
    assert store.note_attempt(later, "me") == Claim(Verdict.OURS, 2)
    time.sleep(0.001)
    assert other.note_attempt(later, "other") == Claim(Verdict.OURS, 3, is_takeover=True)
    with other.transaction([later], "other") as (_, claims):
        assert claims == [Claim(Verdict.OURS, 3)]
    assert store.note_attempt(later, "me").verdict is Verdict.COMPLETED
    store.close()
    other.close()


def test_what_can_not_be_is_refused_with_its_remedy(
    kafka: services.Kafka, topic: str, database: services.Database
) -> None:
    def make(**given: Any) -> None:
        consumer_of(
            kafka, topic, given.pop("group", "g"), **{"handler": each(print), "stores": [MemoryStore()], **given}
        )

    for given, said_so in (
        ({"stores": []}, "without a store"),
        ({"stores": [PostgresStore(database.dsn), MemoryStore()]}, "rising order"),
        ({"handler": each(lambda _, __: None, in_transaction=True)}, "needs a PostgresStore"),
        ({"client": {"enable.auto.commit": True}}, "client= can't set enable.auto.commit"),
        ({"group": "a group"}, "no name of a topic"),
        ({"tries": 0}, "positive"),
        ({"dead_topic": topic}, "one that the consumer reads"),
    ):
        with pytest.raises(ConfigurationError, match=said_so):
            make(**given)
    once = consumer_of(kafka, topic, group_name(), handler=each(print), stores=[MemoryStore()])
    with running(once):
        wait_until(lambda: once._member._lanes, 30, "it has partitions")
    with pytest.raises(ConfigurationError, match="runs once"):
        once.run()
    with (
        pytest.raises(PreconditionError, match="no table"),
        running(consumer_of(kafka, topic, group_name(), handler=each(print), stores=[PostgresStore(database.dsn)])),
    ):
        pass
