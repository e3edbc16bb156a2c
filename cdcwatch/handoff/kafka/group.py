"""A member of a consumer group on the topic: committed records of the partitions that the group gives it.

Cooperative: a partition that stays with its member is not interrupted while others change hands. No offsets are
committed: whoever gets a partition begins a little before its end, and takes what came before from the table.
https://kafka.apache.org/documentation/#consumerconfigs_partition.assignment.strategy
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.handoff.kafka.client import (
    client_configuration,
    connected_client,
    explain_kafka,
    explain_kafka_exception,
    made_client,
    partition_count,
    topic_command,
)
from cdcwatch.handoff.kafka.values import Values
from cdcwatch.handoff.member import Heard

if TYPE_CHECKING:
    from cdcwatch.errors import CdcwatchError
    from cdcwatch.handoff.member import Holder
    from cdcwatch.settings import KafkaSettings

_POLL_S: Final = 0.1
_BATCH: Final = 2000
_ASK_S: Final = 1.0
_END_TIMEOUT_S: Final = 30.0
OVERLAP_OFFSETS: Final = 5000
"""So far before its end a partition is heard: its events of the last seconds at thousands a second, of minutes else."""
_PASSING: Final = frozenset({KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT})  # noqa: SLF001


def group_id(settings: KafkaSettings, slot: str) -> str:
    """`kafka.group`, or what is made of topic and slot: workers of one slot share the work, of two slots they don't."""
    return settings.group or f"cdcwatch.{settings.topic}.{slot}"


class GroupMember:
    """One consumer. For one thread; `close` leaves the group."""

    def __init__(self, settings: KafkaSettings, slot: str, holder: Holder) -> None:
        """Connects and asks to join. PreconditionError without the topic, UnavailableError without the broker."""
        self._settings, self._holder = settings, holder
        self._group, self._as_json = group_id(settings, slot), Values(settings).as_json
        self._is_closing = False
        configuration = {
            # After so long without a sign of life its partitions are others': as short as brokers take by default.
            "session.timeout.ms": 6000,
            "heartbeat.interval.ms": 1000,
            "fetch.wait.max.ms": 100,
            "queued.max.messages.kbytes": 16 * 1024,
            # Partitions that are added are nobody's until a member learns of them, and asks for a new assignment.
            "topic.metadata.refresh.interval.ms": 5_000,
            **client_configuration(settings),
            "group.id": self._group,
            "partition.assignment.strategy": "cooperative-sticky",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": "read_committed",
            # A place that is no more there: what stands there is old, and harmless; what is behind it is not lost.
            "auto.offset.reset": "earliest",
        }
        # Questions go over a client of their own: one that is asked inside of its own callback loses track of itself,
        # and confluent-kafka ends the process (CallState_get).
        self._asked: Any = connected_client(Consumer, configuration, settings.topic)
        self._consumer: Any = None
        try:
            self._require_topic()
            self._consumer = made_client(Consumer, configuration)
            self._consumer.subscribe(
                [settings.topic],
                on_assign=self._on_assign,
                on_revoke=partial(self._on_loss, is_gone=False),
                on_lost=partial(self._on_loss, is_gone=True),
            )
        except BaseException:
            self.close()
            raise

    def poll(self) -> tuple[list[Heard], bool]:
        """What has come, at most some thousands, and whether that was all; waits a little for the first.

        PreconditionError for a right that is missing and a topic that is gone, UnavailableError for what ends the
        membership; a broker that is away is waited for, and shows by `answers`.
        """
        try:
            first = self._consumer.poll(_POLL_S)
            messages = [] if first is None else [first, *self._consumer.consume(_BATCH, 0)]
        except KafkaException as error:
            raise explain_kafka_exception(error) from error
        heard = []
        for message in messages:
            refused = message.error()
            if refused is None:
                value = self._as_json(message.value(), message.headers)
                heard.append(Heard(message.partition(), message.key(), value))
            elif not refused.retriable() and refused.code() not in _PASSING:
                raise self._explain(refused)
        return heard, len(messages) <= _BATCH

    def partitions(self) -> int:
        """Of the topic now. UnavailableError when no broker answers within a second, PreconditionError without it."""
        try:
            found = self._asked.list_topics(self._settings.topic, timeout=_ASK_S).topics.get(self._settings.topic)
        except KafkaException as error:
            raise explain_kafka_exception(error) from error
        if found is None or (found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
            raise self._no_topic()
        if found.error is not None:
            raise explain_kafka(found.error)
        return len(found.partitions)

    def close(self) -> None:
        """Leaves the group: the others share what was ours at once. Nobody is told."""
        self._is_closing = True
        if self._consumer is not None:
            self._consumer.close()
        self._asked.close()

    # -- the group gives and takes -----------------------------------------------------------------------------------

    def _on_assign(self, consumer: Any, places: list[TopicPartition]) -> None:
        """Errors come out of `poll`."""
        if self._is_closing:
            return
        ends = self._ends(places)
        count = self._counted() if places else 0
        consumer.incremental_assign(ends)
        self._holder.gained([place.partition for place in places], count)

    def _ends(self, places: list[TopicPartition]) -> list[TopicPartition]:
        """A little before where each ends now. Asked again and again: without it nothing begins."""
        give_up_s = time.monotonic() + _END_TIMEOUT_S
        ends = []
        for place in places:
            while True:
                try:
                    low, end = self._asked.get_watermark_offsets(place, timeout=_ASK_S) or (0, None)
                except KafkaException as error:
                    if time.monotonic() > give_up_s:
                        raise explain_kafka_exception(error) from error
                    continue
                if end is not None:
                    ends.append(TopicPartition(place.topic, place.partition, max(low, end - OVERLAP_OFFSETS)))
                    break
        return ends

    def _counted(self) -> int:
        give_up_s = time.monotonic() + _END_TIMEOUT_S
        while True:
            try:
                return self.partitions()
            except UnavailableError:
                if time.monotonic() > give_up_s:
                    raise

    def _on_loss(self, consumer: Any, places: list[TopicPartition], *, is_gone: bool) -> None:
        if self._is_closing:
            return
        self._holder.lost([place.partition for place in places], is_gone=is_gone)
        consumer.incremental_unassign(places)

    # -- errors ------------------------------------------------------------------------------------------------------

    def _require_topic(self) -> None:
        if partition_count(self._asked, self._settings.topic) is None:
            raise self._no_topic()

    def _no_topic(self) -> PreconditionError:
        settings = self._settings
        made = "start `cdcwatch run --role read`, which makes it" if settings.create_topic else topic_command(settings)
        return PreconditionError(f"Kafka has no topic {settings.topic!r}", remedy=f"{made}, or mend kafka.topic")

    def _explain(self, error: KafkaError) -> CdcwatchError:
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return PreconditionError(
                f"Kafka refuses: {error.str()}",
                remedy=f"kafka-acls.sh --bootstrap-server {self._settings.bootstrap_servers} --add --allow-principal"
                f" User:… --operation Read --group {self._group}",
            )
        if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return self._no_topic()
        if error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return PreconditionError(
                f"Kafka refuses: {error.str()}",
                remedy=f"kafka-acls.sh --bootstrap-server {self._settings.bootstrap_servers} --add --allow-principal"
                f" User:… --operation Read --operation Describe --topic {self._settings.topic}",
            )
        return explain_kafka(error)
