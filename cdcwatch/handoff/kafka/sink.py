"""The Kafka sink, in its two deliveries.

Exactly once: events and the progress record share a transaction, and the transactional id fences an older process.
At least once: an idempotent producer; events are delivered in any order, progress records behind their events.
https://kafka.apache.org/documentation/#semantics
"""

from __future__ import annotations

import itertools
import logging
from collections import deque
from typing import TYPE_CHECKING, Any, Final

import orjson
from confluent_kafka import KafkaError, KafkaException, Producer
from msgspec.structs import replace

from cdcwatch import failpoints
from cdcwatch.deadline.event import CONTENT_TYPE, DeadLetter, Event, GapEvent, for_partition
from cdcwatch.errors import CdcwatchError, UnavailableError
from cdcwatch.handoff.kafka.client import (
    client_configuration,
    connected_client,
    explain_kafka,
    explain_kafka_exception,
    partition_count,
    require_topic,
    topic_ids,
    transactional_id,
)
from cdcwatch.handoff.kafka.dead_letters import dead_topic, require_dead_topic
from cdcwatch.handoff.kafka.ledger import progress_topic, read_progress, require_progress_topic
from cdcwatch.handoff.kafka.producers import maker_of_producers
from cdcwatch.handoff.kafka.survey import survey
from cdcwatch.handoff.sink import tell_made_anew

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from cdcwatch.handoff.progress import Progress
    from cdcwatch.handoff.sink import Batch
    from cdcwatch.handoff.told import Told
    from cdcwatch.settings import KafkaSettings

_HEADERS: Final[dict[str, str | bytes | None]] = {"content-type": CONTENT_TYPE}
_INIT_TIMEOUT_S: Final = 20.0
_COMMIT_TIMEOUT_S: Final = 30.0
_TRANSACTION_TIMEOUT_MS: Final = 60_000
_SNAPSHOT_TRANSACTION_TIMEOUT_MS: Final = 900_000  # a broker's default maximum
_STATISTICS_INTERVAL_MS: Final = 60_000
_BUFFER_WAIT_S: Final = 0.05
_TRANSACTION_LINGER_MS: Final = 50
"""A commit flushes at once, whatever this is: it only makes a large transaction's batches larger."""

_log = logging.getLogger(__name__)


class _KafkaSink:
    """What both deliveries share."""

    def __init__(self, settings: KafkaSettings, slot: str, topics: Sequence[str] = ()) -> None:
        """`settings`: its topic names the slot's progress and transactional id.

        `topics`: of the tables, where they are others than that one.
        """
        self._settings, self._slot = settings, slot
        self._progress_topic = progress_topic(settings)
        self._topics = {topic: replace(settings, topic=topic) for topic in topics or (settings.topic,)}
        self._topic = next(iter(self._topics))  # of events that name none
        self._make_producer = maker_of_producers(settings, self._topics)
        self._producer: Producer | None = None
        self._partitions = dict.fromkeys(self._topics, 1)
        self._ids: dict[str, str] = {}
        self.made_topics: Collection[str] = ()

    def _connect(self, extra: dict[str, Any], *, linger_ms: int) -> Producer:
        """`linger_ms` is a default, `extra` is not."""
        self.close()
        producer = connected_client(
            self._make_producer,
            {
                "partitioner": "murmur2_random",  # what Java clients do: a key keeps its partition whoever writes
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": linger_ms,
                "statistics.interval.ms": _STATISTICS_INTERVAL_MS,
                "stats_cb": self._notice_partitions,
                **client_configuration(self._settings),
                **extra,
            },
            self._topic,
        )
        self._producer = producer
        self._require_topics(producer)
        require_progress_topic(producer, self._settings)
        for settings in self._topics.values():
            require_dead_topic(producer, settings)
        return producer

    def _require_topics(self, producer: Producer) -> None:
        """One that was there a moment ago is not made anew, and one that is another by now is told."""
        is_first = not self._ids
        if is_first:
            missing = {topic for topic in self._topics if partition_count(producer, topic) is None}
            self.made_topics = missing.union(self.made_topics)
        self._partitions = {
            topic: require_topic(producer, settings, was_there=not is_first) for topic, settings in self._topics.items()
        }
        self._notice_new_topics()

    def _notice_new_topics(self) -> None:
        """Those that were deleted and made anew: to the producer they look as before."""
        found = topic_ids(self._settings, self._topics)
        for topic, topic_id in found.items():
            if self._ids.get(topic, "") not in {"", topic_id}:
                tell_made_anew(topic)
        self._ids = {topic: found.get(topic) or self._ids.get(topic, "") for topic in self._topics}

    def _notice_partitions(self, statistics: str) -> None:
        """From librdkafka's statistics: partitions that were added move keys, which readers must know."""
        told = orjson.loads(statistics).get("topics", {})
        for topic, before in self._partitions.items():
            count = sum(1 for number in told.get(topic, {}).get("partitions", {}) if int(number) >= 0)
            if count > before:
                _log.warning(
                    "%s has %d partitions now, %d before: keys move; their events are in order by commit LSN and"
                    " ordinal",
                    topic,
                    count,
                    before,
                )
                self._partitions[topic] = count
        self._notice_new_topics()

    def _produce(self, event: Event, on_delivery: Callable[[Any, Any], None] | None = None) -> None:
        """Hands one event to librdkafka; a full queue is waited for, never taken for sent."""
        topic = event.topic or self._topic
        if event.key is not None:
            self._send(topic, event.value, event.key, -1, on_delivery, _HEADERS)
            return
        if isinstance(event, DeadLetter):
            self._send(dead_topic(self._topics[topic]), event.value, event.id, -1, on_delivery)
            failpoints.reached("kafka.dead_letter")
            return
        key = event.record_key if isinstance(event, GapEvent) else None
        for partition in range(self._counted(topic)):
            self._send(topic, for_partition(event.value, partition), key, partition, on_delivery, _HEADERS)

    def _counted(self, topic: str) -> int:
        """Its partitions; some may have been added."""
        self._partitions[topic] = partition_count(self._running(), topic) or self._partitions[topic]
        return self._partitions[topic]

    def _send(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        partition: int,
        on_delivery: Callable[[Any, Any], None] | None,
        headers: dict[str, str | bytes | None] | None = None,
    ) -> None:
        producer = self._running()
        arguments: dict[str, Any] = {"headers": headers} if headers is not None else {}
        if on_delivery is not None:
            arguments["on_delivery"] = on_delivery
        while True:
            try:
                producer.produce(topic, value, key, partition, **arguments)
            except BufferError:
                producer.poll(_BUFFER_WAIT_S)
            else:
                return

    def survey(self, made: Callable[[int], Told], topic: str = "") -> Told:
        """Reads the topic to its end."""
        topic = topic or self._topic
        return survey(self._topics[topic], made(self._counted(topic)))

    def _running(self) -> Producer:
        if self._producer is None:
            raise UnavailableError("Kafka: the producer is not open", remedy="it is opened again by itself")
        return self._producer

    def close(self) -> None:
        """Drops what is still queued: it is published again, or was never to be."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge(in_queue=True, in_flight=True, blocking=False)


class ExactlyOnceSink(_KafkaSink):
    """`delivery = "exactly_once"`."""

    is_transactional = True

    def __init__(self, settings: KafkaSettings, slot: str, topics: Sequence[str] = ()) -> None:
        super().__init__(settings, slot, topics)
        self._acknowledged: list[range] = []

    def open(self) -> Progress | None:
        """Fences an older process, ends its open transaction, and reads how far the topic goes."""
        self._acknowledged = []
        self._begin_epoch(_TRANSACTION_TIMEOUT_MS)
        return read_progress(self._settings, self._slot)

    def publish(self, batches: Sequence[Batch]) -> None:
        """One transaction for all of them; durable on return."""
        events = itertools.chain.from_iterable(batch.events for batch in batches)
        self._transaction(events, batches[-1].progress)
        self._acknowledged += [batch.sequence for batch in batches]

    def publish_snapshot(self, events: Iterable[Event], progress: Progress) -> int:
        """One transaction, with as much time as brokers allow; the usual limit comes back afterwards.

        A short limit otherwise: a process that dies for good keeps subscribers waiting no longer than that.
        """
        self._running()
        self._begin_epoch(_SNAPSHOT_TRANSACTION_TIMEOUT_MS)
        count = self._transaction(events, progress)
        self._begin_epoch(_TRANSACTION_TIMEOUT_MS)
        return count

    def acknowledged(self) -> list[range]:
        """Of the transactions committed since the last call."""
        acknowledged, self._acknowledged = self._acknowledged, []
        return acknowledged

    def _begin_epoch(self, transaction_timeout_ms: int) -> None:
        name = transactional_id(self._settings, self._slot)
        options = {"transactional.id": name, "transaction.timeout.ms": transaction_timeout_ms}
        producer = self._connect(options, linger_ms=_TRANSACTION_LINGER_MS)
        try:
            producer.init_transactions(_INIT_TIMEOUT_S)
        except KafkaException as error:
            raise explain_kafka_exception(error) from error

    def _transaction(self, events: Iterable[Event], progress: Progress) -> int:
        producer = self._running()
        produce, first_topic, headers = producer.produce, self._topic, _HEADERS
        count = 0
        try:
            producer.begin_transaction()
            for event in events:
                key, value, topic = event
                count += 1
                if key is None:
                    self._produce(event)
                    continue
                try:
                    # By position: quicker than by name, and this runs for every event.
                    produce(topic or first_topic, value, key, -1, None, None, 0, headers)
                except BufferError:
                    self._produce(event)
            self._send(self._progress_topic, progress.to_json(), self._slot.encode(), 0, None)
            if count:
                failpoints.reached("kafka.produced", progress.position.open_changes)
            producer.commit_transaction(_COMMIT_TIMEOUT_S)
            if count:
                failpoints.reached("kafka.committed", progress.position.open_changes)
        except KafkaException as error:
            # Whether it was committed shows when the sink is opened again: progress is read back.
            raise explain_kafka_exception(error) from error
        return count


class _InFlight:
    """A batch on its way: how many of its records are not delivered yet."""

    __slots__ = ("batch", "left")

    def __init__(self, batch: Batch, left: int) -> None:
        self.batch, self.left = batch, left


class AtLeastOnceSink(_KafkaSink):
    """`delivery = "at_least_once"`.

    The progress record follows its events: it is sent once all of them, and all before them, are delivered. A batch is
    acknowledged with the record that covers it.
    """

    is_transactional = False

    def __init__(self, settings: KafkaSettings, slot: str, topics: Sequence[str] = ()) -> None:
        super().__init__(settings, slot, topics)
        self._in_flight: deque[_InFlight] = deque()
        self._acknowledged: list[range] = []
        self._failure: CdcwatchError | None = None

    def open(self) -> Progress | None:
        """A fresh producer: what it held before is published again from the first that was not acknowledged."""
        self._in_flight, self._acknowledged, self._failure = deque(), [], None
        # Retried without end: a record is given up by us, in order, never by librdkafka's clock. Each must be told of.
        self._connect({"message.timeout.ms": 0, "delivery.report.only.error": False}, linger_ms=0)
        return read_progress(self._settings, self._slot)

    def publish(self, batches: Sequence[Batch]) -> None:
        """Returns at once; delivery reports follow."""
        try:
            for batch in batches:
                self._publish(batch)
                if batch.events:
                    failpoints.reached("kafka.produced", batch.progress.position.open_changes)
        except KafkaException as error:
            raise explain_kafka_exception(error) from error

    def publish_snapshot(self, events: Iterable[Event], progress: Progress) -> int:
        """All events, then, once every one is delivered, the progress record."""
        count = 0
        report = self._reporter(lambda: None)
        for event in self._flushed(events):
            count += 1
            self._produce(event, report)
        self._wait_for_delivery()
        self._send_progress(progress, report)
        self._wait_for_delivery()
        return count

    def acknowledged(self) -> list[range]:
        """Delivery reports without an error count, and nothing else."""
        self._running().poll(0)
        if self._failure is not None:
            raise self._failure
        delivered: list[Batch] = []
        while self._in_flight and not self._in_flight[0].left:
            delivered.append(self._in_flight.popleft().batch)
        if delivered:
            sequences = [batch.sequence for batch in delivered]
            failpoints.reached("kafka.delivered", delivered[-1].progress.position.open_changes)
            try:
                self._send_progress(
                    delivered[-1].progress, self._reporter(lambda: self._acknowledged.extend(sequences))
                )
            except KafkaException as error:
                raise explain_kafka_exception(error) from error
        acknowledged, self._acknowledged = self._acknowledged, []
        return acknowledged

    def _publish(self, batch: Batch) -> None:
        table_wide = [event for event in batch.events if event.key is None and not isinstance(event, DeadLetter)]
        copies = sum(self._partitions[event.topic or self._topic] - 1 for event in table_wide)
        flight = _InFlight(batch, len(batch.events) + copies)
        self._in_flight.append(flight)

        def arrived() -> None:
            flight.left -= 1

        report = self._reporter(arrived)
        produce, first_topic, headers = self._running().produce, self._topic, _HEADERS
        for event in batch.events:
            key, value, topic = event
            if key is None:
                self._produce(event, report)
                continue
            try:
                produce(topic or first_topic, value, key, -1, report, None, 0, headers)
            except BufferError:
                self._produce(event, report)

    def _send_progress(self, progress: Progress, report: Callable[[Any, Any], None]) -> None:
        self._send(self._progress_topic, progress.to_json(), self._slot.encode(), 0, report)

    def _reporter(self, delivered: Callable[[], None]) -> Callable[[KafkaError | None, object], None]:
        def report(error: KafkaError | None, _message: object) -> None:
            if error is None:
                delivered()
            else:
                self._failure = self._failure or explain_kafka(error)

        return report

    def _flushed(self, events: Iterable[Event]) -> Iterator[Event]:
        for count, event in enumerate(events):
            if count % 1000 == 0:
                self.acknowledged()
            yield event

    def _wait_for_delivery(self) -> None:
        while self._running().flush(1.0) > 0:
            self.acknowledged()
        self.acknowledged()
