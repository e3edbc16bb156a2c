"""A read_committed subscriber that takes down everything, as anyone downstream would see it."""

from __future__ import annotations

import json
import uuid
from collections import defaultdict
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from confluent_kafka import Consumer, KafkaError, TopicPartition

from cdcwatch.handoff.kafka.values import Values
from cdcwatch.lsn import parse_lsn
from cdcwatch.settings import KafkaSettings
from tests.oracle.ledger import Said
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class Record(NamedTuple):
    """One record of the topic."""

    partition: int
    offset: int
    key: str | None
    event: dict[str, Any]

    @property
    def id(self) -> str:
        return str(self.event["id"])

    @property
    def is_gap(self) -> bool:
        return str(self.event["type"]) == "stream.gap"

    @property
    def commit_lsn(self) -> int:
        return parse_lsn(self.event["data"]["commit_lsn"])

    @property
    def said(self) -> Said:
        data = self.event["data"]
        return Said(
            self.event["type"],
            _instant(data["deadline"]),
            _instant(data["previous_deadline"]),
            data.get("reason"),
        )


def _instant(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _consumer(bootstrap_servers: str, isolation_level: str = "read_committed") -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap_servers,
            "group.id": f"oracle-{uuid.uuid4().hex}",
            "enable.auto.commit": False,
            "isolation.level": isolation_level,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )


def read_topic(bootstrap_servers: str, topic: str) -> list[Record]:
    """Everything committed so far, partition by partition in order."""
    consumer, as_json = _consumer(bootstrap_servers), Values(KafkaSettings()).as_json
    try:
        partitions = list(consumer.list_topics(topic, timeout=10).topics[topic].partitions)
        consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
        open_partitions, records = set(partitions), []

        def read_on() -> bool:
            message = consumer.poll(0.2)
            if message is None:
                return False
            error = message.error()
            if error is None:
                key = message.key()
                records.append(
                    Record(
                        message.partition(),
                        message.offset(),
                        None if key is None else key.decode(),
                        json.loads(as_json(message.value(), message.headers) or b""),
                    )
                )
            elif error.code() == KafkaError._PARTITION_EOF:
                open_partitions.discard(message.partition())
            else:
                raise AssertionError(error)
            return not open_partitions

        wait_until(read_on, 60, f"the end of {topic}", every_s=0)
        return sorted(records, key=lambda record: (record.partition, record.offset))
    finally:
        consumer.close()


def committed_ends(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """Partition to the offset up to which a read_committed subscriber can read now."""
    return _ends(bootstrap_servers, topic, "read_committed")


def sent_ends(bootstrap_servers: str, topic: str) -> dict[int, int]:
    """Partition to the offset up to which it holds anything.

    A subscriber sees a transaction's events some moments after its commit was decided and confirmed. Events of one that
    came to nothing are sent again, further on, so that they can't pass for what was there.
    """
    return _ends(bootstrap_servers, topic, "read_uncommitted")


def _ends(bootstrap_servers: str, topic: str, isolation_level: str) -> dict[int, int]:
    consumer = _consumer(bootstrap_servers, isolation_level)
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        return {p: consumer.get_watermark_offsets(TopicPartition(topic, p), timeout=10)[1] for p in partitions}
    finally:
        consumer.close()


def by_key(records: Iterable[Record], key_of: Callable[[str], Any] = int) -> dict[Any, list[Record]]:
    """Key to its records, in the topic's order; a key lives in one partition."""
    found: dict[Any, list[Record]] = defaultdict(list)
    for record in records:
        if record.key is not None and not record.is_gap:
            found[key_of(record.key)].append(record)
    return found


def assert_topic(
    records: list[Record],
    expected: dict[Any, list[Said]],
    *,
    exactly_once: bool,
    key_of: Callable[[str], Any] = int,
) -> None:
    """Every change is there, in order per key; twice only where at least once was asked for, with equal ids."""
    seen: set[str] = set()
    first = []
    for record in records:
        if record.id not in seen:
            seen.add(record.id)
            first.append(record)
    if exactly_once:
        assert len(first) == len(records), f"{len(records) - len(first)} events came twice"
    found = by_key(first, key_of)
    for key in expected.keys() | found.keys():
        assert [record.said for record in found.get(key, [])] == expected.get(key, []), f"order {key}"
    for its in found.values():
        assert len({record.partition for record in its}) == 1
        places = [(record.commit_lsn, int(record.id.rpartition("-")[2])) for record in its]
        assert places == sorted(places), "out of commit order"


def assert_nothing_confirmed_early(records: list[Record], confirmed_lsn: int, ends: dict[int, int], *, at: str) -> None:
    """Every event of a transaction that was confirmed stood in the topic when it was.

    Its first record counts: a server that crashed may have forgotten what was confirmed, and have it told again.
    """
    seen: set[str] = set()
    for record in records:
        if record.id not in seen and record.commit_lsn < confirmed_lsn:
            assert record.offset < ends[record.partition], f"{record.id} was confirmed before it was published ({at})"
        seen.add(record.id)
