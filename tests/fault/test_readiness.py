"""/readyz tells the truth about a broker that is there and answers nothing, and a table that nobody may write to."""

from __future__ import annotations

import json
import os
import re
import signal
from typing import TYPE_CHECKING, Any

import psycopg

from tests import services
from tests.fault.test_outages import TOPIC
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cdcwatch.local import LocalKafka
    from tests.services import Database


def lock_an_open_order(world: World, locker: psycopg.Connection[Any]) -> None:
    """A transaction that holds the table, begun while an order of it was open that is due by now or soon."""
    for number in range(1000, 2000):
        world.connection.execute(
            "INSERT INTO orders (id, expires_at) VALUES (%s, clock_timestamp() + interval '1 s')", [number]
        )
        locker.execute("BEGIN; LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        row = locker.execute("SELECT status FROM orders WHERE id = %s", [number]).fetchone()
        if row == ("pending",):
            return
        locker.execute("ROLLBACK")


def lines(world: World, begin: str) -> list[dict[str, Any]]:
    """Of the log, which is JSON: those that begin so."""
    told = [json.loads(line) for line in world.log.read_text().splitlines() if line.endswith("}")]
    return [one for one in told if one["message"].startswith(begin)]


def test_it_is_not_ready_while_broker_or_table_do_not_answer_and_says_which(
    database: Database, own_kafka: LocalKafka, tmp_path: Path
) -> None:
    services.create_topic(own_kafka, TOPIC, partitions=1)
    # As the role of sql/install.sql has it: a locked table is an answer, again and again.
    dsn = psycopg.conninfo.make_conninfo(database.dsn, options="-c lock_timeout=500ms")
    json_log = 'log_format = "json"\n'
    with (
        World(database, own_kafka.bootstrap_servers, TOPIC, tmp_path, json_log) as world,
        database.connect() as locker,
    ):
        world.install()
        world.configuration.write_text(world.configuration.read_text().replace(database.dsn, dsn))
        world.listen()

        def wait_for(what: str, told: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
            return wait_until(lambda: told(state := world.readiness()) and state, 60, what, every_s=0.1)

        with world.running():
            wait_for("ready", lambda state: state["ready"])
            assert own_kafka.pid is not None
            os.kill(own_kafka.pid, signal.SIGSTOP)
            try:
                lock_an_open_order(world, locker)
                wait_for("the closer tells", lambda state: "others hold it locked" in state["closer"]["reason"])
                state = wait_for("the sink tells", lambda state: "not been acknowledged" in state["sink"]["reason"])
                (told,) = wait_until(lambda: lines(world, "sink: unreachable: Kafka: "), 30, "the log tells it once")
            finally:
                os.kill(own_kafka.pid, signal.SIGCONT)
            assert told["level"] == "warning"
            assert told["reason"].startswith("Kafka: ")
            assert re.fullmatch(r"[0-9A-F]+/[0-9A-F]+", told["lsn"])
            assert (state["ready"], state["sink"]["ready"], state["reader"]["ready"]) == (False, False, True)
            assert world.metric("cdcwatch_ready") == 0
            assert world.metric("cdcwatch_sink_waiting_seconds") > 0
            assert world.metric("cdcwatch_closer_waiting_seconds") > 0
            locker.execute("ROLLBACK")
            wait_for("ready again", lambda state: state["ready"])
            world.wait_nothing_due()
            world.wait_confirmed()
            wait_until(lambda: lines(world, "sink: it acknowledges again, after "), 30, "the log tells its return")
            assert len(lines(world, "sink: unreachable: ")) == 1
            (taken,) = lines(world, f"the slot {world.slot} is ours")
            assert {"slot", "lsn"} <= set(taken)
        world.judge()
