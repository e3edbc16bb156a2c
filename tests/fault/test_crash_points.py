"""Ended, killed, broken and frozen at every hand-off: nothing lost, nothing twice, nothing early or confirmed early.

Every failpoint once, with the actions in turn; `test_crash_matrix.py` has them all.
"""

from __future__ import annotations

import re
import signal
from collections import Counter
from typing import TYPE_CHECKING

from psycopg.conninfo import make_conninfo

from cdcwatch.failpoints import EXIT_CODE, NAMES, VARIABLE
from tests import services
from tests import topic as topics
from tests.command import run_to_the_end, write_configuration
from tests.fault.crash import (
    ALSO,
    CLOSINGS,
    INSIDE,
    PAUSE,
    WINDOW,
    Crashes,
    CrashPoint,
    Said,
    crashes_under_load,
    provocation,
    terminate_walsender,
)
from tests.fault.test_claim_crashes import CLAIMS
from tests.fault.test_file_sink import CRASHES as FILE
from tests.fault.test_redis import POINTS as REDIS
from tests.integration.test_redis_sink import READ_POINTS as REDIS_READ
from tests.oracle.world import World
from tests.slots import QUIET
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.command import Ended
    from tests.services import Database, Kafka, Postgres

ORDERS_LATER = "INSERT INTO orders (id, expires_at) SELECT n, '2999-01-01' FROM generate_series(1, %s) n"
ORDERS_SOON = """
INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() + n * interval '1 ms' FROM generate_series(1, %s) n
"""
BATCH = "inside:500"


def assert_closings(world: World) -> None:
    """What `also` did stands exactly for the closes that were committed; its primary key tells of a second time."""
    committed = "SELECT new_id, new_deadline FROM ledger WHERE new_status = 'expired' AND old_status <> 'expired'"
    done = "SELECT id, expires_at FROM closings"
    for one, other in ((committed, done), (done, committed)):
        assert world.scalar(f"SELECT count(*) FROM ({one} EXCEPT ({other})) differing") == 0


def ascii_client(database: Database) -> Database:
    """Else the test's own texts would be bytes."""
    database.dsn = make_conninfo(database.dsn, client_encoding="UTF8")
    return database


# The second or a later time: once the process is at work. The first: as it starts, after the crash before.
ENDINGS = [
    CrashPoint("stream.acquired", "kill"),
    CrashPoint("stream.read", "exit", "3"),
    CrashPoint("stream.parsed", "raise", "3"),
    CrashPoint("heap.scheduled", "kill", "4"),
    CrashPoint("outbox.offered", "exit"),
    CrashPoint("feedback.built", "raise", "2"),
    CrashPoint("feedback.sent", "kill"),
    CrashPoint("sink.opened", "exit"),
    CrashPoint("publish.taken", "raise", "2"),
    CrashPoint("kafka.produced", "kill", "3"),
    CrashPoint("kafka.committed", "exit", "2"),
    CrashPoint("publish.acknowledged", "raise"),
    CrashPoint("close.begun", "exit", "2"),
    CrashPoint("close.uncommitted", "kill", "2"),
    CrashPoint("close.committed", "kill"),
    CrashPoint("close.settled", "exit", "2"),
    CrashPoint("window.extended", "kill", "2"),
    CrashPoint("window.loaded", "exit"),
    CrashPoint("stream.lost", "raise"),
    CrashPoint("stop.begun", "raise"),
    CrashPoint("stop.confirmed", "kill"),
    CrashPoint("stop.drained", "exit"),
    CrashPoint("kafka.committed", "term", "2"),
]
# Threads that go on: several at a time in one process.
SURVIVED = [
    CrashPoint("stream.read", PAUSE, "3"),
    CrashPoint("close.begun", "raise", "2"),
    CrashPoint("close.uncommitted", PAUSE, "4"),
    CrashPoint("close.committed", "raise", "7"),
    CrashPoint("close.settled", "raise", "9"),
    CrashPoint("window.extended", "raise", "2"),
    CrashPoint("window.loaded", PAUSE),
    CrashPoint("kafka.produced", PAUSE, "2"),
]
# All in one transaction of 10,000 rows: each process finds it where the one before left it.
INSIDE_AN_INSERT = [
    CrashPoint("stream.read", "kill", INSIDE),
    CrashPoint("stream.parsed", "exit", INSIDE),
    CrashPoint("outbox.offered", "raise", INSIDE),
    CrashPoint("publish.taken", "kill", INSIDE),
    CrashPoint("kafka.produced", "exit", INSIDE),
    CrashPoint("kafka.committed", "kill", INSIDE),
    CrashPoint("publish.acknowledged", "raise", INSIDE),
]
INSIDE_A_SPIKE = [
    CrashPoint("heap.scheduled", "exit", INSIDE),
    CrashPoint("close.begun", "kill", BATCH),
    CrashPoint("close.committed", "exit", BATCH),
]
AT_LEAST_ONCE = [
    CrashPoint("kafka.produced", "kill", "2"),
    CrashPoint("kafka.delivered", "exit", "2"),
    CrashPoint("kafka.delivered", "raise"),
    CrashPoint("publish.acknowledged", "kill", "2"),
]
FIRST_READ = [
    (CrashPoint("snapshot.scanned", "kill", "2"),),
    (CrashPoint("snapshot.scanned", "raise", "inside:3000"),),
    (CrashPoint("snapshot.scanned", "exit"),),
    # The server ends the transaction of a reader that rests; the read is done again, and the process dies with it.
    (CrashPoint("snapshot.scanned", PAUSE, "2"), CrashPoint("snapshot.published", "kill")),
]


def test_crashed_at_every_hand_off_under_load(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path, WINDOW + ALSO) as world:
        world.connection.execute(CLOSINGS)
        world.install()
        with crashes_under_load(world, 1) as crashes:
            for point in ENDINGS:
                crashes.crash(point, **provocation(world, point))
            said = crashes.crash(*SURVIVED)
        crashes.recovered()
        assert_closings(world)
    assert re.search("reader: .*; again in", said), "the server gave up a reader that rested"
    assert "closing waits for the database" in said, "and a worker that rested in a transaction"
    assert "a close worker failed: FailpointError" in said
    assert "the window can't be read: FailpointError" in said


def test_crashed_inside_a_transaction_of_10_000_rows(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        crashes = Crashes(world)
        with world.running():
            pass
        world.connection.execute(ORDERS_LATER, [10_000])
        for point in INSIDE_AN_INSERT:
            crashes.crash(point)
        world.connection.execute("UPDATE orders SET expires_at = clock_timestamp(), version = version + 1")
        for point in INSIDE_A_SPIKE:
            crashes.crash(point)
        records = crashes.recovered()
    assert len(records) == 30_000


def test_crashed_at_least_once(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> None:
    with World(
        database, kafka.bootstrap_servers, topic, tmp_path, kafka={"delivery": "at_least_once"}, plugin="pgoutput"
    ) as world:
        world.install()
        with crashes_under_load(world, 2) as crashes:
            for point in AT_LEAST_ONCE:
                crashes.crash(point)
        crashes.recovered(exactly_once=False)


def test_crashed_in_the_first_read(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        crashes = Crashes(world)
        world.connection.execute(ORDERS_LATER, [6_000])
        for points in FIRST_READ:
            crashes.crash(*points)
        world.connection.execute("UPDATE orders SET status = 'paid'")
        records = crashes.recovered()
    assert sum(record.event["data"]["snapshot"] for record in records) == 6_000


def test_what_is_closed_before_the_first_read_is_published_is_told(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    """Killed over the read, with closes committed: no later read shows these orders, and the stream tells of them."""
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        world.connection.execute(ORDERS_LATER, [3_000])
        world.connection.execute("UPDATE orders SET expires_at = clock_timestamp() WHERE id <= 1000")
        crashes = Crashes(world)
        crashes.crash(CrashPoint("close.settled", "kill", "2"), armed_too=[CrashPoint("snapshot.scanned", "pause:120")])
        assert world.records() == []
        assert world.scalar("SELECT count(*) FROM orders WHERE status = 'expired'") == 1_000
        with world.running():
            world.wait_confirmed()
        told = Counter((record.event["type"], record.key) for record in world.records())
    assert told == {
        **{("deadline.expired", str(key)): 1 for key in range(1, 1_001)},
        **{("deadline.scheduled", str(key)): 1 for key in range(1_001, 3_001)},
    }


def test_frozen_until_another_has_taken_over(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> None:
    """Asleep with a transaction open at the broker and a close at hand; both go on when it wakes, and find it over."""
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        with world.running():
            pass
        armed = f"kafka.produced={PAUSE},close.begun={PAUSE}"
        said = Said(world)
        first = world.run(environment={VARIABLE: armed})
        second = None
        try:
            first.wait_ready()
            world.connection.execute(ORDERS_SOON, [300])
            wait_until(lambda: said.now().count("failpoint ") == 2, 30, "both threads rest")
            first.signal(signal.SIGSTOP)
            second = world.run()
            terminate_walsender(world)
            second.wait_ready()
            world.wait_nothing_due()
            first.signal(signal.SIGCONT)
            wait_until(lambda: "beginning anew" in said.now(), 60, "the first finds itself fenced")
            world.wait_confirmed()
            for process in (first, second):
                process.stop()
        finally:
            for process in (first, second):
                if process is not None:
                    process.kill()
        world.judge()


def test_crashed_at_a_dead_letter(postgres: Postgres, kafka: Kafka, topic: str, tmp_path: Path) -> None:
    """Its neighbours and itself once each, though the process ended three times as it was handed over."""
    with (
        services.fresh_database(postgres, encoding="SQL_ASCII") as database,
        World(ascii_client(database), kafka.bootstrap_servers, topic, tmp_path) as world,
    ):
        world.install()
        with world.running():
            pass
        crashes = Crashes(world)
        world.connection.execute(
            r"INSERT INTO orders (id, status, expires_at) VALUES"
            r" (1, 'pending', '2999-01-01'), (2, E'p\xe9', '2999-01-01'), (3, 'pending', '2999-01-01')"
        )
        for action in ("kill", "exit", "raise"):
            crashes.crash(CrashPoint("kafka.dead_letter", action))
        with world.running():
            world.wait_confirmed()
        assert sorted(record.id[-2:] for record in world.records()) == ["-1", "-3"]
        (letter,) = topics.read_topic(world.bootstrap_servers, f"{topic}.dead")
        assert letter.key is not None
        assert letter.key.endswith(b"-2")


def test_crashed_while_a_slot_is_made(database: Database, slot: str, tmp_path: Path) -> None:
    """Killed, it leaves what the next try takes up; broken, it leaves nothing."""
    shop = write_configuration(
        tmp_path / "shop.toml", database.dsn, f'[slot]\nname = "{slot}"\nplugin = "pgoutput"\n' + QUIET
    )

    def create(armed: str) -> Ended:
        return run_to_the_end("slot", "create", "-c", shop, environment={VARIABLE: armed})

    def left() -> tuple[int, int]:
        with database.connect() as connection:
            row = connection.execute(
                "SELECT (SELECT count(*) FROM pg_publication),"
                " (SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s)",
                [slot],
            ).fetchone()
        assert row is not None
        return row

    for point in ("slot.publication_made", "slot.made"):
        broken = create(f"{point}=raise")
        assert broken.code == 1
        assert f"failpoint {point}" in broken.err
        assert "cdcwatch: unexpected FailpointError" in broken.err
        assert "remedy: " in broken.err
        assert left() == (0, 0), point
    killed = create("slot.publication_made=kill")
    assert (killed.code, left()) == (-signal.SIGKILL, (1, 0))
    ended = create("slot.made=exit")
    assert (ended.code, left()) == (EXIT_CODE, (1, 1))
    again = create("")
    assert (again.code, left()) == (0, (1, 1)), again.said


def test_every_failpoint_is_reached_above() -> None:
    points = [*ENDINGS, *SURVIVED, *INSIDE_AN_INSERT, *INSIDE_A_SPIKE, *AT_LEAST_ONCE, *sum(FIRST_READ, ())]
    elsewhere = {"kafka.dead_letter", "slot.publication_made", "slot.made"}
    elsewhere |= {point.name for point in (*CLAIMS, *FILE, *REDIS)} | {*REDIS_READ}
    assert {point.name for point in points} | elsewhere == set(NAMES)
