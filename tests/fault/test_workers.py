"""`--role read` and several `--role close`: added, killed, frozen and sent away under load, judged by the same oracle."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import urllib.request
from collections import Counter
from typing import TYPE_CHECKING, Self

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from cdcwatch.local import LocalKafka
from cdcwatch.local.process import free_port
from tests import services
from tests.endpoint import Endpoint
from tests.murmur2 import partition_of
from tests.oracle.ledger import closes, read_ledger
from tests.oracle.traffic import Traffic
from tests.oracle.world import Process, World
from tests.orders import make_claims
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database

PARTITIONS = 6
# No sweep: it would find what the workers lose. A session shorter than brokers allow by default.
EXTRA = """
[sweep]
interval_s = 0
[kafka.client]
"session.timeout.ms" = 3000
"heartbeat.interval.ms" = 300
"""
CLAIM = """
[close]
action = "claim"
[close.claim]
url = "{url}"
timeout_s = 1
stuck_after_s = 2
"""


class Worker:
    """A `--role close` with a log and a port of its own."""

    def __init__(self, world: World, folder: Path, name: str) -> None:
        self.log = folder / f"{name}.log"
        self._port = free_port()
        self.process = Process(
            world.configuration,
            self.log,
            "--role",
            "close",
            environment={**world.environment, "CDCWATCH_TELEMETRY__LISTEN": f"127.0.0.1:{self._port}"},
        )

    @property
    def said(self) -> str:
        return self.log.read_text()

    @property
    def has(self) -> int:
        """How many partitions it has, by its own word."""
        return int(([*re.findall(r"; has (\d+) of ", self.said)] or ["0"])[-1])

    def metric(self, name: str) -> float:
        """The sum over its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


class Crew:
    """The workers of a test: whoever is left at the end is stopped, or killed where the test failed."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world, self._folder = world, folder
        self._all: list[Worker] = []

    def start(self, name: str) -> Worker:
        self._all.append(Worker(self._world, self._folder, name))
        return self._all[-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        for worker in self._all:
            if worker.process.is_running:
                worker.process.kill() if failed else worker.process.stop()


def wait_shared(*workers: Worker, partitions: int = PARTITIONS) -> None:
    """Until these have all partitions, each about as many."""
    least = partitions // len(workers)
    wait_until(
        lambda: sum(one.has for one in workers) == partitions and all(one.has >= least for one in workers),
        30,
        "the partitions are shared",
    )


def insert(world: World, first: int, last: int, due: str) -> None:
    """Orders that are due after `due`, ten milliseconds from one to the next."""
    world.connection.execute(
        "INSERT INTO orders (id, expires_at)"
        " SELECT id, clock_timestamp() + %s::interval + (id - %s) * interval '10 ms' FROM generate_series(%s::int, %s) id",
        [due, first, first, last],
    )


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalKafka]:
    """One that lets sessions be short, and may be killed."""
    with services.scratch_directory() as folder:
        broker = LocalKafka(folder / "kafka", session_timeout_ms=3000)
        broker._properties["group.min.session.timeout.ms"] = "1000"
        with broker:
            yield broker


@contextlib.contextmanager
def world_on(
    broker: LocalKafka, database: Database, folder: Path, *, partitions: int = PARTITIONS, more: str = ""
) -> Iterator[World]:
    with (
        services.fresh_topic(broker, partitions=partitions) as topic,
        World(database, broker.bootstrap_servers, topic, folder, more + EXTRA) as world,
    ):
        if more:
            make_claims(world.connection)
        world.install()
        yield world


@pytest.fixture
def world(database: Database, broker: LocalKafka, tmp_path: Path) -> Iterator[World]:
    with world_on(broker, database, tmp_path) as world:
        yield world


def test_workers_come_and_go_under_load(world: World, tmp_path: Path) -> None:
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    # Known from the table alone to whoever comes later, and due when all have come and gone.
    insert(world, 900_000_001, 900_001_000, "8 s")
    with world.running("--role", "read") as reader, Crew(world, tmp_path) as crew:
        with Traffic(world.database.dsn, seed=seed).running():
            a, b, c = (crew.start(name) for name in "abc")
            wait_shared(a, b, c)

            a.process.kill()
            b.process.signal(signal.SIGSTOP)
            wait_shared(c)
            b.process.signal(signal.SIGCONT)
            wait_until(lambda: "the group went on without us" in b.said, 30, "it learns that it was given up")
            d = crew.start("d")
            wait_shared(b, c, d)

            for worker in (c, d):
                worker.process.stop()
            wait_shared(b)
            e = crew.start("e")
            wait_shared(b, e)
        world.wait_nothing_due()
        assert reader.is_running
        world.wait_confirmed()
    world.judge()
    assert len(closes(read_ledger(world.connection))) > 1000


def test_each_order_is_in_the_memory_of_one(world: World, tmp_path: Path) -> None:
    """By its key, as anybody computes it; and what is no event of ours harms nobody."""
    insert(world, 1, 500, "10 min")
    by_partition = Counter(partition_of(str(key).encode(), PARTITIONS) for key in range(1, 1001))
    with world.running("--role", "read"), Crew(world, tmp_path) as crew:
        a = crew.start("a")
        a.process.wait_ready()
        world.wait_confirmed()
        insert(world, 501, 1000, "10 min")
        wait_until(lambda: a.metric("cdcwatch_pending_entries") == 1000, 20, "read, and heard of")
        b = crew.start("b")
        wait_shared(a, b)

        def is_shared() -> bool:
            pending = [one.metric("cdcwatch_pending_entries") for one in (a, b)]
            return sum(pending) == 1000 and min(pending) > min(by_partition.values())

        wait_until(is_shared, 20, "each has its own and no other's")
        said = re.findall(r"gave up \d+ partitions? \(([\d, ]+)\)", a.said)
        gone = {int(number) for listed in said for number in listed.split(", ")}
        assert b.metric("cdcwatch_pending_entries") == sum(by_partition[number] for number in gone)

        producer = Producer({"bootstrap.servers": world.bootstrap_servers})
        for key, value in ((b"1", b"{"), (b"2", None), (None, b"{}"), (b"\xff", b"\xff"), (b"3", b'{"type":"x"}')):
            producer.produce(world.topic, value, key)
        producer.flush()
        wait_until(lambda: sum(one.metric("cdcwatch_heard_total") for one in (a, b)) >= 505, 20, "all were heard")
        world.connection.execute("UPDATE orders SET expires_at = clock_timestamp(), version = version + 1")
        world.wait_nothing_due()


def test_partitions_are_added(database: Database, broker: LocalKafka, tmp_path: Path) -> None:
    """The reader goes on telling in the old ones for minutes; an order is closed by whoever has it."""
    with world_on(broker, database, tmp_path, partitions=3) as world:
        with world.running("--role", "read"), Crew(world, tmp_path) as crew:
            a, b = crew.start("a"), crew.start("b")
            wait_shared(a, b, partitions=3)
            insert(world, 1, 300, "4 s")
            admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
            admin.create_partitions([NewPartitions(world.topic, 7)])[world.topic].result(20)
            for worker in (a, b):
                wait_until(lambda worker=worker: "orders change hands" in worker.said, 30, "it is noticed")
            insert(world, 1001, 1300, "1 s")
            world.wait_nothing_due()
            world.wait_confirmed()
        world.judge()


def test_partitions_are_added_and_the_group_does_not_learn_of_it(
    database: Database, broker: LocalKafka, tmp_path: Path
) -> None:
    """A reader that knows tells in partitions that are nobody's: the table tells whoever had the order before."""
    with world_on(broker, database, tmp_path, partitions=2) as world:
        world.configuration.write_text(
            world.configuration.read_text() + '"topic.metadata.refresh.interval.ms" = 600000\n'
        )
        with Crew(world, tmp_path) as crew:
            with world.running("--role", "read"):
                a, b = crew.start("a"), crew.start("b")
                wait_shared(a, b, partitions=2)
                admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers, "log_level": 0})
                admin.create_partitions([NewPartitions(world.topic, 6)])[world.topic].result(20)
                for worker in (a, b):
                    wait_until(lambda worker=worker: "orders change hands" in worker.said, 30, "it is noticed")
            with world.running("--role", "read"):
                insert(world, 1, 300, "0 s")
                world.wait_nothing_due()
                world.wait_confirmed()
                assert (a.has, b.has) == (1, 1)
        assert {record.partition for record in world.judge()} == set(range(6))


def test_kafka_is_away_for_longer_than_a_session(world: World, broker: LocalKafka, tmp_path: Path) -> None:
    with world.running("--role", "read"), Crew(world, tmp_path) as crew:
        a, b = crew.start("a"), crew.start("b")
        wait_shared(a, b)
        joined = [one.said.count("joined the group") for one in (a, b)]
        broker.kill()
        insert(world, 1, 300, "1 s")  # nobody can have told of them
        world.wait_nothing_due()
        for worker in (a, b):
            wait_until(lambda worker=worker: "the membership with it" in worker.said, 30, "it is over")
        insert(world, 1001, 1100, "0 s")
        world.wait_nothing_due()
        broker.start()
        for worker, before in zip((a, b), joined, strict=True):
            wait_until(
                lambda worker=worker, before=before: worker.said.count("joined the group") > before, 30, "it is back"
            )
        wait_shared(a, b)
        insert(world, 2001, 2300, "0 s")
        world.wait_nothing_due()
        world.wait_confirmed()
    world.judge()


def test_claims_of_workers_that_come_and_go(database: Database, broker: LocalKafka, tmp_path: Path) -> None:
    with (
        Endpoint().serving() as endpoint,
        world_on(broker, database, tmp_path, more=CLAIM.format(url=endpoint.url)) as world,
    ):
        with world.running("--role", "read"), Crew(world, tmp_path) as crew:
            a, b = crew.start("a"), crew.start("b")
            wait_shared(a, b)
            insert(world, 1, 300, "0 s")
            wait_until(lambda: len(endpoint.requests) > 50, 30, "calls")
            a.process.kill()
            c = crew.start("c")
            wait_shared(b, c)
            left = "SELECT count(*) FROM orders WHERE status IN ('pending', 'closing')"
            wait_until(lambda: world.scalar(left) == 0, 60, "nothing is due or claimed")
            world.wait_confirmed()
        world.judge()
    assert len(endpoint.orders) == 300
    assert set(endpoint.effects.values()) == {1}


@pytest.mark.parametrize(("role", "kills"), [("all", 1), ("read", 2)])
def test_a_standby_takes_over(world: World, tmp_path: Path, role: str, kills: int) -> None:
    """The active one dies under load, with a transaction open as often as not."""
    with contextlib.ExitStack() as stack:
        crew = stack.enter_context(Crew(world, tmp_path))
        if role == "read":
            crew.start("worker")
        active = world.run("--role", role)
        active.wait_ready()
        with Traffic(world.database.dsn, seed=7).running() as traffic:
            for _ in range(kills):
                standby = world.run("--role", role)
                before, said = traffic.committed, world.log.read_text().count("standby: ")
                wait_until(
                    lambda said=said: world.log.read_text().count("standby: ") > said, 30, "another one stands by"
                )
                wait_until(lambda before=before: traffic.committed > before + 30, 60, "traffic")
                active.kill()
                standby.wait_ready()
                active = standby
        world.wait_nothing_due()
        world.wait_confirmed()
        active.stop()
    world.judge()
