"""Reads the topic as any subscriber would: committed records only, by assignment, without a consumer group.

https://kafka.apache.org/documentation/#consumerconfigs_isolation.level
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.handoff.kafka.client import (
    HARMLESS,
    METADATA_TIMEOUT_S,
    client_configuration,
    connected_client,
    explain_kafka,
    explain_kafka_exception,
    partition_count,
    topic_command,
)
from cdcwatch.handoff.kafka.values import Values
from cdcwatch.handoff.record import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from confluent_kafka import Message

    from cdcwatch.settings import KafkaSettings

_POLL_S: Final = 0.2
_STALLED_S: Final = 8.0
# Commit markers take offsets too, so that N records may spread over more than N offsets.
_OFFSETS_A_RECORD: Final = 2
_FIRST_SPAN: Final = 2000
_PASSING: Final = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, HARMLESS})  # noqa: SLF001


class TopicTail:
    """A reader of one topic. Not for several threads; close it with `with`."""

    def __init__(
        self,
        settings: KafkaSettings,
        *,
        is_ended: Callable[[], bool] = lambda: False,
        wanted: Callable[[Record], bool] = lambda _record: True,
    ) -> None:
        """Connects. PreconditionError without the topic, UnavailableError without the broker, within 10 s.

        `is_ended` is asked between polls; once it is true every iteration ends. Records that are not `wanted` are
        passed over.
        """
        self._wanted = wanted
        self.read_count = 0
        """Committed records of the last reading, wanted or not."""
        self._topic = self.topic = settings.topic
        self._as_json = Values(settings).as_json
        self._is_ended = is_ended
        configuration = {
            **client_configuration(settings),
            "group.id": f"cdcwatch-events-{time.time_ns()}",  # librdkafka wants one; nothing is ever committed to it
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
        self._consumer: Consumer = connected_client(Consumer, configuration, settings.topic)
        try:
            self._low, self._high = self._watermarks(_existing(self._consumer, settings))
            self._next = dict(self._low)
        except BaseException:
            self._consumer.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Lets go."""
        self._consumer.close()

    def so_far(self) -> Iterator[Record]:
        """Every record up to what the topic held when this reader connected; in order within a partition."""
        return filter(self._wanted, self._until_end(self._low))

    def last(self, count: int) -> list[Record]:
        """The last `count` records of the whole topic by their timestamps, in that order."""
        span = count * _OFFSETS_A_RECORD
        while True:
            start = {partition: max(self._low[partition], end - span) for partition, end in self._high.items()}
            records = list(filter(self._wanted, self._until_end(start))) if count else []
            # What a partition gave is its own newest; enough from each, or all there is, is enough from all.
            given = dict.fromkeys(start, 0)
            for record in records:
                given[record.partition] += 1
            if not count or all(
                start[partition] == self._low[partition] or given[partition] >= count for partition in start
            ):
                records.sort(key=lambda record: (record.timestamp_ms, record.partition, record.offset))
                self._next = dict(self._high) if not count else self._next
                return records[-count:] if count else []
            span *= 4

    def about(self, key: bytes, count: int, scan_records: int) -> list[Record]:
        """The last `count` records of a key, and those about the whole table, among each partition's last ones.

        All partitions: a topic that got more of them has a key's older records elsewhere. What is about the whole
        table stands in each; it is given of the key's own, or once where the key has no record. Looks at about
        `scan_records` a partition at most.
        """
        span = _FIRST_SPAN
        while True:
            span = min(span, scan_records)
            start = {partition: max(self._low[partition], end - span) for partition, end in self._high.items()}
            found = [record for record in self._until_end(start) if record.is_about_all or record.key == key]
            is_all = span >= scan_records or all(at == self._low[partition] for partition, at in start.items())
            if is_all or sum(not record.is_about_all for record in found) >= count:
                found.sort(key=lambda record: (record.timestamp_ms, record.partition, record.offset))
                own = {record.partition for record in found if not record.is_about_all}
                own = own or {min((record.partition for record in found), default=0)}
                return [record for record in found if record.partition in own][-count:]
            span *= 8

    def following(self) -> Iterator[Record]:
        """What comes after what was read, until `is_ended`."""
        self.follow()
        while not self._is_ended():
            record = self.came()
            if record is not None:
                yield record

    def follow(self) -> None:
        """From now on `came` has what comes after what was read."""
        self._assign(self._next)

    def came(self, wait_s: float = _POLL_S) -> Record | None:
        """The next record; None where none comes in that time."""
        message = self._polled(wait_s)
        if message is None or message.error() is not None:
            return None
        record = self._taken(message)
        return record if self._wanted(record) else None

    def _until_end(self, start: dict[int, int]) -> Iterator[Record]:
        """From `start` to the high watermarks of the beginning, or to the end of what is committed before them."""
        self.read_count = 0
        unfinished = {partition for partition, offset in start.items() if offset < self._high[partition]}
        self._next = {**self._high, **{partition: start[partition] for partition in unfinished}}
        if unfinished:
            self._assign({partition: start[partition] for partition in unfinished})
        last_progress = time.monotonic()
        while unfinished and not self._is_ended():
            message = self._polled()
            if message is None:
                if time.monotonic() - last_progress > _STALLED_S:
                    raise UnavailableError(
                        "Kafka: nothing comes any more", remedy="see that every broker of the topic is up"
                    )
                continue
            last_progress = time.monotonic()
            partition, offset = _place(message)
            if message.error() is not None:  # the end of what is committed
                unfinished.discard(partition)
                continue
            if offset >= self._high[partition]:  # came while we read
                unfinished.discard(partition)
                continue
            yield self._taken(message)
            if offset + 1 >= self._high[partition]:
                unfinished.discard(partition)

    def _taken(self, message: Message) -> Record:
        partition, offset = _place(message)
        self.read_count += 1
        self._next[partition] = offset + 1
        key = message.key()
        return Record(
            partition,
            offset,
            int(message.timestamp()[1]),
            self._as_json(message.value(), message.headers) or b"",
            None if key is None else bytes(key),
        )

    def _assign(self, offsets: dict[int, int]) -> None:
        self._consumer.assign([TopicPartition(self._topic, partition, at) for partition, at in offsets.items()])

    def _watermarks(self, partitions: int) -> tuple[dict[int, int], dict[int, int]]:
        """The first and the next offset of every partition."""
        low: dict[int, int] = {}
        high: dict[int, int] = {}
        for partition in range(partitions):
            try:
                found = self._consumer.get_watermark_offsets(
                    TopicPartition(self._topic, partition), timeout=METADATA_TIMEOUT_S
                )
            except KafkaException as error:
                raise explain_kafka_exception(error) from error
            if found is None:
                raise UnavailableError(
                    f"Kafka: partition {partition} of {self._topic} has no leader",
                    remedy="see that every broker of the topic is up",
                )
            low[partition], high[partition] = found
        return low, high

    def _polled(self, wait_s: float = _POLL_S) -> Message | None:
        """The next message or end of a partition; None when there is none for now. Brokers that are away come back."""
        try:
            message = self._consumer.poll(wait_s)
        except KafkaException as error:
            raise explain_kafka_exception(error) from error
        refused = message.error() if message is not None else None
        if refused is None or refused.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            return message
        if refused.retriable() or refused.code() in _PASSING:
            return None
        raise explain_kafka(refused)


def _existing(consumer: Consumer, settings: KafkaSettings) -> int:
    """The topic's partition count; this reader never makes it."""
    count = partition_count(consumer, settings.topic)
    if count is None:
        raise PreconditionError(
            f"Kafka has no topic {settings.topic!r}",
            remedy="start `cdcwatch run`, which makes it, or mend kafka.topic"
            if settings.create_topic
            else f"{topic_command(settings)}, or mend kafka.topic",
        )
    return count


def _place(message: Message) -> tuple[int, int]:
    """Partition and offset, which every message of an assigned partition has."""
    partition, offset = message.partition(), message.offset()
    return (-1 if partition is None else partition), (-1 if offset is None else offset)
