"""Dead letters: the record as it was, in `<topic>.<group>.dead`, with headers that say where it stood and why."""

from __future__ import annotations

import logging
import re
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cdcwatch.consume.kafka import explain, explained
from cdcwatch.errors import ConfigurationError, PreconditionError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from cdcwatch.consume.event import Record
    from cdcwatch.errors import CdcwatchError

_SEND_S: Final = 15.0
_ASK_S: Final = 5.0
"""A signal is heard after so long at the latest."""
_REFUSED: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
}
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
# A month, whatever the broker's default: somebody has to look at them. Not for ever: they hold what the records hold.
_CONFIGURATION: Final = {"cleanup.policy": "delete", "retention.ms": str(30 * 86_400_000)}

_log = logging.getLogger(__name__)


class DeadLetters:
    """For several threads."""

    def __init__(self, client: Mapping[str, Any], group: str, topic: str | None) -> None:
        """`topic`: the one for all; None: `<topic>.<group>.dead`."""
        self._client, self._group, self._topic = dict(client), group, topic
        self._producer: Producer | None = None
        self._lock = threading.Lock()

    def topic_of(self, topic: str) -> str:
        """Where the dead letters of `topic` go; ConfigurationError where that is no name of a topic."""
        name = self._topic or f"{topic}.{self._group}.dead"
        if not _TOPIC.fullmatch(name):
            raise ConfigurationError(
                f"{name!r} is no name of a topic for dead letters", remedy="name one: dead_topic=…"
            )
        return name

    def prepare(self, topics: Iterable[str]) -> None:
        """Makes the topics where they are missing, before they are needed: what fails must not hold up the next.

        PreconditionError where that is refused, UnavailableError without a broker.
        """
        wanted = sorted({self.topic_of(topic) for topic in topics})
        try:
            admin, known = self._asked()
            missing = [NewTopic(name, 1, -1, config=_CONFIGURATION) for name in wanted if name not in known]
            made = admin.create_topics(missing, operation_timeout=_SEND_S) if missing else {}
        except KafkaException as error:
            raise explained(error) from error
        for name, done in made.items():
            try:
                done.result(_SEND_S)
            except KafkaException as error:
                code = error.args[0].code()
                if code == KafkaError.TOPIC_ALREADY_EXISTS:
                    continue
                if code in _REFUSED:
                    raise PreconditionError(
                        f"Kafka has no topic {name!r} for dead letters, and it can't be made",
                        remedy=f"kafka-topics.sh --create --topic {name}, and grant Write and Describe on it",
                    ) from error
                raise explained(error) from error
            _log.info("made the topic %s for dead letters", name, extra={"topic": name})

    def _asked(self) -> tuple[AdminClient, Collection[str]]:
        """And the topics that there are."""
        told: list[CdcwatchError] = []
        heard: dict[str, Any] = {"error_cb": lambda error: told.append(explain(error))}
        admin = AdminClient({**self._client, **heard})
        try:
            return admin, admin.list_topics(timeout=_ASK_S).topics
        except KafkaException as error:
            # What librdkafka heard says more than that there was no answer: a refused password, for one.
            admin.poll(0)
            told.sort(key=lambda one: not isinstance(one, PreconditionError))
            raise next(iter(told), explained(error)) from error

    def send(self, record: Record, error: str, attempts: int) -> None:
        """Returns once all replicas in sync have it. UnavailableError otherwise: perhaps it is there all the same."""
        told = {
            "dead_topic": record.topic,
            "dead_partition": str(record.partition),
            "dead_offset": str(record.offset),
            "dead_group": self._group,
            "dead_error": error,
            "dead_attempts": str(attempts),
        }
        headers: list[tuple[str, Any]] = [(name, value) for name, value in record.headers if name not in told]
        headers += [(name, value.encode()) for name, value in told.items()]
        answers: list[KafkaError | None] = []
        topic = self.topic_of(record.topic)
        with self._lock:
            try:
                producer = self._connected()
                producer.produce(
                    topic,
                    key=record.key,
                    value=record.value,
                    headers=headers,
                    on_delivery=lambda failed, _: answers.append(failed),
                )
                give_up_s = time.monotonic() + _SEND_S
                while not answers and time.monotonic() < give_up_s:
                    producer.poll(0.1)
            except KafkaException as refused:
                reason = explained(refused)
                self._tell(reason)
                raise reason from refused
            except BufferError as full:
                raise UnavailableError("Kafka takes no dead letters", remedy="see that the brokers are up") from full
        failed = answers[0] if answers else KafkaError(KafkaError._MSG_TIMED_OUT)  # noqa: SLF001
        if failed is not None:
            away = UnavailableError(
                f"Kafka takes no dead letters: {failed.name()}", remedy="see that the brokers are up"
            )
            self._tell(away)
            raise away
        _log.warning(
            "a dead letter: %s/%d offset %d is in %s, after %d attempts: %s",
            record.topic,
            record.partition,
            record.offset,
            topic,
            attempts,
            error,
            extra={"topic": record.topic, "partition": record.partition, "reason": error},
        )

    def _tell(self, error: CdcwatchError) -> None:
        _log.warning(
            "the topic for dead letters takes nothing; handling waits for it: %s; %s",
            error,
            error.remedy,
            extra={"reason": str(error), "remedy": error.remedy},
        )

    def _connected(self) -> Producer:
        if self._producer is None:
            self._producer = Producer(
                {
                    "acks": "all",
                    "enable.idempotence": True,
                    "message.timeout.ms": 10_000,
                    "linger.ms": 0,
                    **self._client,
                }
            )
        return self._producer

    def close(self) -> None:
        """What was sent was answered already."""
        self._producer = None
