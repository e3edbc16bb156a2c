"""The sweep and claims together: an order that the stream never told of is claimed, called, recorded and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.endpoint import Endpoint
from tests.oracle.world import World
from tests.orders import make_claims
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka

CONFIGURATION = """
[close]
action = "claim"
[close.claim]
url = "{url}"
[sweep]
interval_s = 0.5
grace_ms = 300
"""


def test_what_the_stream_did_not_tell_is_claimed_called_and_counted(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with (
        Endpoint().serving() as endpoint,
        World(database, kafka.bootstrap_servers, topic, tmp_path, CONFIGURATION.format(url=endpoint.url)) as world,
    ):
        world.listen()
        make_claims(world.connection)
        world.install()
        with world.running():
            # Told by the stream: not of the sweep's making.
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT n, clock_timestamp() FROM generate_series(1, 5) n"
            )
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT n, '2999-01-01' FROM generate_series(11, 20) n"
            )
            world.wait_nothing_due_but(10)
            wait_until(lambda: world.scalar("SELECT count(*) FROM cdcwatch.claims") == 0, 60, "all are recorded")
            world.wait_confirmed()
            before = world.metric("cdcwatch_recovered_total")
            # DDL writes every row anew, and the stream tells of none.
            world.connection.execute(
                "ALTER TABLE orders ALTER expires_at TYPE timestamptz"
                " USING CASE WHEN id > 10 THEN expires_at - interval '980 years' ELSE expires_at END"
            )
            closed = "SELECT count(*) FROM orders WHERE status = 'expired'"
            wait_until(lambda: world.scalar(closed) == 15, 60, "all are closed")
            wait_until(lambda: world.metric("cdcwatch_recovered_total") == before + 10, 60, "counted")
            assert world.metric('cdcwatch_closes_total{outcome="claimed"}') == 15
            assert world.metric('cdcwatch_closes_total{outcome="closed"}') == 15
            world.wait_confirmed()
        assert endpoint.effects == {str(n): 1 for n in (*range(1, 6), *range(11, 21))}
        assert world.scalar("SELECT count(*) FROM cdcwatch.claims") == 0
        ended = [record.key for record in world.records() if record.event["type"] == "deadline.expired"]
        assert sorted(map(str, ended)) == sorted(endpoint.effects)
