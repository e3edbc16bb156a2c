"""The progress topic: `<topic>.progress`, compacted, one partition, one record a slot under the slot's name."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.handoff.kafka.client import (
    HARMLESS,
    METADATA_TIMEOUT_S,
    client_configuration,
    connected_client,
    create_topic,
    explain_kafka,
    explain_kafka_exception,
    made_client,
    partition_count,
    transactional_id,
)
from cdcwatch.handoff.progress import Progress

if TYPE_CHECKING:
    from cdcwatch.settings import KafkaSettings

_READ_TIMEOUT_S: Final = 20.0
_TAIL_RECORDS: Final = 500
_AGAIN_S: Final = 0.05
_NOT_KNOWN_YET: Final = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
        KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError.LEADER_NOT_AVAILABLE,
    }
)
# Small segments: the record is rewritten with every transaction, and only closed segments are compacted.
_CONFIGURATION: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(4 * 1024 * 1024),
    "segment.ms": "600000",
    "min.cleanable.dirty.ratio": "0.1",
}


def progress_topic(settings: KafkaSettings) -> str:
    """Its name."""
    return f"{settings.topic}.progress"


def require_progress_topic(client: Any, settings: KafkaSettings) -> None:
    """Makes it where it is missing: it is ours, whatever `create_topic` says."""
    count = partition_count(client, progress_topic(settings))
    if count is None:
        create_topic(settings, progress_topic(settings), 1, _CONFIGURATION)
    elif count != 1:
        raise PreconditionError(
            f"the topic {progress_topic(settings)!r} has {count} partitions",
            remedy="it must have one: delete it, and cdcwatch makes it anew (open orders are published again)",
        )


def find_progress(settings: KafkaSettings, slot: str) -> Progress | None:
    """`read_progress` for those who only look: None too where there is no progress topic yet."""
    admin = connected_client(AdminClient, client_configuration(settings), progress_topic(settings))
    return None if partition_count(admin, progress_topic(settings)) is None else read_progress(settings, slot)


def forget_progress(settings: KafkaSettings, slot: str) -> bool:
    """Replaces the slot's record by a tombstone: the next start finds none and publishes a snapshot.

    In a transaction of the slot's own transactional id where there is one, so that no older process can write a record
    behind it. Whether there was a record. UnavailableError, PreconditionError.
    """
    if find_progress(settings, slot) is None:
        return False
    is_transactional = settings.delivery == "exactly_once"
    extra: dict[str, Any] = {"transactional.id": transactional_id(settings, slot)} if is_transactional else {}
    producer = made_client(Producer, {"acks": "all", **client_configuration(settings), **extra})
    failures: list[KafkaError] = []
    try:
        if is_transactional:
            producer.init_transactions(_READ_TIMEOUT_S)
            producer.begin_transaction()
        producer.produce(
            progress_topic(settings),
            None,
            slot.encode(),
            0,
            on_delivery=lambda error, _message: failures.append(error) if error else None,
        )
        if is_transactional:
            producer.commit_transaction(_READ_TIMEOUT_S)
        if producer.flush(_READ_TIMEOUT_S) > 0:
            raise UnavailableError("Kafka: the tombstone was not acknowledged", remedy="see that the brokers are up")
    except KafkaException as error:
        raise explain_kafka_exception(error) from error
    if failures:
        raise explain_kafka(failures[0])
    return True


def read_progress(settings: KafkaSettings, slot: str) -> Progress | None:
    """The slot's newest committed record; None where there is none. UnavailableError when it can't be read in time."""
    consumer = made_client(
        Consumer,
        {
            **client_configuration(settings),
            "group.id": "cdcwatch.progress",  # never joined: the partition is assigned
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            # The end shows as an empty answer, for which a broker would let us wait half a second.
            "fetch.wait.max.ms": 10,
        },
    )
    try:
        place = TopicPartition(progress_topic(settings), 0)
        low, high = _bounds(consumer, place)
        # Nearly always among the last few; the whole topic only when another slot has been far busier.
        newest = None
        if high - low > _TAIL_RECORDS:
            newest = _newest(consumer, progress_topic(settings), high - _TAIL_RECORDS, slot)
        return newest or _newest(consumer, progress_topic(settings), low, slot)
    except KafkaException as error:
        raise explain_kafka_exception(error) from error
    finally:
        consumer.close()


def _bounds(consumer: Consumer, place: TopicPartition) -> tuple[int, int]:
    """The first and the next offset; a topic that was made a moment ago is not known to every broker yet."""
    give_up_s = time.monotonic() + METADATA_TIMEOUT_S
    while True:
        try:
            found = consumer.get_watermark_offsets(place, timeout=METADATA_TIMEOUT_S)
        except KafkaException as error:
            if error.args[0].code() not in _NOT_KNOWN_YET or time.monotonic() > give_up_s:
                raise
            time.sleep(_AGAIN_S)
            continue
        if found is None:
            raise UnavailableError("Kafka: the progress topic can't be read", remedy="see that its leader is up")
        return found


def _newest(consumer: Consumer, topic: str, offset: int, slot: str) -> Progress | None:
    consumer.assign([TopicPartition(topic, 0, offset)])
    give_up_s = time.monotonic() + _READ_TIMEOUT_S
    newest: bytes | None = None
    while time.monotonic() < give_up_s:
        message = consumer.poll(0.5)
        if message is None:
            continue
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                return _progress(newest, topic, slot) if newest is not None else None
            if error.code() == HARMLESS:
                continue
            raise explain_kafka(error)
        if message.key() == slot.encode():
            newest = message.value()
    raise UnavailableError("Kafka: the progress topic can't be read", remedy="see that its leader is up")


def _progress(record: bytes, topic: str, slot: str) -> Progress:
    try:
        return Progress.from_json(record)
    except (ValueError, KeyError, TypeError):
        raise PreconditionError(
            f"the record of {slot} in {topic} can't be read: it is of another version, or not ours",
            remedy="start the version of cdcwatch that wrote it",
        ) from None
