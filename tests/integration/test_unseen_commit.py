"""A commit that the stream has and nobody else sees yet: with synchronous replication that lasts until the standby answers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from psycopg.conninfo import make_conninfo

from tests.oracle.world import World
from tests.services import fresh_database
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from cdcwatch.local import LocalPostgres
    from tests.services import Kafka

NO_SWEEP = "[sweep]\ninterval_s = 0\n"


def test_an_order_that_is_due_before_anybody_sees_it_is_closed_when_it_appears(
    own_postgres: LocalPostgres, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with (
        fresh_database(own_postgres) as database,
        World(database, kafka.bootstrap_servers, topic, tmp_path, NO_SWEEP) as world,
    ):
        world.listen()
        world.install()
        # Closes, and what the test itself does, wait for no standby.
        text = world.configuration.read_text()
        local = make_conninfo(database.dsn, options="-c synchronous_commit=local")
        world.configuration.write_text(text.replace(database.dsn, local))
        world.connection.execute("SET synchronous_commit = local")
        with world.running(), database.connect() as customer:
            world.connection.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
            world.connection.execute("SELECT pg_reload_conf()")
            wait_until(
                lambda: world.scalar("SHOW synchronous_standby_names") == "nobody", 20, "a standby is waited for"
            )
            ordering = threading.Thread(
                target=customer.execute, args=("INSERT INTO orders (id, expires_at) VALUES (1, clock_timestamp())",)
            )
            ordering.start()
            gone = 'cdcwatch_closes_total{outcome="gone"}'
            wait_until(
                lambda: world.metric("cdcwatch_close_batch_seconds_count") >= 2,
                30,
                "it was due, not there, and tried again",
            )
            assert world.scalar("SELECT count(*) FROM orders") == 0
            world.connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            world.connection.execute("SELECT pg_reload_conf()")
            ordering.join()
            closed = "SELECT count(*) FROM orders WHERE status = 'expired'"
            wait_until(lambda: world.scalar(closed) == 1, 30, "it is closed without a sweep")
            assert world.metric(gone) == 0, "and was never gone"
            world.wait_confirmed()
        world.judge()
