"""Reads a topic to its end for what it says of every order, beside nobody else's writing.

Every record is looked at once: about 100,000 a second on one core, so that 100 million take some 17 minutes.
https://kafka.apache.org/documentation/#consumerconfigs_isolation.level
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cdcwatch.errors import UnavailableError
from cdcwatch.handoff.kafka.client import (
    HARMLESS,
    METADATA_TIMEOUT_S,
    client_configuration,
    explain_kafka,
    explain_kafka_exception,
    made_client,
)
from cdcwatch.handoff.kafka.values import Values
from cdcwatch.handoff.murmur2 import partition_of
from cdcwatch.headway import stage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from confluent_kafka import Message

    from cdcwatch.handoff.told import Told
    from cdcwatch.settings import KafkaSettings

_BATCH: Final = 5000
_POLL_S: Final = 0.2
_STALLED_S: Final = 90.0
"""Another slot's transaction, left open by a process that died, holds up what follows for a minute at most."""
_QUEUE_KIB: Final = 16 * 1024
_PASSING: Final = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, HARMLESS})  # noqa: SLF001


def survey(settings: KafkaSettings, told: Told) -> Told:
    """Feeds `told` with all that the topic holds, committed, up to its end now. UnavailableError, PreconditionError.

    A topic that holds nothing is not read: it takes no right to read.
    """
    ends = _ends(settings, range(told.partitions))
    if not ends:
        return told
    for partition, key, value in _records(settings, ends):
        told.note(partition, key, value)
    strays = told.strays()
    if strays:
        for partition, key, _ in _records(settings, ends):
            if key in strays and key is not None and partition_of(key, told.partitions) == partition:
                told.settle(key)
    return told


def _records(settings: KafkaSettings, ends: dict[int, tuple[int, int]]) -> Iterator[tuple[int, bytes | None, bytes]]:
    """Partition, key and value, each partition up to its end."""
    consumer = _consumer(settings, "read_committed")
    left = {partition: end for partition, (_, end) in ends.items()}
    progress_s = time.monotonic()
    as_json = Values(settings).as_json
    held = sum(end - low for low, end in ends.values())
    try:
        consumer.assign([TopicPartition(settings.topic, partition, low) for partition, (low, _) in ends.items()])
        with stage(f"reading {settings.topic}", unit="events", total=held) as reading:
            while left:
                now_s = time.monotonic()
                messages = consumer.consume(_BATCH, _POLL_S)
                _require_progress(settings, bool(messages), now_s - progress_s)
                progress_s = now_s if messages else progress_s
                for partition, offset, message in _places(messages):
                    if partition not in left:
                        continue
                    if message.error() is None and offset < left[partition]:
                        reading.done += 1
                        yield partition, _bytes(message.key()), as_json(_bytes(message.value()), message.headers) or b""
                        offset += 1  # noqa: PLW2901  the next one
                    if offset >= left[partition]:
                        del left[partition]
    except KafkaException as error:
        raise explain_kafka_exception(error) from error
    finally:
        consumer.close()


def _require_progress(settings: KafkaSettings, came: bool, silent_s: float) -> None:
    if not came and silent_s > _STALLED_S:
        raise UnavailableError(
            f"Kafka: {settings.topic} can't be read to its end", remedy="see that every broker of it is up"
        )


def _places(messages: list[Message]) -> Iterator[tuple[int, int, Message]]:
    """Partition and offset of each, ends of partitions included. Raises a trouble that doesn't pass."""
    for message in messages:
        error, partition = message.error(), message.partition()
        if error is None or error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
            if partition is not None:
                yield partition, message.offset() or 0, message
        elif not error.retriable() and error.code() not in _PASSING:
            raise explain_kafka(error)


def _ends(settings: KafkaSettings, partitions: range) -> dict[int, tuple[int, int]]:
    """The first and the next offset of every partition that holds something: what is not committed yet, too."""
    consumer = _consumer(settings, "read_uncommitted")
    found = {}
    try:
        for partition in partitions:
            place = TopicPartition(settings.topic, partition)
            bounds = consumer.get_watermark_offsets(place, timeout=METADATA_TIMEOUT_S)
            if bounds is None:
                raise UnavailableError(
                    f"Kafka: partition {partition} of {settings.topic} has no leader",
                    remedy="see that every broker of the topic is up",
                )
            if bounds[1] > bounds[0]:
                found[partition] = bounds
    except KafkaException as error:
        raise explain_kafka_exception(error) from error
    finally:
        consumer.close()
    return found


def _consumer(settings: KafkaSettings, isolation: str) -> Consumer:
    return made_client(
        Consumer,
        {
            **client_configuration(settings),
            "group.id": "cdcwatch.survey",  # never joined: partitions are assigned
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": _QUEUE_KIB,
            "fetch.wait.max.ms": 10,
        },
    )


def _bytes(value: Any) -> bytes | None:
    return None if value is None else value if isinstance(value, bytes) else str(value).encode()
