"""What the broker must have: reachable, topic and progress topic with their partitions, and our rights on them.

Everything is asked with metadata requests: nothing is produced, and the transactional id is not touched, which would
fence a process at work.
https://kafka.apache.org/documentation/#security_authz_primitives
"""

from __future__ import annotations

import time
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType

from cdcwatch.errors import CdcwatchError, UnavailableError
from cdcwatch.handoff.client import (
    METADATA_TIMEOUT_S,
    client_configuration,
    explain_kafka,
    explain_kafka_exception,
    made_client,
    topic_command,
    transactional_id,
)
from cdcwatch.handoff.ledger import progress_topic
from cdcwatch.slot.check import Check, failed

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cdcwatch.settings import KafkaSettings, Settings

_ASK_S: Final = 0.2
_DOWN: Final = frozenset(
    {KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE, KafkaError._AUTHENTICATION, KafkaError._SSL}  # noqa: SLF001
)


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """A topic, as far as we may see it."""

    partitions: int
    leaderless: int
    operations: frozenset[AclOperation] | None
    """What we may do with it; None where the broker doesn't tell."""
    cleanup_policy: str | None
    """None where we may not read it."""


@dataclass(frozen=True, slots=True)
class BrokerFacts:
    """What the cluster says."""

    brokers: int
    topic: TopicFacts | CdcwatchError | None
    """None when there is none."""
    progress: TopicFacts | CdcwatchError | None
    may_create: bool | None
    """Topics, in the whole cluster; None where the broker doesn't tell."""
    transactional_id: bool | None
    """Whether an ACL lets somebody write with it, or there are no ACLs; None where we may not see them."""


def broker_checks(settings: Settings) -> list[Check]:
    """Asks the broker and judges. At most a few seconds, also when nobody answers."""
    if settings.sink.kind != "kafka":
        return []
    try:
        facts = read_broker(settings.kafka, settings.slot.name)
    except CdcwatchError as error:
        answered = failed("kafka", error)
        return [
            replace(
                answered, message=f"{answered.message} (kafka.bootstrap_servers: {settings.kafka.bootstrap_servers})"
            )
        ]
    return judge_broker(facts, settings)


def judge_broker(facts: BrokerFacts, settings: Settings) -> list[Check]:
    """Pure."""
    kafka = settings.kafka
    checks = [Check("kafka", "ok", f"Kafka answers at {kafka.bootstrap_servers}: {facts.brokers} brokers")]
    checks.append(_topic(facts, kafka))
    checks.append(_progress(facts, kafka))
    if kafka.delivery == "exactly_once":
        checks.append(_transactions(facts, kafka, settings.slot.name))
    return checks


def _topic(facts: BrokerFacts, kafka: KafkaSettings) -> Check:  # noqa: PLR0911  a line of the report each
    topic = facts.topic
    if isinstance(topic, CdcwatchError):
        return failed("topic", topic)
    if topic is None:
        if not kafka.create_topic:
            remedy = f"{topic_command(kafka)} (or set kafka.create_topic = true)"
            return Check("topic", "fail", f"Kafka has no topic {kafka.topic}", remedy)
        if facts.may_create is False:
            return Check("topic", "fail", f"{kafka.topic} is missing, and we may not create it", topic_command(kafka))
        return Check("topic", "ok", f"{kafka.topic} is missing; run makes it with {kafka.partitions} partitions")
    if topic.leaderless:
        return Check(
            "topic",
            "fail",
            f"{topic.leaderless} of {topic.partitions} partitions of {kafka.topic} have no leader",
            "see that every broker of the topic is up",
            unreachable=True,
        )
    lacking = _lacking(topic, {"Write": AclOperation.WRITE, "Describe": AclOperation.DESCRIBE})
    if lacking:
        return Check("topic", "fail", f"we lack {lacking} on {kafka.topic}", _grant(kafka, lacking, kafka.topic))
    return Check("topic", "ok", f"{kafka.topic} has {topic.partitions} partitions, and we may write to it")


def _progress(facts: BrokerFacts, kafka: KafkaSettings) -> Check:  # noqa: PLR0911  a line of the report each
    name, progress = progress_topic(kafka), facts.progress
    if isinstance(progress, CdcwatchError):
        return failed("progress", progress)
    if progress is None:
        if facts.may_create is False:
            return Check(
                "progress",
                "fail",
                f"{name} is missing, and we may not create it",
                f"kafka-topics.sh --bootstrap-server {kafka.bootstrap_servers} --create --topic {name} --partitions 1"
                " --config cleanup.policy=compact",
            )
        return Check("progress", "ok", f"{name} is missing; run makes it, compacted")
    if progress.partitions != 1:
        return Check(
            "progress",
            "fail",
            f"{name} has {progress.partitions} partitions and must have one",
            f"delete it: kafka-topics.sh --bootstrap-server {kafka.bootstrap_servers} --delete --topic {name}"
            " (run makes it anew, and publishes open orders again)",
        )
    wanted = {"Read": AclOperation.READ, "Write": AclOperation.WRITE, "Describe": AclOperation.DESCRIBE}
    lacking = _lacking(progress, wanted)
    if lacking:
        return Check("progress", "fail", f"we lack {lacking} on {name}", _grant(kafka, lacking, name))
    if progress.cleanup_policy is not None and progress.cleanup_policy != "compact":
        return Check(
            "progress",
            "fail",
            f"{name} has cleanup.policy={progress.cleanup_policy}: progress would be deleted after a while",
            f"kafka-configs.sh --bootstrap-server {kafka.bootstrap_servers} --alter --topic {name}"
            " --add-config cleanup.policy=compact",
        )
    return Check("progress", "ok", f"{name} is there, and we may read and write it")


def _transactions(facts: BrokerFacts, kafka: KafkaSettings, slot: str) -> Check:
    name = transactional_id(kafka, slot)
    if facts.transactional_id:
        return Check("transactional", "ok", f"the transactional id {name} is permitted")
    message = f"no ACL names the transactional id {name}: only a super user may use it"
    if facts.transactional_id is None:
        message = f"whether the transactional id {name} is permitted shows at run: we may not see ACLs"
    return Check(
        "transactional",
        "warn",
        message,
        f"kafka-acls.sh --bootstrap-server {kafka.bootstrap_servers} --add --allow-principal User:…"
        f" --operation Write --operation Describe --transactional-id {name}",
    )


def _lacking(topic: TopicFacts, wanted: dict[str, AclOperation]) -> str:
    if topic.operations is None or AclOperation.ALL in topic.operations:
        return ""
    return ", ".join(name for name, operation in wanted.items() if operation not in topic.operations)


def _grant(kafka: KafkaSettings, lacking: str, topic: str) -> str:
    operations = " ".join(f"--operation {name}" for name in lacking.split(", "))
    return (
        f"kafka-acls.sh --bootstrap-server {kafka.bootstrap_servers} --add --allow-principal User:… {operations}"
        f" --topic {topic}"
    )


def read_broker(settings: KafkaSettings, slot: str) -> BrokerFacts:
    """UnavailableError when no broker answers within a few seconds, PreconditionError when it refuses us."""
    reasons: list[KafkaError] = []
    admin: Any = made_client(AdminClient, {**client_configuration(settings), "error_cb": reasons.append})
    brokers = _brokers(admin, reasons)
    names = [settings.topic, progress_topic(settings)]
    topics = {name: _described(admin, name) for name in names}
    operations = _cluster_operations(admin)
    return BrokerFacts(
        brokers,
        topics[names[0]],
        topics[names[1]],
        _may(operations, AclOperation.CREATE),
        _may_transact(admin, settings, slot, operations),
    )


def _brokers(admin: Any, reasons: list[KafkaError]) -> int:
    """How many there are. A refused connection is told at once, silence after METADATA_TIMEOUT_S."""
    give_up_s = time.monotonic() + METADATA_TIMEOUT_S
    while True:
        try:
            return len(admin.list_topics(timeout=_ASK_S).brokers)
        except KafkaException as error:
            admin.poll(0)
            known = next((reason for reason in reasons if reason.code() in _DOWN), None)
            if known is not None:
                raise explain_kafka(known) from error
            if time.monotonic() > give_up_s:
                raise explain_kafka_exception(error) from error


def _answer(future: Future[Any]) -> Any:
    try:
        return future.result(METADATA_TIMEOUT_S)
    except FutureTimeoutError:
        raise UnavailableError(
            "Kafka: no answer in time", remedy="see that the brokers in kafka.bootstrap_servers are up"
        ) from None


def _described(admin: Any, name: str) -> TopicFacts | CdcwatchError | None:
    try:
        told = _answer(
            admin.describe_topics(
                TopicCollection([name]), include_authorized_operations=True, request_timeout=METADATA_TIMEOUT_S
            )[name]
        )
    except KafkaException as error:
        if error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
            return None
        return explain_kafka_exception(error)
    except CdcwatchError as error:
        return error
    leaderless = sum(part.leader is None for part in told.partitions)
    operations = frozenset(told.authorized_operations) if told.authorized_operations else None
    return TopicFacts(len(told.partitions), leaderless, operations, _cleanup_policy(admin, name))


def _cleanup_policy(admin: Any, name: str) -> str | None:
    resource = ConfigResource(ConfigResource.Type.TOPIC, name)
    try:
        told = _answer(admin.describe_configs([resource], request_timeout=METADATA_TIMEOUT_S)[resource])
    except (KafkaException, CdcwatchError):
        return None
    return str(told["cleanup.policy"].value) if "cleanup.policy" in told else None


def _cluster_operations(admin: Any) -> frozenset[AclOperation] | None:
    """What we may do with the cluster as a whole; None where the broker doesn't tell."""
    try:
        told = _answer(
            admin.describe_cluster(include_authorized_operations=True, request_timeout=METADATA_TIMEOUT_S)
        ).authorized_operations
    except (KafkaException, CdcwatchError):
        return None
    return frozenset(told) if told is not None else None


def _may(operations: frozenset[AclOperation] | None, wanted: AclOperation) -> bool | None:
    return None if operations is None else wanted in operations or AclOperation.ALL in operations


def _may_transact(
    admin: Any, settings: KafkaSettings, slot: str, operations: frozenset[AclOperation] | None
) -> bool | None:
    """By the ACLs that match the id, where we may see them; where there are none at all, nothing is forbidden."""
    if not _may(operations, AclOperation.DESCRIBE):
        return None  # the answer would be an empty list
    matching = _acls(admin, ResourceType.TRANSACTIONAL_ID, transactional_id(settings, slot), ResourcePatternType.MATCH)
    if matching is None:
        return None
    if any(acl.operation in {AclOperation.WRITE, AclOperation.ALL} for acl in matching):
        return True
    return not _acls(admin, ResourceType.ANY, None, ResourcePatternType.ANY)


def _acls(admin: Any, kind: ResourceType, name: Any, pattern: ResourcePatternType) -> list[AclBinding] | None:
    """None where we may not see them."""
    anybody: Any = None
    wanted = AclBindingFilter(kind, name, pattern, anybody, anybody, AclOperation.ANY, AclPermissionType.ALLOW)
    try:
        return list(_answer(admin.describe_acls(wanted, request_timeout=METADATA_TIMEOUT_S)))
    except KafkaException as error:
        return [] if error.args[0].code() == KafkaError.SECURITY_DISABLED else None
    except CdcwatchError:
        return None
