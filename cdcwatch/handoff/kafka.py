"""The Kafka sink, in its two deliveries.

Exactly once: events and the progress record share a transaction, and the transactional id fences an older process.
At least once: an idempotent producer; a record is acknowledged when its own delivery report says so, in any order.
https://kafka.apache.org/documentation/#semantics
"""

from __future__ import annotations

import functools
import itertools
import logging
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer

from cdcwatch.deadline.event import CONTENT_TYPE, Event, for_partition
from cdcwatch.errors import CdcwatchError, UnavailableError
from cdcwatch.handoff.client import (
    client_configuration,
    explain_kafka,
    explain_kafka_exception,
    made_client,
    require_topic,
    transactional_id,
)
from cdcwatch.handoff.ledger import progress_topic, read_progress, require_progress_topic

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from cdcwatch.handoff.progress import Progress
    from cdcwatch.handoff.sink import Batch
    from cdcwatch.settings import KafkaSettings

_HEADERS: Final[list[tuple[str, str | bytes | None]]] = [("content-type", CONTENT_TYPE)]
_INIT_TIMEOUT_S: Final = 20.0
_COMMIT_TIMEOUT_S: Final = 30.0
_TRANSACTION_TIMEOUT_MS: Final = 60_000
_SNAPSHOT_TRANSACTION_TIMEOUT_MS: Final = 900_000  # a broker's default maximum
_BUFFER_WAIT_S: Final = 0.05

_log = logging.getLogger(__name__)


class _KafkaSink:
    """What both deliveries share."""

    def __init__(self, settings: KafkaSettings, slot: str) -> None:
        self._settings, self._slot = settings, slot
        self._topic, self._progress_topic = settings.topic, progress_topic(settings)
        self._producer: Producer | None = None
        self._partitions = 1

    def _connect(self, extra: dict[str, Any]) -> Producer:
        self.close()
        producer = made_client(
            Producer,
            {
                "partitioner": "murmur2_random",  # what Java clients do: a key keeps its partition whoever writes
                "enable.idempotence": True,
                "acks": "all",
                **client_configuration(self._settings),
                **extra,
            },
        )
        self._producer = producer
        self._partitions = require_topic(producer, self._settings)
        require_progress_topic(producer, self._settings)
        return producer

    def _produce(self, event: Event, on_delivery: Callable[[Any, Any], None] | None = None) -> None:
        """Hands one event to librdkafka; a full queue is waited for, never taken for sent."""
        if event.key is not None:
            self._send(self._topic, event.value, event.key, -1, on_delivery)
            return
        for partition in range(self._partitions):
            self._send(self._topic, for_partition(event.value, partition), None, partition, on_delivery)

    def _send(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        partition: int,
        on_delivery: Callable[[Any, Any], None] | None,
    ) -> None:
        producer = self._running()
        arguments: dict[str, Any] = {"headers": _HEADERS} if topic is self._topic else {}
        if on_delivery is not None:
            arguments["on_delivery"] = on_delivery
        while True:
            try:
                producer.produce(topic, value, key, partition, **arguments)
            except BufferError:
                producer.poll(_BUFFER_WAIT_S)
            else:
                return

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

    def __init__(self, settings: KafkaSettings, slot: str) -> None:
        super().__init__(settings, slot)
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
        producer = self._connect(
            {
                "transactional.id": transactional_id(self._settings, self._slot),
                "transaction.timeout.ms": transaction_timeout_ms,
            }
        )
        try:
            producer.init_transactions(_INIT_TIMEOUT_S)
        except KafkaException as error:
            raise explain_kafka_exception(error) from error

    def _transaction(self, events: Iterable[Event], progress: Progress) -> int:
        producer = self._running()
        produce, topic, headers = producer.produce, self._topic, _HEADERS
        count = 0
        try:
            producer.begin_transaction()
            for event in events:
                key, value = event
                count += 1
                if key is None:
                    self._produce(event)
                    continue
                try:
                    produce(topic, value, key, headers=headers)
                except BufferError:
                    self._produce(event)
            self._send(self._progress_topic, progress.to_json(), self._slot.encode(), 0, None)
            producer.commit_transaction(_COMMIT_TIMEOUT_S)
        except KafkaException as error:
            # Whether it was committed shows when the sink is opened again: progress is read back.
            raise explain_kafka_exception(error) from error
        return count


class AtLeastOnceSink(_KafkaSink):
    """`delivery = "at_least_once"`."""

    is_transactional = False

    def __init__(self, settings: KafkaSettings, slot: str) -> None:
        super().__init__(settings, slot)
        self._delivered: list[range] = []
        self._failure: CdcwatchError | None = None

    def open(self) -> Progress | None:
        """A fresh producer: what it held before is published again from the first that was not acknowledged."""
        self._delivered, self._failure = [], None
        # Retried without end: a record is given up by us, in order, never by librdkafka's clock.
        self._connect({"message.timeout.ms": 0, "linger.ms": 1})
        return read_progress(self._settings, self._slot)

    def publish(self, batches: Sequence[Batch]) -> None:
        """Returns at once; delivery reports follow."""
        try:
            for batch in batches:
                for number, event in zip(batch.sequence, batch.events, strict=False):
                    copies = 1 if event.key is not None else self._partitions
                    self._produce(event, self._reporter(number, copies))
                self._send(
                    self._progress_topic,
                    batch.progress.to_json(),
                    self._slot.encode(),
                    0,
                    self._reporter(batch.sequence[-1], 1),
                )
        except KafkaException as error:
            raise explain_kafka_exception(error) from error

    def publish_snapshot(self, events: Iterable[Event], progress: Progress) -> int:
        """All events, then, once every one is delivered, the progress record."""
        count = 0
        for event in self._flushed(events):
            count += 1
            self._produce(event, self._reporter(0, 1))
        self._wait_for_delivery()
        self._send(self._progress_topic, progress.to_json(), self._slot.encode(), 0, self._reporter(0, 1))
        self._wait_for_delivery()
        self._delivered = []
        return count

    def acknowledged(self) -> list[range]:
        """Delivery reports without an error count, and nothing else."""
        self._running().poll(0)
        if self._failure is not None:
            raise self._failure
        delivered, self._delivered = self._delivered, []
        return delivered

    def _reporter(self, number: int, copies: int) -> Callable[[Any, Any], None]:
        return functools.partial(self._report, range(number, number + 1), itertools.count(1), copies)

    def _report(
        self, sequence: range, reports: Iterator[int], copies: int, error: KafkaError | None, _message: object
    ) -> None:
        if error is not None:
            self._failure = self._failure or explain_kafka(error)
        elif next(reports) == copies:
            self._delivered.append(sequence)

    def _flushed(self, events: Iterable[Event]) -> Iterator[Event]:
        for count, event in enumerate(events):
            if count % 1000 == 0:
                self.acknowledged()
            yield event

    def _wait_for_delivery(self) -> None:
        while self._running().flush(1.0) > 0:
            self.acknowledged()
        self.acknowledged()
