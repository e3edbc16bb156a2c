"""A consumer in a process of its own, to be killed: `python -m tests.fault.consumer_process '{…}'`.

Its handler writes the event's id into the table effects. At the event `deadly` it kills itself between the effect and its
record, the first time; at `killer` each time; at `slow` it goes on once it was told to stop.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psycopg

from cdcwatch.consume import Consumer, Event, MemoryStore, PostgresStore, RedisStore, each


def main(told: dict[str, Any]) -> None:
    mark, own = Path(told["mark"]), psycopg.connect(told["dsn"], autocommit=True)

    def effect(event: Event, connection: psycopg.Connection[Any]) -> None:
        if event.id == "slow":
            own.execute("INSERT INTO effects VALUES ('slow has begun')")
            consumer._stopping.wait()
        connection.execute("INSERT INTO effects VALUES (%s)", [event.id])
        if event.id == "killer" or (event.id == "deadly" and not mark.exists()):
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    stores = {
        "transaction": [MemoryStore(), PostgresStore(told["dsn"])],
        "postgres": [MemoryStore(), PostgresStore(told["dsn"])],
        "redis": [MemoryStore(), RedisStore(told["redis"], prefix=told["topic"])],
    }[told["mode"]]
    handler = (
        each(effect, in_transaction=True) if told["mode"] == "transaction" else each(lambda event: effect(event, own))
    )
    consumer = Consumer(
        told["topic"],
        group=told["group"],
        bootstrap_servers=told["kafka"],
        start="earliest",
        handler=handler,
        stores=stores,
        lease_s=2,
        tries=2,
        # The same member again, and not a new one: its partitions needn't be waited for.
        client={"session.timeout.ms": 30_000, "group.instance.id": "one"},
    )
    consumer.run()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
