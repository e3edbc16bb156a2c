"""The whole program on real parts: from an INSERT by anyone to the topic and to the close."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.oracle.ledger import closes, expected_events, read_ledger
from tests.oracle.subscriber import by_key
from tests.oracle.traffic import Traffic
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka


@pytest.fixture
def world(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> Iterator[World]:
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        yield world


def test_an_order_is_published_and_closed_at_its_deadline(world: World) -> None:
    world.install()
    with world.running():
        world.connection.execute(
            "INSERT INTO orders (id, expires_at) VALUES (9007199254740993, clock_timestamp() + interval '300 ms')"
        )
        world.wait_nothing_due()
        world.wait_confirmed()
    records = world.judge()
    assert [record.event["type"] for record in records] == ["deadline.scheduled", "deadline.expired"]
    assert records[0].key == "9007199254740993"
    assert records[0].event["data"]["key"] == {"id": "9007199254740993"}
    assert world.scalar("SELECT version FROM orders") == 1


def test_the_first_start_publishes_open_orders_once_and_consistent_with_the_stream(world: World) -> None:
    world.install()
    seed = 7
    with Traffic(world.database.dsn, seed=seed, writers=3).running() as traffic:
        wait_until(lambda: traffic.committed > 60, 60, "traffic before the start")
        with world.running():
            before = traffic.committed
            wait_until(lambda: traffic.committed > before + 60, 60, "traffic after the start")
    with world.running():
        world.wait_nothing_due()
        world.wait_confirmed()
    records = world.records()
    assert len({record.id for record in records}) == len(records)
    found, expected = by_key(records), expected_events(read_ledger(world.connection))
    snapshots = 0
    for key, said in expected.items():
        its = [record.said for record in found.get(key, [])]
        if its and found[key][0].event["data"]["snapshot"]:
            snapshots += 1
            begin = its[0]
            # The read stands for a prefix of the order's history; what follows it is in the stream, and only that.
            prefixes = [
                n + 1
                for n, one in enumerate(said)
                if one.type in {"deadline.scheduled", "deadline.moved"} and one.deadline == begin.deadline
            ]
            assert any(said[n:] == its[1:] for n in prefixes), f"order {key}: {its} of {said}"
            assert begin.type == "deadline.scheduled"
        else:
            # Not open when the table was read: all that the stream had was before, or all is after.
            assert any(said[n:] == its for n in range(len(said) + 1)), f"order {key}: {its} of {said}"
            assert (
                its == said
                or not its
                or said[len(said) - len(its) - 1].type in {"deadline.cancelled", "deadline.expired"}
            )
    assert snapshots > 5
    for key, its in found.items():
        assert key in expected, its


def test_i03_overdue_orders_are_closed_at_the_start_oldest_first(world: World) -> None:
    world.install()
    world.connection.execute(
        "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() - n * interval '1 minute'"
        " FROM generate_series(1, 3000) n"
    )
    with world.running():
        world.wait_nothing_due()
        world.wait_confirmed()
    entries = closes(read_ledger(world.connection))
    deadlines = [entry.old_deadline for entry in entries]
    assert len(deadlines) == 3000
    # Though they were overdue before the first start, the topic tells of each: found open, then closed.
    said = {key: [record.event["type"] for record in its] for key, its in by_key(world.records()).items()}
    assert set(said) == set(range(1, 3001))
    assert {tuple(types) for types in said.values()} == {("deadline.scheduled", "deadline.expired")}
    # Two workers take batches in order; within and between them only neighbouring batches can swap.
    ranks = {deadline: rank for rank, deadline in enumerate(sorted(deadlines))}
    assert max(abs(ranks[deadline] - place) for place, deadline in enumerate(deadlines)) <= 1500


def test_deadlines_beyond_the_horizon_are_loaded_as_the_window_moves(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, "[window]\nhorizon_s = 2\n") as world:
        world.install()
        world.connection.execute(
            "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() + n * interval '60 ms'"
            " FROM generate_series(1, 100) n"
        )
        with world.running():
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) VALUES (1000, clock_timestamp() + interval '5 s')"
            )
            world.wait_nothing_due()
            world.wait_confirmed()
        assert len(closes(read_ledger(world.connection))) == 101
        # Nothing but a moving window loads what lay beyond the first horizon: without it the wait above never ends.


def test_run_until_current_ends_by_itself(world: World) -> None:
    world.install()
    with world.running():
        pass
    world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, 'infinity'), (2, '2999-01-01')")
    until = world.current_lsn()
    process = world.run("--until", "current")
    assert process.wait() == 0
    assert world.confirmed_lsn() >= until
    assert [record.key for record in world.records()] == ["2"]


def test_foreign_transactions_move_the_slot_though_the_orders_table_is_idle(world: World) -> None:
    world.install()
    world.connection.execute("CREATE TABLE other (n int)")
    with world.running():
        world.connection.execute("INSERT INTO other SELECT generate_series(1, 1000)")
        world.wait_confirmed()
    assert world.records() == []


def test_a_truncate_reaches_every_partition(world: World) -> None:
    world.install()
    with world.running():
        world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, '2999-01-01')")
        world.connection.execute("TRUNCATE orders")
        world.wait_confirmed()
    table_wide = [record for record in world.records() if record.key is None]
    assert sorted(record.partition for record in table_wide) == [0, 1, 2]
    assert {record.event["data"]["reason"] for record in table_wide} == {"truncated"}
    assert len({record.id for record in table_wide}) == 3


@pytest.mark.parametrize(
    ("key", "values", "keys"),
    [
        ("id uuid PRIMARY KEY", "'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("id text PRIMARY KEY", "'a \"quoted\", \\key é'", 'a "quoted", \\key é'),
        ("id numeric PRIMARY KEY", "1.10", "1.10"),
        (
            "shop uuid, id char(5), PRIMARY KEY (id, shop)",
            "'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', 'ab'",
            '["ab   ","a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"]',
        ),
    ],
    ids=["uuid", "text", "numeric", "composite"],
)
def test_any_primary_key(world: World, key: str, values: str, keys: str) -> None:
    world.connection.execute(
        f"CREATE TABLE orders ({key}, status text DEFAULT 'pending', version int DEFAULT 0, expires_at timestamptz)"
    )
    names = "shop, id" if key.startswith("shop") else "id"
    world.create_slot()
    with world.running():
        world.connection.execute(
            f"INSERT INTO orders ({names}, expires_at) VALUES ({values}, clock_timestamp() + interval '200 ms')"
        )
        world.wait_nothing_due()
        world.wait_confirmed()
    records = world.records()
    assert [(record.key, record.event["type"]) for record in records] == [
        (keys, "deadline.scheduled"),
        (keys, "deadline.expired"),
    ]
    assert records[0].event["subject"] == keys


def test_also_runs_in_the_closing_transaction(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> None:
    also = "UPDATE stock SET free = free + 1 FROM closed WHERE stock.order_id = closed.id"
    with World(database, kafka.bootstrap_servers, topic, tmp_path, f'[close]\nalso = "{also}"\n') as world:
        world.install()
        world.connection.execute("CREATE TABLE stock (order_id bigint, free int CHECK (order_id <> 3 OR free < 1))")
        world.connection.execute("INSERT INTO stock SELECT n, 0 FROM generate_series(1, 5) n")
        with world.running():
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() + interval '200 ms'"
                " FROM generate_series(1, 5) n"
            )
            wait_until(
                lambda: world.scalar("SELECT count(*) FROM orders WHERE status = 'expired'") == 4, 30, "4 closes"
            )
        assert world.scalar("SELECT array_agg(order_id ORDER BY order_id) FROM stock WHERE free = 1") == [1, 2, 4, 5]
        assert world.scalar("SELECT status FROM orders WHERE id = 3") == "pending"


def test_closes_without_a_version_column(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, '[table]\nversion = ""\n') as world:
        world.connection.execute(
            "CREATE TABLE orders (id bigint PRIMARY KEY, status text DEFAULT 'pending', expires_at timestamptz)"
        )
        world.create_slot()
        with world.running():
            world.connection.execute("INSERT INTO orders (id, expires_at) VALUES (1, clock_timestamp())")
            world.wait_nothing_due()
            world.wait_confirmed()
        records = world.records()
        assert records[-1].event["type"] == "deadline.expired"
        assert records[-1].event["data"]["version"] is None
