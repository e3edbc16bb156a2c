"""B9: the broker refuses a message: nothing is confirmed beyond it, and it is published once it is let in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import services
from tests.command import ORDERS
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka

LONG = "s" * 3000


@pytest.mark.parametrize(
    ("plugin", "delivery"),
    [("wal2json", "exactly_once"), ("pgoutput", "exactly_once"), ("wal2json", "at_least_once")],
)
def test_b09_a_message_that_the_broker_refuses_is_not_passed_over(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, plugin: str, delivery: str
) -> None:
    services.create_topic(kafka, f"{topic}.small", config={"max.message.bytes": "4000"})
    with World(
        database, kafka.bootstrap_servers, f"{topic}.small", tmp_path, kafka={"delivery": delivery}, plugin=plugin
    ) as world:
        world.connection.execute(ORDERS)
        world.create_slot()
        with world.running():
            world.connection.execute("INSERT INTO orders VALUES (1, 'pending', '2999-01-01')")
            world.wait_confirmed()
        before_lsn = world.current_lsn()
        world.connection.execute("UPDATE orders SET status = %s", [LONG])
        after_lsn = world.current_lsn()
        world.connection.execute("INSERT INTO orders VALUES (2, 'pending', '2999-01-01')")
        world.listen()
        with world.running(gets_ready=False):
            wait_until(lambda: "max.message.bytes" in world.log.read_text(), 30, "it is told, with its remedy")
            assert world.readiness()["sink"]["ready"] is False
            world.connection.execute("INSERT INTO orders VALUES (3, 'pending', now())")
            wait_until(
                lambda: world.scalar("SELECT status FROM orders WHERE id = 3") == "expired", 30, "closing goes on"
            )
            assert world.confirmed_lsn() < after_lsn
            assert before_lsn < after_lsn
            services.configure_topic(kafka, f"{topic}.small", "max.message.bytes", "1000000")
            world.wait_confirmed()
        assert LONG not in world.log.read_text()
        told = [(record.key, record.event["type"]) for record in world.records()]
        assert set(told) == {
            ("1", "deadline.scheduled"),
            ("1", "deadline.cancelled"),
            ("2", "deadline.scheduled"),
            ("3", "deadline.scheduled"),
            ("3", "deadline.expired"),
        }
        if delivery == "exactly_once":
            assert len(told) == 5
