"""Gives an order's stock back when its deadline has come. Effect and record commit together: each order exactly once.

    psql -d stock -f docs/examples/stock_release.sql   # stock and reservations
    psql -d stock -f sql/install_consume.sql           # which events were handled
    KAFKA=localhost:9092 STOCK_DSN="dbname=stock" python docs/examples/stock_release.py

It works once it says `joined group stock, has partitions …`, and waits for Kafka and PostgreSQL where they are away.
It ends at Ctrl-C or SIGTERM, after the order at hand. Start as many as the topic has partitions; they share them.
"""

from __future__ import annotations

import logging
import os
import sys

from cdcwatch.consume import CdcwatchError, Connection, Consumer, DeadlineEvent, Event, MemoryStore, PostgresStore, each

RELEASE = """
WITH released AS (
    UPDATE reservations SET released_at = clock_timestamp()
     WHERE order_id = %s AND released_at IS NULL
    RETURNING sku, quantity
)
UPDATE stock SET available = available + released.quantity FROM released WHERE stock.sku = released.sku
"""


def release(event: Event, connection: Connection) -> None:
    """Runs in a transaction that also records the event as handled. Don't commit here: it is done for you."""
    order = DeadlineEvent.of(event)
    if order.key is not None:
        rows = connection.execute(RELEASE, [order.key["id"]]).rowcount
        logging.info("order %s: articles given back: %d", order.key["id"], rows)


def main() -> None:
    """Until it is told to stop."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)-7s %(message)s")
    Consumer(
        os.environ.get("TOPIC", "orders.deadlines"),
        group="stock",
        bootstrap_servers=os.environ.get("KAFKA", "localhost:9092"),
        start="earliest",
        types={"deadline.expired"},
        handler=each(release, in_transaction=True),
        # The memory spares the database the question about what was just handled.
        stores=[MemoryStore(), PostgresStore(os.environ.get("STOCK_DSN", "dbname=stock"))],
    ).run()


if __name__ == "__main__":
    try:
        main()
    except CdcwatchError as error:
        sys.exit(f"{error}\nremedy: {error.remedy}")
