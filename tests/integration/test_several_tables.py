"""Several tables in one slot, one process and one Kafka transaction, each with a topic and a close rule of its own."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from typing import TYPE_CHECKING

import pytest
from confluent_kafka.admin import AdminClient

from tests import services
from tests.command import cdcwatch, run_to_the_end
from tests.oracle.ledger import closes, expected_events, read_ledger
from tests.oracle.subscriber import assert_topic
from tests.oracle.traffic import Traffic
from tests.partitions import PARTITIONED, add_leaf, attach, standalone
from tests.several import SCHEMAS, SeveralWorld
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.services import Database, Kafka

PLUGINS = ("wal2json", "pgoutput")
KILLS = 2


@pytest.fixture
def made(database: Database, kafka: Kafka, tmp_path: Path) -> Iterator[Callable[..., SeveralWorld]]:
    """Makes the world of some schemas; topics are there."""
    with contextlib.ExitStack() as stack:
        progress = stack.enter_context(services.fresh_topic(kafka))
        topics = {schema: stack.enter_context(services.fresh_topic(kafka)) for schema in SCHEMAS}

        def make(*schemas: str, **more: object) -> SeveralWorld:
            chosen = {schema: topics[schema] for schema in schemas or SCHEMAS}
            return stack.enter_context(
                SeveralWorld(
                    database,
                    kafka.bootstrap_servers,
                    chosen,
                    tmp_path,
                    progress=progress,
                    **more,  # type: ignore[arg-type]
                )
            )

        yield make


@pytest.mark.parametrize("plugin", PLUGINS)
def test_one_transaction_touches_three_tables(made: Callable[..., SeveralWorld], plugin: str) -> None:
    world = made(plugin=plugin)
    world.make()
    world.create_slot()
    with world.running():
        world.insert([1, 2], due_in_s=0.3)
        world.insert([7], due_in_s=3600)
        with world.connection.transaction():
            for schema in SCHEMAS:
                world.connection.execute(f"UPDATE {schema}.orders SET status = 'paid' WHERE id = 7")
        world.wait_nothing_due()
        world.wait_confirmed()
    records = world.judge()
    by_transaction: dict[int, list[tuple[int, str]]] = {}
    for record in records:
        place = int(record.id.rpartition("-")[2])
        by_transaction.setdefault(record.commit_lsn, []).append((place, record.event["source"].rpartition("/")[2]))
    first = sorted(min(by_transaction.items())[1])
    # The ordinal counts the row changes of all tables, in the order of the transaction.
    assert first == [(1 + n, f"{SCHEMAS[n // 2]}.orders") for n in range(6)]


@pytest.mark.parametrize(("plugin", "delivery"), [("wal2json", "at_least_once"), ("pgoutput", "exactly_once")])
def test_killed_at_random_each_topic_agrees_with_its_table(
    made: Callable[..., SeveralWorld], plugin: str, delivery: str
) -> None:
    world = made(plugin=plugin, kafka={"delivery": delivery})
    world.make()
    world.create_slot()
    with world.running():  # the first start finds empty tables: what follows is the stream's alone
        pass
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    choose = random.Random(seed)
    with contextlib.ExitStack() as stack:
        traffics = [
            stack.enter_context(Traffic(world.dsn(schema), seed=seed + n, writers=1).running())
            for n, schema in enumerate(SCHEMAS)
        ]
        for _ in range(KILLS):
            process = world.run()
            process.wait_ready()
            threading.Event().wait(choose.uniform(0, 0.7))
            process.kill()
        assert all(traffic.committed > 20 for traffic in traffics)
    with world.running():
        world.wait_nothing_due()
        world.wait_confirmed()
    world.judge(exactly_once=delivery == "exactly_once")
    for schema in SCHEMAS:
        with world.connect(schema) as connection:
            assert len(closes(read_ledger(connection))) > 5


@pytest.mark.parametrize("plugin", PLUGINS)
def test_two_tables_truncated_in_one_statement(made: Callable[..., SeveralWorld], plugin: str) -> None:
    world = made(plugin=plugin)
    world.make()
    world.create_slot()
    with world.running():
        world.insert([1, 2], due_in_s=3600)
        world.connection.execute("TRUNCATE shop.orders, till.orders")
        world.insert([3], due_in_s=0.2)
        wait_until(lambda: world.pending("hotel") == 2 and not world.pending("shop"), 60, "the third is closed")
        world.wait_confirmed()
    for schema in SCHEMAS:
        records = world.records_of(schema)
        reasons = [record.event["data"].get("reason") for record in records]
        assert reasons.count("truncated") == (3 if schema != "hotel" else 0), schema  # one a partition
    told = {
        schema: [one for one in world.records_of(schema) if one.event["subject"] == "*"] for schema in ("shop", "till")
    }
    ordinals = {schema: {one.id.rpartition("-p")[0].rpartition("-")[2] for one in its} for schema, its in told.items()}
    assert ordinals == {"shop": {"1"}, "till": {"2"}}
    assert len({one.commit_lsn for its in told.values() for one in its}) == 1


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_partitioned_and_a_plain_table_with_a_foreign_key(made: Callable[..., SeveralWorld], plugin: str) -> None:
    world = made("shop", "hotel", plugin=plugin)
    world.make("shop", definition=PARTITIONED)
    with world.connect("shop") as connection:
        add_leaf(connection, "low", "MINVALUE", 100)
        add_leaf(connection, "high", 100, 1000)
    world.make("hotel")
    world.connection.execute(
        "ALTER TABLE hotel.orders ADD COLUMN of_order bigint REFERENCES shop.orders ON DELETE CASCADE"
    )
    world.create_slot()
    with world.running():
        with world.connection.transaction():
            for key in (1, 200):
                due = "clock_timestamp() + interval '400 ms'"
                world.connection.execute(f"INSERT INTO shop.orders (id, expires_at) VALUES ({key}, {due})")
                world.connection.execute(
                    f"INSERT INTO hotel.orders (id, expires_at, of_order) VALUES ({key}, {due}, {key}), ({-key}, {due}, {key})"
                )
        # The referenced row goes, and with it the two that refer to it: in this order.
        world.connection.execute("DELETE FROM shop.orders WHERE id = 1")
        world.connection.execute("UPDATE shop.orders SET id = 50, version = version + 1 WHERE id = 150")
        world.wait_nothing_due()
        with world.connect("shop") as connection:  # while it runs
            connection.execute(standalone("late"))
            connection.execute("INSERT INTO late (id, expires_at) VALUES (100000, clock_timestamp() + interval '1 h')")
            connection.execute(attach("late", 1000, "MAXVALUE"))
        attached = "100000"
        wait_until(
            lambda: any(one.key == attached for one in world.records_of("shop")), 60, "the attached order is told"
        )
        world.wait_confirmed()
    events = {schema: world.records_of(schema) for schema in ("shop", "hotel")}
    deleted = [
        (record.commit_lsn, int(record.id.rpartition("-")[2]), schema, record.key)
        for schema, its in events.items()
        for record in its
        if record.event["data"].get("reason") == "deleted"
    ]
    assert [(place, schema) for _, place, schema, _ in sorted(deleted)] == [(1, "shop"), (2, "hotel"), (3, "hotel")]
    assert {one.key for one in events["hotel"] if one.event["type"] == "deadline.expired"} == {"200", "-200"}


def test_a_missing_topic_is_refused_with_the_command(made: Callable[..., SeveralWorld]) -> None:
    world = made("shop", "hotel", plugin="pgoutput")
    world.make()
    world.configure({**world.topics, "hotel": "there.is.none"})
    world.create_slot()
    checked = cdcwatch("check", "-c", world.configuration)
    assert checked.code == 1
    assert "Kafka has no topic there.is.none" in checked.out
    refused = run_to_the_end("run", "-c", world.configuration)
    assert (refused.code, "Kafka has no topic 'there.is.none'" in refused.err) == (3, True)
    assert "kafka-topics.sh" in refused.err
    assert "--topic there.is.none" in refused.err


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_table_is_added_and_another_left_out(made: Callable[..., SeveralWorld], plugin: str) -> None:
    world = made(plugin=plugin)
    world.make()
    all_topics = world.topics
    world.configure({name: all_topics[name] for name in ("shop", "till")})
    world.create_slot()
    with world.running():
        world.insert([1, 2], due_in_s=3600)
        world.insert([5, 6], "hotel", due_in_s=3600)
        world.wait_confirmed()
    # While it is down: what the stream holds of the old table is told as it was, of the new one its state.
    world.insert([3], "shop", "hotel", due_in_s=3600)
    world.connection.execute("UPDATE shop.orders SET status = 'paid' WHERE id = 3")
    world.connection.execute("UPDATE hotel.orders SET status = 'paid' WHERE id = 5")
    world.configure({name: all_topics[name] for name in ("hotel", "shop")})
    if plugin == "pgoutput":
        refused = run_to_the_end("run", "-c", world.configuration)
        assert refused.code == 3
        assert "ALTER PUBLICATION cdcwatch_orders ADD TABLE hotel.orders" in refused.err
        created = cdcwatch("slot", "create", "-c", world.configuration)
        assert (created.code, "ADD TABLE hotel.orders" in created.err) == (3, True)
        world.connection.execute(
            "ALTER PUBLICATION cdcwatch_orders ADD TABLE hotel.orders (id, expires_at, status, version)"
        )
    with world.running():
        world.insert([8], due_in_s=0.2)
        wait_until(lambda: world.scalar("SELECT status FROM hotel.orders WHERE id = 8") == "expired", 60, "closed")
        world.wait_confirmed()
    with world.running():  # and it is not read again
        world.wait_confirmed()
    shop, hotel = world.records_of("shop"), world.records_of("hotel")
    assert not any(record.is_gap for record in shop + hotel)
    with world.connect("shop") as connection:
        assert_topic(shop, expected_events(read_ledger(connection)), exactly_once=True)
    snapshot = {one.key for one in hotel if one.event["data"]["snapshot"]}
    assert snapshot == {"3", "6"}
    assert [one.said.type for one in hotel if one.key == "8"] == ["deadline.scheduled", "deadline.expired"]
    assert not any(one.event["data"]["snapshot"] for one in shop)
    assert len(world_records := shop + hotel) == len({(one.event["source"], one.id) for one in world_records})


@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_renamed_table_ends_the_stream_and_not_the_others_closes(
    made: Callable[..., SeveralWorld], plugin: str
) -> None:
    world = made("shop", "hotel", plugin=plugin)
    world.make()
    world.create_slot()
    world.listen()
    with world.running() as process:
        world.insert([1], due_in_s=0.1)
        world.wait_nothing_due()
        world.connection.execute("ALTER TABLE hotel.orders RENAME TO bookings")

        def reason() -> str:
            return str(world.readiness().get("reader", {}).get("reason", ""))

        wait_until(lambda: "hotel.orders is now called hotel.bookings" in reason(), 60, "the stream has ended")
        world.insert([2], "shop", due_in_s=0.1)
        wait_until(lambda: not world.pending("shop"), 60, "closed though nothing is read")
        assert process.is_running
        process.stop(exit_code=3)
    world.connection.execute("ALTER TABLE hotel.bookings RENAME TO orders")
    gap = plugin == "wal2json"  # pgoutput tells of the table whatever its name is
    if gap:
        refused = run_to_the_end("run", "-c", world.configuration)
        assert (refused.code, "hotel.orders was renamed to hotel.bookings while it was read" in refused.err) == (
            3,
            True,
        )
        assert "is now called" not in refused.err  # it isn't any more
    with world.running(*(["--accept-gap"] if gap else [])):
        world.wait_nothing_due()
        world.wait_confirmed()
    for schema in ("shop", "hotel"):
        assert len([one for one in world.records_of(schema) if one.is_gap]) == (3 if gap else 0)
    expired = {one.key for one in world.records_of("shop") if one.event["type"] == "deadline.expired"}
    assert expired == ({"1"} if gap else {"1", "2"})  # the second came and went in the gap


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_a_topic_that_is_deleted_is_told_and_made_anew_at_a_start_only(
    made: Callable[..., SeveralWorld], kafka: Kafka, delivery: str
) -> None:
    world = made("shop", "hotel", plugin="pgoutput", kafka={"delivery": delivery})
    configuration = world.configuration.read_text()
    world.configuration.write_text(configuration.replace("[kafka]\n", "[kafka]\ncreate_topic = true\npartitions = 3\n"))
    world.make()
    world.create_slot()
    world.listen()
    topic = world.topics["hotel"]
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})

    def sink() -> str:
        return str(world.readiness()["sink"]["reason"])

    with world.running():
        world.insert([1], due_in_s=3600)
        world.wait_confirmed()
        admin.delete_topics([topic])[topic].result(20)
        world.insert([2], due_in_s=0.1)
        wait_until(lambda: [world.pending(schema) for schema in ("shop", "hotel")] == [1, 1], 60, "closed")
        wait_until(lambda: f"Kafka has no topic '{topic}' any more" in sink(), 90, "it is told")
        assert "cdcwatch snapshot" in world.log.read_text()
        assert "made anew" not in world.log.read_text()
        services.create_topic(kafka, topic)  # by hand, as it says
        world.wait_confirmed()
        wait_until(lambda: f"the topic {topic} was made anew and lacks" in world.log.read_text(), 30, "so is that")
        assert topic in admin.list_topics(timeout=10).topics
    assert {one.key for one in world.records_of("hotel")} == {"2"}
    admin.delete_topics([topic])[topic].result(20)
    wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, 30, "it is gone")
    with world.running():  # made at the start, of which it tells
        wait_until(lambda: world.log.read_text().count(f"the topic {topic} was made anew") == 2, 30, "told")
        world.wait_confirmed()
    assert run_to_the_end("snapshot", "-c", world.configuration).code == 0
    assert {one.key for one in world.records_of("hotel")} == {"1"}
    assert {one.key for one in world.records_of("shop")} == {"1", "2"}


REFUSED = """
CREATE FUNCTION hotel.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE insufficient_privilege; END $$;
CREATE TRIGGER refuse BEFORE UPDATE ON hotel.orders FOR EACH ROW EXECUTE FUNCTION hotel.refuse()
"""


@pytest.mark.parametrize("plugin", PLUGINS)
def test_closes_that_are_refused_hold_up_that_table_alone(made: Callable[..., SeveralWorld], plugin: str) -> None:
    world = made("shop", "hotel", plugin=plugin)
    world.make()
    world.create_slot()
    world.listen()
    with world.running():
        world.connection.execute(REFUSED)  # as for a right that is gone, which a superuser's never is
        world.insert([1], due_in_s=0.1)
        wait_until(lambda: not world.pending("shop"), 60, "the other is closed")
        assert world.pending("hotel") == 1
        said = "hotel.orders: 1 order not closed for now: "
        wait_until(lambda: said in world.log.read_text(), 30, "the log names the table")
        assert "shop.orders: " not in world.log.read_text()
        world.connection.execute("DROP TRIGGER refuse ON hotel.orders")
        world.wait_nothing_due()
        world.wait_confirmed()
        for schema in ("shop", "hotel"):
            closed = f'cdcwatch_closes_total{{outcome="closed",table="{schema}.orders"}}'
            wait_until(lambda closed=closed: world.metric(closed) == 1, 20, closed)  # type: ignore[misc]
    world.judge()


def test_the_commands_know_several_tables(made: Callable[..., SeveralWorld]) -> None:
    world = made("shop", "hotel", plugin="wal2json")
    world.make()
    world.create_slot()
    where = ("-c", world.configuration)
    with world.running():
        world.insert([1, 2], due_in_s=3600)
        world.wait_confirmed()
    world.insert([3], due_in_s=3600)
    checked = cdcwatch("check", *where)
    assert checked.code == 0, checked.said
    for schema, topic in world.topics.items():
        assert f"{schema}.orders, key (id)" in checked.out
        assert f"{schema}.orders: " in checked.out
        assert f"{topic} has 3 partitions" in checked.out
    pending = json.loads(cdcwatch("pending", "--json", *where).out)["pending"]
    assert {(row["table"], row["key"]["id"]) for row in pending} == {
        (f"{schema}.orders", key) for schema in ("shop", "hotel") for key in ("1", "2", "3")
    }
    alone = json.loads(cdcwatch("pending", "--json", "--table", "shop.orders", *where).out)["pending"]
    assert [sorted(row) for row in alone] == [["deadline", "in_s", "key", "version"]] * 3
    peeked = json.loads(cdcwatch("slot", "peek", "--json", *where).out)["changes"]
    assert [(one["table"], one["key"], one["kind"]) for one in peeked] == [
        ("shop.orders", "3", "insert"),
        ("hotel.orders", "3", "insert"),
    ]
    unsaid = cdcwatch("explain", "1", *where)
    assert (unsaid.code, "shop.orders, hotel.orders" in unsaid.err) == (2, True)
    explained = json.loads(cdcwatch("explain", "1", "--table", "hotel.orders", "--json", *where).out)
    assert [event["source"].rpartition("/")[2] for event in explained["events"]] == ["hotel.orders"]
    events = cdcwatch("events", "--from-beginning", *where).out.splitlines()
    assert {line.split()[0] for line in events} == set(world.topics.values())
    assert len(events) == 4
    chosen = cdcwatch("events", "--from-beginning", "--topic", world.topics["shop"], *where).out.splitlines()
    assert len(chosen) == 2
    world.insert([4], due_in_s=-1)
    swept = run_to_the_end("sweep", "--once", "--json", *where)
    assert json.loads(swept.out) == {"closed": 2, "left": 0}
    again = run_to_the_end("snapshot", *where)
    assert again.code == 0, again.err
    assert {record.key for record in world.records_of("hotel")} == {"1", "2", "3"}
    world.insert([5], due_in_s=3600)
    moved = cdcwatch("slot", "advance", "--to", "current", "--yes", *where)
    assert moved.code == 0, moved.said
    assert "2 that the topic would not learn" in " ".join(moved.out.split())
    gap = run_to_the_end("run", *where)
    assert (gap.code, "beyond the last event in the topic" in gap.err) == (3, True)
    recovered = run_to_the_end("recover", "--yes", *where)
    assert recovered.code == 0, recovered.err
    for schema, topic in world.topics.items():
        assert f"read {topic} to its end, and the open orders of {schema}.orders" in recovered.out
        assert len([record for record in world.records_of(schema) if record.is_gap]) == 3
        assert "5" in {record.key for record in world.records_of(schema)}


def test_one_table_twice_and_a_partition_beside_its_root_are_refused(made: Callable[..., SeveralWorld]) -> None:
    world = made("shop", "hotel", plugin="wal2json")
    world.make("shop", definition=PARTITIONED)
    with world.connect("shop") as connection:
        add_leaf(connection, "low", "MINVALUE", 100)
    world.make("hotel")
    text = world.configuration.read_text()
    world.configuration.write_text(text.replace('"hotel.orders"', "'\"shop\".orders'"))
    checked = cdcwatch("check", "-c", world.configuration)
    assert (checked.code, "shop.orders twice" in checked.said) == (2, True)
    world.configuration.write_text(text.replace('"hotel.orders"', '"shop.low"'))
    checked = cdcwatch("check", "-c", world.configuration)
    assert (checked.code, "shop.low beside shop.orders, of which it is a partition" in checked.said) == (2, True)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_one_table_deletes_what_another_updates(made: Callable[..., SeveralWorld], plugin: str) -> None:
    world = made("shop", "hotel", plugin=plugin, more={"hotel": '[table.close]\naction = "delete"\n'})
    world.make()
    world.create_slot()
    with world.running():
        world.insert([1, 2], due_in_s=0.2)
        world.insert([3], due_in_s=3600)
        # The same keys in both; of this one the application deletes.
        world.connection.execute("DELETE FROM shop.orders WHERE id = 3; DELETE FROM hotel.orders WHERE id = 3")
        wait_until(lambda: not world.pending("shop") and not world.pending("hotel"), 60, "closed")
        world.wait_confirmed()
    for schema in ("shop", "hotel"):
        ends = {one.key: one.event["type"] for one in world.records_of(schema) if one.said.type != "deadline.scheduled"}
        assert ends == {"1": "deadline.expired", "2": "deadline.expired", "3": "deadline.cancelled"}
    assert world.scalar("SELECT count(*) FROM hotel.orders") == 0
    assert world.scalar("SELECT count(*) FROM shop.orders") == 2


def test_a_worker_closes_one_tables_orders(made: Callable[..., SeveralWorld]) -> None:
    world = made("shop", "hotel", plugin="pgoutput")
    world.make()
    world.create_slot()
    unsaid = cdcwatch("run", "--role", "close", "-c", world.configuration)
    assert (unsaid.code, "shop.orders, hotel.orders" in unsaid.err) == (2, True)
    with world.running("--role", "read"), world.running("--role", "close", "--table", "hotel.orders"):
        world.insert([1], due_in_s=0.2)
        wait_until(lambda: not world.pending("hotel"), 60, "closed by the worker")
        assert world.pending("shop") == 1
    with world.running():
        world.wait_nothing_due()
        world.wait_confirmed()
    world.judge()


def test_a_worker_on_anothers_topic_and_slot_says_so_and_closes_by_the_table(
    made: Callable[..., SeveralWorld], tmp_path: Path
) -> None:
    world = made("shop", "hotel", plugin="pgoutput", extra="[sweep]\ninterval_s = 0\n")
    world.make()
    world.create_slot()
    right = world.configuration.read_text()
    checked = cdcwatch("check", "--role", "close", "--table", "hotel.orders", "-c", world.configuration)
    assert checked.code == 0, checked.said
    assert "cdcwatch." + world.topics["hotel"] in checked.out
    assert world.topics["shop"] not in checked.out
    with world.running("--role", "read"):
        world.insert([1], "shop", due_in_s=3600)
        world.wait_confirmed()
        swapped = right.replace(world.topics["hotel"], "swap")
        swapped = swapped.replace(world.topics["shop"], world.topics["hotel"]).replace("swap", world.topics["shop"])
        world.configuration.write_text(swapped.replace(f'"{world.slot}"', '"no_such_slot"', 1))
        with world.running("--role", "close", "--table", "hotel.orders", gets_ready=False):
            for told in ("shop.orders alone, not of this table", "has no slot no_such_slot"):
                wait_until(lambda told=told: told in world.log.read_text(), 30, told)
            world.insert([1], "hotel", due_in_s=0.2)
            wait_until(lambda: not world.pending("hotel"), 30, "closed by the worker")
        world.configuration.write_text(right)
        world.wait_confirmed()


def test_what_an_open_transaction_did_before_the_table_was_published_is_read(made: Callable[..., SeveralWorld]) -> None:
    world = made("shop", "hotel", plugin="pgoutput")
    world.make()
    topics = world.topics
    world.configure({"shop": topics["shop"]})
    world.create_slot()
    world.listen()
    with world.running():
        world.wait_confirmed()
    with world.connect("hotel") as writer, world.connect("shop") as unrelated:
        unrelated.execute("BEGIN; INSERT INTO orders (id, expires_at) VALUES (5, clock_timestamp() + interval '1 h')")
        writer.execute("BEGIN; INSERT INTO orders (id, expires_at) VALUES (9, clock_timestamp() + interval '1 h')")
        world.connection.execute(
            "ALTER PUBLICATION cdcwatch_orders ADD TABLE hotel.orders (id, expires_at, status, version)"
        )
        world.configure(topics)
        world.insert([6], due_in_s=-1)
        waits = (
            f"hotel.orders was added: waiting for the transaction of pid {writer.info.backend_pid}, which has written"
        )
        process = world.run()
        try:
            wait_until(lambda: waits in world.log.read_text(), 60, "it waits, and says for whom")
            world.insert([7], "shop", due_in_s=0.1)  # nothing is read from the slot
            wait_until(lambda: not world.pending("shop"), 60, "the other table's orders are closed meanwhile")
            assert world.pending("hotel") == 1
            parts = world.readiness()
            assert not process.is_ready
            assert all(waits in parts[name]["reason"] for name in ("reader", "sink", "closer")), parts
            assert parts["closer"]["reason"].startswith("hotel.orders: ")
            process.stop()
            assert "again in" not in world.log.read_text()
            process = world.run()
            wait_until(lambda: world.log.read_text().count(waits) == 2, 60, "it waits again")
            writer.execute("COMMIT")
            process.wait_ready()
            wait_until(lambda: world.pending("hotel") == 1, 60, "its own due order, too")
            # That one was open all the while, and could not have written to the table before.
            unrelated.execute("INSERT INTO hotel.orders (id, expires_at) VALUES (10, now() + interval '1 h'); COMMIT")
            world.insert([11], due_in_s=3600)
            world.wait_confirmed()
        except BaseException:
            process.kill()
            raise
        process.stop()
    # The stream leaves it out: the publication didn't have the table when it was written.
    told = [(one.key, one.said.type, one.event["data"]["snapshot"]) for one in world.records_of("hotel")]
    scheduled, expired = "deadline.scheduled", "deadline.expired"
    assert sorted(told) == [
        ("10", scheduled, False),
        ("11", scheduled, False),
        ("6", expired, False),
        ("6", scheduled, True),
        ("9", scheduled, True),
    ]
    assert {one.key for one in world.records_of("shop") if one.event["type"] == expired} == {"6", "7"}
