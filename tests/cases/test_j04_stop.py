"""J4: SIGTERM while the broker takes nothing and the queue is full."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import pytest

from tests import services
from tests.oracle.subscriber import assert_nothing_confirmed_early, sent_ends
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from cdcwatch.local import LocalKafka
    from tests.services import Database

TOPIC = "orders.deadlines"
ROWS = 20_000


@pytest.mark.parametrize("delivery", ["exactly_once", "at_least_once"])
def test_j04_sigterm_with_a_full_queue_waits_for_the_broker_and_confirms_what_was_read(
    database: Database, own_kafka: LocalKafka, tmp_path: Path, delivery: str
) -> None:
    services.create_topic(own_kafka, TOPIC, partitions=3)
    kafka = {"delivery": delivery}
    # Few messages fill this one: the rest stands in the outbox, and behind that in the slot.
    extra = '[kafka.client]\n"queue.buffering.max.messages" = 500\n'
    with World(database, own_kafka.bootstrap_servers, TOPIC, tmp_path, extra, kafka=kafka) as world:
        world.listen()
        world.install()
        process = world.run()
        process.wait_ready()
        world.wait_confirmed()
        before_lsn = world.confirmed_lsn()
        os.kill(own_kafka.pid, signal.SIGSTOP)
        try:
            for first in range(0, ROWS, ROWS // 40):
                world.connection.execute(
                    "INSERT INTO orders (id, expires_at) SELECT n, '2999-01-01' FROM generate_series(%s::int, %s::int) n",
                    [first + 1, first + ROWS // 40],
                )
            wait_until(lambda: world.metric("cdcwatch_outbox_bytes") > 1_000_000, 30, "more than the queue holds")
            process.signal(signal.SIGTERM)
            wait_until(lambda: "stopping: " in world.log.read_text(), 30, "it stops")
            assert world.confirmed_lsn() == before_lsn
        finally:
            os.kill(own_kafka.pid, signal.SIGCONT)
        assert process.wait() == 0
        assert world.confirmed_lsn() > before_lsn, "what had been read is durable and confirmed"
        assert_nothing_confirmed_early(
            world.records(), world.confirmed_lsn(), sent_ends(world.bootstrap_servers, TOPIC), at="the end"
        )
        with world.running():
            world.wait_confirmed()
        assert len({record.id for record in world.judge(exactly_once=delivery == "exactly_once")}) == ROWS
