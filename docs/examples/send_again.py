r"""Has a dead letter handled after all: it is forgotten in PostgreSQL, then sent to the topic that it came from.

    kcat -C -b localhost:9092 -t orders.deadlines.stock.dead -e -f '%p %o %k %h\n'
    KAFKA=localhost:9092 STOCK_DSN="dbname=stock" python docs/examples/send_again.py orders.deadlines.stock.dead 0 17

The first line lists them: partition, offset, key, headers. The second sends the one of that partition and offset, key,
value and headers as they were, into the partition where it was. It stays in the topic of dead letters, too.

Mend first what it failed for. For a group whose last store is in Redis, RedisStore in place of PostgresStore.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys

from confluent_kafka import Consumer, Producer, TopicPartition

from cdcwatch.consume import CdcwatchError, NotAnEventError, PostgresStore, Record, decode_cloudevent

KAFKA = {"bootstrap.servers": os.environ.get("KAFKA", "localhost:9092")}
WAIT_S = 15


def letter(topic: str, partition: int, offset: int) -> Record:
    """The record at that place."""
    reader = Consumer({**KAFKA, "group.id": "send-again", "enable.auto.commit": False, "auto.offset.reset": "error"})
    reader.assign([TopicPartition(topic, partition, offset)])
    try:
        found = reader.poll(WAIT_S)
        if found is None or found.error():
            sys.exit(f"nothing at {topic}/{partition} offset {offset}: {found.error() if found else 'no answer'}")
        headers = tuple(found.headers() or ())
        return Record(topic, partition, offset, key=found.key(), value=found.value(), headers=headers)
    finally:
        reader.close()


def forget(dead: Record, group: str) -> int:
    """As if its event had never been seen; how many were known."""
    try:
        event = decode_cloudevent(dead)  # or the `decode` of your consumer
    except NotAnEventError:
        return 0  # then nothing was kept
    store = PostgresStore(os.environ.get("STOCK_DSN", "dbname=stock"))
    try:
        store.open(group)
        return store.forget([event.identity])
    finally:
        store.close()


def send(dead: Record, topic: str, partition: int) -> None:
    """As it was before it died."""
    headers = [(name, value) for name, value in dead.headers if not name.startswith("dead_")]
    errors: list[object] = []
    producer = Producer({**KAFKA, "acks": "all"})
    producer.produce(
        topic, dead.value, dead.key, partition, headers=headers, on_delivery=lambda error, _: errors.append(error)
    )
    producer.flush(WAIT_S)
    if errors != [None]:
        sys.exit(f"it was not sent: {errors or 'no answer'}")


def main() -> None:
    """One letter."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(description="Has a dead letter handled after all.")
    parser.add_argument("topic")
    parser.add_argument("partition", type=int)
    parser.add_argument("offset", type=int)
    asked = parser.parse_args()
    dead = letter(asked.topic, asked.partition, asked.offset)
    group, origin, place = (dead.header(f"dead_{name}") for name in ("group", "topic", "partition"))
    if group is None or origin is None or place is None:
        sys.exit("that is no dead letter: it has no header dead_group, dead_topic or dead_partition")
    logging.info("forgotten: %d", forget(dead, group))
    send(dead, origin, int(place))
    logging.info("sent to %s", origin)


if __name__ == "__main__":
    try:
        main()
    except CdcwatchError as error:
        sys.exit(f"{error}\nremedy: {error.remedy}")
