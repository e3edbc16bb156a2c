"""`--role read` and several `--role close`: added, killed, frozen and sent away under load, judged by the same oracle."""

from __future__ import annotations

import contextlib
import random
import re
import signal
from typing import TYPE_CHECKING

import pytest

from tests.oracle.ledger import closes, read_ledger
from tests.oracle.traffic import Traffic
from tests.oracle.world import Process, World
from tests.services import fresh_topic
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka

PARTITIONS = 6
# No sweep: it would find what the workers lose. A session as short as brokers allow.
EXTRA = """
[sweep]
interval_s = 0
[kafka.client]
"session.timeout.ms" = 6000
"heartbeat.interval.ms" = 500
"""


class Worker:
    """A `--role close` with a log of its own."""

    def __init__(self, world: World, folder: Path, name: str) -> None:
        self.log = folder / f"{name}.log"
        self.process = Process(world.configuration, self.log, "--role", "close", environment=world.environment)

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def has(self) -> int:
        """How many partitions it has, by its own word."""
        return int(([*re.findall(r"; has (\d+) of ", self.said)] or ["0"])[-1])


@contextlib.contextmanager
def crew(world: World, folder: Path) -> Iterator[dict[str, Worker]]:
    """Fill it by `start`; whoever is left at the end is stopped, or killed where the test failed."""
    workers: dict[str, Worker] = {}
    try:
        yield workers
    except BaseException:
        for worker in workers.values():
            if worker.process.is_running:
                worker.process.kill()
        raise
    for worker in workers.values():
        if worker.process.is_running:
            worker.process.stop()


def wait_shared(*workers: Worker) -> None:
    """Until these have all partitions, each about as many."""
    least = PARTITIONS // len(workers)
    wait_until(
        lambda: sum(one.has for one in workers) == PARTITIONS and all(one.has >= least for one in workers),
        30,
        "the partitions are shared",
    )


@pytest.fixture
def wide_topic(kafka: Kafka) -> Iterator[str]:
    with fresh_topic(kafka, partitions=PARTITIONS) as name:
        yield name


def test_workers_come_and_go_under_load(database: Database, kafka: Kafka, wide_topic: str, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    with World(database, kafka.bootstrap_servers, wide_topic, tmp_path, EXTRA) as world:
        world.install()
        # Known from the table alone to whoever comes later, and due when all have come and gone.
        world.connection.execute(
            "INSERT INTO orders (id, expires_at) SELECT 900000000 + id, clock_timestamp() + interval '12 s' + id * interval '15 ms'"
            " FROM generate_series(1, 1000) id"
        )
        with world.running("--role", "read") as reader, crew(world, tmp_path) as crew_:

            def start(name: str) -> Worker:
                crew_[name] = Worker(world, tmp_path, name)
                return crew_[name]

            with Traffic(database.dsn, seed=seed).running():
                a, b, c = (start(name) for name in "abc")
                wait_shared(a, b, c)

                a.process.kill()
                wait_shared(b, c)
                d = start("d")
                wait_shared(b, c, d)

                b.process.signal(signal.SIGSTOP)
                wait_shared(c, d)
                b.process.signal(signal.SIGCONT)
                wait_until(lambda: "the group went on without us" in b.said, 30, "it learns that it was given up")
                wait_shared(b, c, d)

                for worker in (c, d):
                    worker.process.stop()
                wait_shared(b)
                e = start("e")
                wait_shared(b, e)
            world.wait_nothing_due()
            assert reader.is_running
            world.wait_confirmed()
        world.judge()
        assert len(closes(read_ledger(world.connection))) > 1000
