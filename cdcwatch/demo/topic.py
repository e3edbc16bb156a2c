"""Reads the demo's topic as a subscriber would: committed records, each into the tally and the last few for the eye."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cdcwatch.deadline.event import NO_ORDER
from cdcwatch.demo.order import OrderEvent
from cdcwatch.handoff.kafka.client import client_configuration, explain_kafka_exception, made_client, partition_count
from cdcwatch.handoff.kafka.values import Values

if TYPE_CHECKING:
    from confluent_kafka import Message

    from cdcwatch.demo.tally import Tally
    from cdcwatch.settings import KafkaSettings

_BATCH: Final = 500
_POLL_S: Final = 0.1
_METADATA_TIMEOUT_S: Final = 10
_LAST_EVENTS: Final = 8


class TopicReader:
    """A consumer on a thread of its own, from the topic's beginning."""

    def __init__(self, settings: KafkaSettings, tally: Tally) -> None:
        """Connects; the topic is there. Errors as of `cdcwatch.handoff.kafka.client`."""
        self._topic, self._tally = settings.topic, tally
        self._as_json = Values(settings).as_json
        self._ended = threading.Event()
        self._last: deque[dict[str, Any]] = deque(maxlen=_LAST_EVENTS)
        self._consumer: Consumer = made_client(
            Consumer,
            {
                **client_configuration(settings),
                "group.id": "cdcwatch-demo",  # librdkafka wants one; nothing is ever committed to it
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
            },
        )
        self._partitions = [
            TopicPartition(settings.topic, partition)
            for partition in range(partition_count(self._consumer, settings.topic) or 0)
        ]
        self._end_wanted, self._end_read = threading.Event(), threading.Event()
        self._end_seen: dict[int, int] = {}
        self._error: KafkaException | None = None
        self._thread = threading.Thread(target=self._read, name="demo-topic", daemon=True)

    def start(self) -> None:
        """Begins to read."""
        self._consumer.assign([TopicPartition(self._topic, place.partition, 0) for place in self._partitions])
        self._thread.start()

    def stop(self) -> None:
        """Ends; what was read stays in the tally."""
        self._ended.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._consumer.close()

    @property
    def last_events(self) -> list[dict[str, Any]]:
        """The newest last."""
        return list(self._last)

    def read_to_end(self, timeout_s: float) -> bool:
        """Whether everything that the topic holds now was read, within `timeout_s`. Nobody may write meanwhile."""
        self._end_wanted.set()
        return self._end_read.wait(timeout_s)

    def require_reading(self) -> None:
        """CdcwatchError when Kafka refused something."""
        if self._error is not None:
            raise explain_kafka_exception(self._error)

    def _read(self) -> None:
        """All calls of the consumer are this thread's: it lets others wait while it polls, without end."""
        ends: dict[int, int] | None = None
        try:
            while not self._ended.is_set():
                for message in self._consumer.consume(_BATCH, _POLL_S):
                    self._take(message)
                if ends is None and self._end_wanted.is_set():
                    ends = self._ends()
                if ends is not None and all(self._end_seen.get(place, -1) >= end for place, end in ends.items()):
                    self._end_read.set()
        except KafkaException as error:
            self._error = error

    def _ends(self) -> dict[int, int]:
        """The next offset of every partition."""
        found = {}
        for place in self._partitions:
            marks = self._consumer.get_watermark_offsets(place, timeout=_METADATA_TIMEOUT_S)
            if marks is None:
                raise KafkaException(KafkaError(KafkaError._TIMED_OUT))  # noqa: SLF001
            found[place.partition] = marks[1]
        return found

    def _take(self, message: Message) -> None:
        partition, offset = message.partition(), message.offset()
        if partition is None or offset is None:
            return
        error = message.error()
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                self._end_seen[partition] = offset
            return
        key, value = message.key(), self._as_json(message.value(), message.headers) or b""
        if isinstance(key, bytes) and key.startswith(NO_ORDER):
            return
        try:
            event = OrderEvent.read(value, partition)
            is_sound = key == str(event.order_id).encode()
        except (ValueError, KeyError, TypeError, AttributeError):
            is_sound = False
        if is_sound:
            self._tally.told(event)
            self._last.append(event.value)
        else:
            self._tally.unreadable(f"partition {partition}, offset {offset}")
