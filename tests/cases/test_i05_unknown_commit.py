"""I5: the connection breaks between the COMMIT of a close and its answer: the rows tell, and it counts once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.oracle.ledger import closes, read_ledger
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database, Kafka


def test_i05_a_close_whose_answer_was_lost_counts_as_closed(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    with World(database, kafka.bootstrap_servers, topic, tmp_path) as world:
        world.install()
        world.listen()
        # The statement is committed; what it answered never reaches the closer.
        process = world.run(environment={"CDCWATCH_FAILPOINTS": "close.committed=raise@first"})
        process.wait_ready()
        world.connection.execute("INSERT INTO orders (id, expires_at) SELECT n, now() FROM generate_series(1, 50) n")
        world.wait_nothing_due()

        def known(outcome: str) -> float:
            return world.metric(f'cdcwatch_closes_total{{outcome="{outcome}"}}')

        wait_until(lambda: known("closed") + known("found_closed") == 50, 30, "all are known as closed")
        assert known("found_closed") > 0
        assert "failpoint" in world.log.read_text()
        assert known("already_closed") == 0
        world.wait_confirmed()
        process.stop()
        assert len(closes(read_ledger(world.connection))) == 50
        world.judge()
