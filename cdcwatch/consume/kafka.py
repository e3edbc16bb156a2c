"""What the consumer's Kafka clients share: configuration, and what an error means to whoever runs it.

https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md
"""

from __future__ import annotations

import logging
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException

from cdcwatch.consume.event import Record
from cdcwatch.errors import CdcwatchError, ConfigurationError, PreconditionError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_librdkafka_log = logging.getLogger("cdcwatch.librdkafka")
# librdkafka writes a line for every attempt at a broker that is away.
_librdkafka_log.setLevel(logging.CRITICAL)

_OURS: Final = {
    "group.id",
    "enable.auto.commit",
    "enable.auto.offset.store",
    "isolation.level",
    "auto.offset.reset",
    "partition.assignment.strategy",
    "on_commit",
}
"""What the guarantees rest on."""
_USER: Final = "set sasl.mechanism, sasl.username and sasl.password in client="
_DENIED: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "grant Read on the topic, Write on that of dead letters, Describe on both",
    KafkaError.GROUP_AUTHORIZATION_FAILED: "grant the client Read on the group",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "mend the client's user",
    KafkaError.SASL_AUTHENTICATION_FAILED: _USER,
    KafkaError._AUTHENTICATION: _USER,  # noqa: SLF001
    KafkaError.INVALID_SESSION_TIMEOUT: "a session.timeout.ms in client= that the broker allows",
    KafkaError.INCONSISTENT_GROUP_PROTOCOL: "every member of the group cooperative-sticky, or another group=",
}

_NO_TOPIC: Final = {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}  # noqa: SLF001
_MAKE: Final = "make the topic (kafka-topics.sh --create --topic …), or mend its name; no restart is needed"


def client_configuration(bootstrap_servers: str, client: Mapping[str, Any]) -> dict[str, Any]:
    """Of every client; `client` overrides, but for what the guarantees rest on: ConfigurationError."""
    if set(client) & _OURS:
        named = ", ".join(sorted(set(client) & _OURS))
        raise ConfigurationError(f"client= can't set {named}", remedy="leave it out: the guarantees rest on it")
    return {
        "bootstrap.servers": bootstrap_servers,
        "client.id": "cdcwatch-consume",
        "log_level": 0,
        "logger": _librdkafka_log,
        **client,
    }


def member_configuration(shared: Mapping[str, Any], *, group: str, start: str) -> dict[str, Any]:
    """Of a member of the group; `shared` as of `client_configuration`."""
    return {
        # Partitions of a member that died are others' after so long.
        "session.timeout.ms": 10_000,
        "queued.max.messages.kbytes": 16 * 1024,
        "topic.metadata.refresh.interval.ms": 10_000,
        **shared,
        "group.id": group,
        "auto.offset.reset": start,
        "isolation.level": "read_committed",
        "partition.assignment.strategy": "cooperative-sticky",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
    }


def explain(error: KafkaError) -> CdcwatchError:
    """By code; librdkafka's words hold nothing of a record."""
    remedy = _DENIED.get(error.code())
    if remedy is not None:
        return PreconditionError(f"Kafka refuses: {error.str()}", remedy=remedy)
    if error.code() in _NO_TOPIC:
        return UnavailableError(f"Kafka: {error.str()}", remedy=_MAKE)
    return UnavailableError(f"Kafka: {error.str()}", remedy="see that the brokers in bootstrap_servers are up")


def explained(error: KafkaException) -> CdcwatchError:
    """The same of what confluent-kafka raises."""
    inner = error.args[0]
    if isinstance(inner, KafkaError) and inner.code() != KafkaError._INVALID_ARG:  # noqa: SLF001
        return explain(inner)
    # librdkafka quotes the value that it stumbled over, which may be a password.
    return ConfigurationError("the Kafka client can't be made so", remedy="mend the keys and values in client=")


def record_of(message: Any) -> Record:
    """A message without error."""
    kind, timestamp_ms = message.timestamp()
    return Record(
        topic=message.topic(),
        partition=message.partition(),
        offset=message.offset(),
        key=message.key(),
        value=message.value(),
        headers=tuple(message.headers() or ()),
        timestamp_ms=timestamp_ms if kind else None,
    )


def places_of(places: Iterable[tuple[str, int]]) -> str:
    """Of partitions, for the log: `orders 0 1 2, returns 0`."""
    return ", ".join(
        f"{topic} {' '.join(str(partition) for _, partition in found)}"
        for topic, found in groupby(sorted(places), key=lambda place: place[0])
    )
