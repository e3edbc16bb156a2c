"""What every Kafka client of ours shares: configuration, topics, and what librdkafka's errors mean to an operator.

https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cdcwatch.errors import CdcwatchError, ConfigurationError, PreconditionError, UnavailableError
from cdcwatch.handoff.sink import FencedError
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cdcwatch.settings import KafkaSettings

METADATA_TIMEOUT_S: Final = 5.0
_CREATE_TIMEOUT_S: Final = 15.0
_ASK_S: Final = 0.2
_GRACE_S: Final = 1.0
"""One of several brokers may be away: another gets so long to answer."""

HARMLESS: Final = KafkaError.GROUP_AUTHORIZATION_FAILED
"""To a consumer of ours: librdkafka wants a group's name and looks for its coordinator, but none is ever joined."""

_QUOTED_VALUE: Final = re.compile(r'Invalid value ".*" for', re.DOTALL)
_Client = TypeVar("_Client")
_log = logging.getLogger(__name__)
_librdkafka_log = logging.getLogger("cdcwatch.librdkafka")
# librdkafka writes a line for every attempt at a broker that is away; our own log says it once.
_librdkafka_log.setLevel(logging.CRITICAL)

_FENCED: Final = frozenset({KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED})  # noqa: SLF001
_DENIED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    }
)
_UNKNOWN_TO_THEM: Final = frozenset({KafkaError.SASL_AUTHENTICATION_FAILED, KafkaError._AUTHENTICATION})  # noqa: SLF001
_TELLING: Final = (
    KafkaError._AUTHENTICATION,  # noqa: SLF001
    KafkaError._SSL,  # noqa: SLF001
    KafkaError._RESOLVE,  # noqa: SLF001
    KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001
)
"""What says why no broker answers, the most telling first: the call itself only runs out of time."""
_AWAY: Final = {
    KafkaError._RESOLVE: "mend the host names in kafka.bootstrap_servers, or the brokers' advertised.listeners",  # noqa: SLF001
    KafkaError._SSL: "mend ssl.ca.location and the like in [kafka.client], or the broker's certificate",  # noqa: SLF001
    KafkaError.NOT_ENOUGH_REPLICAS: "bring the topic's replicas back: fewer than min.insync.replicas are in sync",
    KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND: "bring the topic's replicas back: min.insync.replicas",
    KafkaError.KAFKA_STORAGE_ERROR: "see the broker's log directories: a disk is full or broken",
    KafkaError.LEADER_NOT_AVAILABLE: "see that every broker of the topic is up",
}
"""What comes back by itself once this is done."""
_UNFIT: Final = {
    KafkaError.MSG_SIZE_TOO_LARGE: 'raise the topic\'s max.message.bytes, and "message.max.bytes" in [kafka.client]',
    KafkaError.INVALID_TRANSACTION_TIMEOUT: "raise the broker's transaction.max.timeout.ms to 900000",
    KafkaError.UNSUPPORTED_FOR_MESSAGE_FORMAT: "use a broker of Kafka 2.5 or later",
    KafkaError.INVALID_REPLICATION_FACTOR: "set kafka.replication_factor to what the brokers can hold",
    KafkaError.INVALID_PARTITIONS: "set kafka.partitions to what the brokers allow",
    KafkaError.POLICY_VIOLATION: "make the topic by hand, as the cluster's policy wants it",
}


def client_configuration(settings: KafkaSettings) -> dict[str, Any]:
    """For any producer, consumer or admin client; `kafka.client` goes last and wins."""
    return {
        "bootstrap.servers": settings.bootstrap_servers,
        "client.id": "cdcwatch",
        # A broker that comes back is found within a second, not within ten.
        "reconnect.backoff.max.ms": 1000,
        "topic.metadata.propagation.max.ms": 5000,
        # A connection that answers nothing is given up after this, as closing does with its own; a minute by default.
        "socket.timeout.ms": 15_000,
        "logger": _librdkafka_log,
        **settings.client,
    }


def transactional_id(settings: KafkaSettings, slot: str) -> str:
    """By which a newer process of a slot fences an older one."""
    return f"cdcwatch.{settings.topic}.{slot}"


def explain_kafka(error: KafkaError) -> CdcwatchError:
    """By code: fenced, denied, unfit, or away for now. librdkafka's own words hold no record values."""
    code, said = error.code(), error.str()
    if code in _FENCED:
        return FencedError(
            f"Kafka: {said}", remedy="another cdcwatch writes this slot's events now; end one of the two"
        )
    if code in _DENIED:
        return PreconditionError(
            f"Kafka refuses: {said}",
            remedy="grant Write and Describe on the topic, its .progress and its .dead, Write on the transactional id;"
            " or mend [kafka.client]",
        )
    if code in _UNKNOWN_TO_THEM:
        return PreconditionError(
            f"Kafka refuses: {said}",
            remedy="set the broker's own sasl.mechanism, sasl.username and sasl.password in [kafka.client]",
        )
    if code == KafkaError._SSL and "verif" in said:  # noqa: SLF001
        return PreconditionError(
            f"Kafka: {said}",
            remedy="set ssl.ca.location in [kafka.client] to the authority of the broker's certificate; or renew that"
            " certificate, for the names in kafka.bootstrap_servers and the brokers' advertised.listeners",
        )
    if code in _UNFIT:
        return PreconditionError(f"Kafka: {said}", remedy=_UNFIT[code])
    if code == KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001  librdkafka counts: "0/1 brokers are down"
        said = "no broker can be reached, or none speaks the security.protocol of [kafka.client]"
    return UnavailableError(
        f"Kafka: {said}", remedy=_AWAY.get(code, "see that the brokers in kafka.bootstrap_servers are up")
    )


def explain_kafka_exception(error: KafkaException) -> CdcwatchError:
    """The same for what confluent-kafka raises."""
    inner = error.args[0]
    if isinstance(inner, KafkaError):
        return explain_kafka(inner)
    return ConfigurationError(f"Kafka: {inner}", remedy="mend [kafka.client]")


def made_client(kind: Callable[[dict[str, Any]], _Client], configuration: dict[str, Any]) -> _Client:
    """A client; ConfigurationError where librdkafka doesn't know a key or a value."""
    try:
        return kind(configuration)
    except KafkaException as error:
        inner = error.args[0]
        said = inner.str() if isinstance(inner, KafkaError) else "not accepted"
        said = _QUOTED_VALUE.sub("Invalid value for", said)  # a password may have slipped into another line
        raise ConfigurationError(f"Kafka client: {said}", remedy="mend [kafka.client]") from None


def connected_client(
    kind: Callable[[dict[str, Any]], _Client], configuration: dict[str, Any], topic: str | None = None
) -> _Client:
    """A client that a broker has answered. UnavailableError or PreconditionError with the reason, within seconds.

    `topic`: what it asks for; None: all there are.
    """
    reasons: list[KafkaError] = []
    client: Any = made_client(kind, {**configuration, "error_cb": reasons.append})
    try:
        _await_broker(client, topic, reasons)
    except BaseException:
        if isinstance(client, Consumer):
            client.close()
        raise
    return client  # type: ignore[no-any-return]


def _await_broker(client: Any, topic: str | None, reasons: list[KafkaError]) -> None:
    asked = {} if topic is None else {"topic": topic}
    give_up_s, since_s = time.monotonic() + METADATA_TIMEOUT_S, 0.0
    while True:
        try:
            client.list_topics(**asked, timeout=_ASK_S)
        except KafkaException as error:
            client.poll(0)
            told = {reason.code(): reason for reason in reasons}
            known = next((told[code] for code in _TELLING if code in told), None)
            if known is not None:
                since_s = since_s or time.monotonic()
            now_s = time.monotonic()
            if now_s > give_up_s or (since_s and now_s > since_s + _GRACE_S):
                raise (explain_kafka(known) if known else explain_kafka_exception(error)) from error
        else:
            return


def partition_count(client: Any, topic: str) -> int | None:
    """How many partitions the topic has; None where there is none. `client`: any confluent-kafka client."""
    try:
        found = client.list_topics(topic, timeout=METADATA_TIMEOUT_S).topics.get(topic)
    except KafkaException as error:
        raise explain_kafka_exception(error) from error
    if found is None or (found.error is not None and found.error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART):
        return None
    if found.error is not None:
        raise explain_kafka(found.error)
    return len(found.partitions)


def topic_ids(settings: KafkaSettings, topics: Collection[str]) -> dict[str, str]:
    """What the broker knows each topic by: one that is made anew has another. Those that it doesn't tell are missing.

    https://cwiki.apache.org/confluence/display/KAFKA/KIP-516%3A+Topic+Identifiers
    """
    admin = made_client(AdminClient, client_configuration(settings))
    asked = admin.describe_topics(TopicCollection(list(topics)), request_timeout=METADATA_TIMEOUT_S)
    found = {}
    for topic, answer in asked.items():
        try:
            found[topic] = str(answer.result(_CREATE_TIMEOUT_S).topic_id)
        except (KafkaException, TimeoutError):
            continue  # a broker before 2.8, a right that is missing: what needs the topic says so
    return found


def require_topic(client: Any, settings: KafkaSettings, *, was_there: bool = False) -> int:
    """The topic's partition count; makes the topic when `create_topic` says so, else says how.

    `was_there`: a moment ago; then it is not made anew behind its subscribers' backs.
    """
    count = partition_count(client, settings.topic)
    if count is not None:
        return count
    if was_there:
        raise PreconditionError(
            f"Kafka has no topic {settings.topic!r} any more",
            remedy=f"{topic_command(settings)}{' (or start again)' if settings.create_topic else ''}; then"
            " `cdcwatch snapshot` tells the new one of the open orders",
        )
    if not settings.create_topic:
        raise PreconditionError(
            f"Kafka has no topic {settings.topic!r}",
            remedy=f"{topic_command(settings)} (or set kafka.create_topic = true)",
        )
    create_topic(settings, settings.topic, settings.partitions, {})
    return settings.partitions


def topic_command(settings: KafkaSettings) -> str:
    """What an operator types to make the topic."""
    replication = f" --replication-factor {settings.replication_factor}" if settings.replication_factor > 0 else ""
    return (
        f"kafka-topics.sh --bootstrap-server {settings.bootstrap_servers} --create --topic {settings.topic}"
        f" --partitions {settings.partitions}{replication}"
    )


def create_topic(settings: KafkaSettings, topic: str, partitions: int, configuration: dict[str, str]) -> None:
    """Makes a topic; one that another process made meanwhile is as good."""
    admin = made_client(AdminClient, client_configuration(settings))
    new = NewTopic(topic, partitions, settings.replication_factor, config=configuration)
    try:
        admin.create_topics([new], operation_timeout=_CREATE_TIMEOUT_S)[topic].result(_CREATE_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise explain_kafka_exception(error) from error
    _log.info("made the topic %s with %s", topic, counted(partitions, "partition"), extra={"topic": topic})
