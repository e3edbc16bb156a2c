"""Killed between the outside's answer and its record, and everywhere around it: one effect an order and deadline."""

from __future__ import annotations

import random
import threading
from collections import Counter
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from cdcwatch.close.attempt import idempotency_key
from cdcwatch.instant import parse_instant
from tests.endpoint import Answer, Endpoint, Request
from tests.fakes.table import WATCHED
from tests.fault.crash import Crashes, CrashPoint
from tests.oracle.ledger import claims, closes, read_ledger
from tests.oracle.traffic import Traffic
from tests.oracle.world import World
from tests.orders import make_claims
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.oracle.ledger import Entry
    from tests.services import Database, Kafka

# Short, so that what a killed process has claimed is taken over within the test.
CONFIGURATION = """
[close]
action = "claim"
[close.claim]
url = "{url}"
timeout_s = 1
stuck_after_s = 2
batch_rows = 20
concurrency = 8
"""
CLAIMS = [CrashPoint("claim.answered", "kill", "3"), CrashPoint("claim.recorded", "exit", "2")]
AROUND = [CrashPoint("close.committed", "kill")]


def test_killed_between_the_answer_and_the_record(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> None:
    early: list[Request] = []
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    choose = random.Random(seed)

    def answer(request: Request) -> Answer:
        # The server's clock is this machine's.
        if datetime.now(UTC) < datetime.fromisoformat(request.body["deadline"]):
            early.append(request)
        with endpoint.lock:
            chance = choose.random()
        return Answer(503, {"retry-after": "0"}) if chance < 0.1 else Answer()

    with (
        Endpoint().serving() as endpoint,
        World(database, kafka.bootstrap_servers, topic, tmp_path, CONFIGURATION.format(url=endpoint.url)) as world,
    ):
        endpoint.answer = answer
        make_claims(world.connection)
        world.install()
        with world.running():
            pass
        crashes = Crashes(world)
        with Traffic(database.dsn, seed=seed, rest_s=0.15).running():
            for point in (*CLAIMS, *AROUND):
                crashes.crash(point)
            process = world.run()
            process.wait_ready()
            # Any moment: a wait for a signal would always find the process at the same place.
            threading.Event().wait(choose.uniform(0, 0.7))
            process.kill()
        left = "SELECT count(*) FROM orders WHERE status IN ('pending', 'closing')"
        with world.running():
            wait_until(lambda: world.scalar(left) == 0, 60, "nothing is due or claimed")
            wait_until(lambda: world.scalar("SELECT count(*) FROM cdcwatch.claims") == 0, 60, "every claim has ended")
            world.wait_confirmed()
        world.judge()
        ledger = read_ledger(world.connection)

    def same(entries: list[Entry]) -> Counter[str]:
        return Counter(
            idempotency_key(WATCHED, entry.new_id, parse_instant(f"{entry.new_deadline}"))  # type: ignore[arg-type]
            for entry in entries
        )

    assert early == []
    assert len(closes(ledger)) > 20
    assert set(same(closes(ledger)).values()) == {1}
    # Every close had its effect; and no effect without a claim. A key stands for one order and one deadline.
    assert same(closes(ledger)).keys() <= endpoint.orders.keys() <= same(claims(ledger)).keys()
    repeated = Counter(request.key for request in endpoint.requests if request.key in endpoint.orders)
    assert max(repeated.values()) > 1, "some were asked for again"
