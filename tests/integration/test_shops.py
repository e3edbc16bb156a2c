"""The service on the shapes of real shops, through either plugin, killed in between: orders, carts, holds."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import pytest

from cdcwatch.failpoints import VARIABLE
from tests.command import cdcwatch
from tests.oracle.ledger import expected_events, read_ledger
from tests.oracle.subscriber import assert_topic
from tests.oracle.world import World
from tests.shops import CARTS, HOLDS, ORDERS, SHOPS
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.oracle.ledger import Entry
    from tests.services import Database, Kafka
    from tests.shops import Shop

ORDERED = 150


def trade(world: World, shop: Shop, choose: random.Random, first: int) -> None:
    """Orders come, and things happen to them, each in a transaction of its own: shops lock their rows in their own order."""
    with world.database.connect() as application:
        for n in range(first, first + ORDERED):
            application.execute(shop.order, {"n": n, "due_s": choose.uniform(-0.2, 1.5)})
            for _ in range(choose.choice((0, 1, 1))):
                application.execute(choose.choice(shop.deeds), {"n": choose.randint(max(first, n - 40), n)})


def due(world: World, shop: Shop) -> int:
    """How many orders are open with a deadline that has come or will."""
    is_open = f"status IN ({', '.join(map(repr, sorted(shop.open)))})" if shop.closed else "true"
    return int(world.scalar(f"SELECT count(*) FROM {shop.table} WHERE {is_open} AND {shop.deadline} IS NOT NULL"))


def closes(ledger: list[Entry]) -> list[Entry]:
    """Made by a connection that closes."""
    return [entry for entry in ledger if entry.is_ours]


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
@pytest.mark.parametrize("name", SHOPS)
def test_a_shop(database: Database, kafka: Kafka, topic: str, tmp_path: Path, name: str, plugin: str) -> None:
    shop, seed = SHOPS[name], random.randrange(10**6)
    print(f"seed {seed}")
    choose = random.Random(seed)
    with World(database, kafka.bootstrap_servers, topic, tmp_path, shop.configuration, plugin=plugin) as world:
        world.install(shop.schema + shop.ledger)
        # Killed with the rows of a batch closed: not committed, or without the answer.
        point = "close.uncommitted" if "also" in shop.configuration else "close.committed"
        dying = world.run(environment={VARIABLE: f"{point}=kill@3"})
        dying.wait_ready()  # with an empty table: what follows is the stream's alone
        trade(world, shop, choose, 1)
        wait_until(lambda: not dying.is_running, 60, "it was killed")
        dying.wait()
        with world.running():
            trade(world, shop, choose, 1001)
            wait_until(lambda: due(world, shop) == 0, 60, "all are closed")
            world.wait_confirmed()
            assert not [
                line for line in cdcwatch("check", "-c", world.configuration).out.splitlines() if "fail" in line
            ]
        judge(world, shop)
        assert_kept(world, shop)


def judge(world: World, shop: Shop) -> None:
    """The oracle's rules, for whatever the table looks like."""
    ledger = read_ledger(world.connection)
    closed = closes(ledger)
    assert len(closed) > ORDERED / 2
    for entry in closed:
        assert entry.old_status in shop.open
        assert entry.old_deadline is not None
        assert entry.old_deadline <= entry.at, f"closed early: {entry}"
        assert entry.new_id is None or entry.new_deadline is None or entry.new_status == shop.closed
    # An order may be closed again only where something has opened it in between.
    open_now: dict[Any, bool] = {}
    for entry in ledger:
        key = entry.old_id if entry.new_id is None else entry.new_id
        if entry.is_ours:
            assert open_now[key], f"closed twice: {entry}"
        open_now[key] = entry.new_status in shop.open and entry.new_deadline is not None
    world.wait_topic_committed()
    assert_topic(world.records(), expected_events(ledger, shop.open), exactly_once=True, key_of=str)


def assert_kept(world: World, shop: Shop) -> None:
    """What the shop itself lives by."""
    if shop is ORDERS:
        # What is still allocated is what orders hold that were paid; whatever was closed has let go of all it held, once.
        assert world.scalar(
            "SELECT count(*) FROM warehouse_stock stock WHERE quantity_allocated <> (SELECT coalesce(sum(held.quantity_allocated), 0)"
            " FROM warehouse_allocation held WHERE held.stock_id = stock.id)"
        ) == 0  # fmt: skip
        assert world.scalar(
            "SELECT count(*) FROM warehouse_allocation held JOIN order_orderline line ON line.id = held.order_line_id"
            " JOIN order_order ON order_order.id = line.order_id WHERE status = 'expired'"
        ) == 0  # fmt: skip
        events = world.connection.execute("SELECT order_id, count(*) FROM order_orderevent GROUP BY 1").fetchall()
        expired = world.scalar("SELECT count(*) FROM order_order WHERE status = 'expired' AND expired_at >= expires_at")
        assert {count for _, count in events} == {1}
        assert len(events) == expired == world.scalar("SELECT count(*) FROM order_order WHERE status = 'expired'")
    elif shop is CARTS:
        assert world.scalar("SELECT count(*) FROM pretixbase_cartposition") == 0
        with_seat = (
            "SELECT count(*) FROM ledger WHERE new_id IS NULL AND old_id::bigint < 100000 AND old_id::bigint % 200 <> 0"
        )
        assert world.scalar("SELECT count(*) FROM freed_seat") == world.scalar(with_seat)
    elif shop is HOLDS:
        assert world.scalar("SELECT count(*) FROM seats WHERE reserved_until IS NOT NULL") == 0
        assert world.scalar("SELECT count(*) FROM seats WHERE customer_id IS NOT NULL AND sold_at IS NULL") == 0
