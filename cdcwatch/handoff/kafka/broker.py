"""What the cluster says: brokers, our three topics with their partitions, and our rights on them.

Everything but the number of dead letters is asked with metadata requests: nothing is produced, and the transactional id
is not touched, which would fence a process at work.
https://kafka.apache.org/documentation/#security_authz_primitives
"""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeoutError
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._acl import AclBinding, AclBindingFilter, AclOperation, AclPermissionType
from confluent_kafka.admin._config import ConfigResource
from confluent_kafka.admin._resource import ResourcePatternType, ResourceType
from msgspec import Struct

from cdcwatch.errors import CdcwatchError, UnavailableError
from cdcwatch.handoff.kafka.client import (
    METADATA_TIMEOUT_S,
    client_configuration,
    connected_client,
    explain_kafka_exception,
    transactional_id,
)
from cdcwatch.handoff.kafka.dead_letters import count_dead_letters, dead_topic
from cdcwatch.handoff.kafka.ledger import progress_topic

if TYPE_CHECKING:
    from concurrent.futures import Future

    from cdcwatch.settings import KafkaSettings


class TopicFacts(Struct, frozen=True):
    """A topic, as far as we may see it."""

    partitions: int
    leaderless: int
    operations: frozenset[AclOperation] | None
    """What we may do with it; None where the broker doesn't tell."""
    cleanup_policy: str | None
    """None where we may not read it."""


class BrokerFacts(Struct, frozen=True):
    """What the cluster says."""

    brokers: int
    topic: TopicFacts | CdcwatchError | None
    """None when there is none."""
    progress: TopicFacts | CdcwatchError | None
    may_create: bool | None
    """Topics, in the whole cluster; None where the broker doesn't tell."""
    transactional_id: bool | None
    """Whether an ACL lets somebody write with it, or there are no ACLs; None where we may not see them."""
    dead: TopicFacts | CdcwatchError | None = None
    dead_letters: int | None = 0
    """How many there are, at most MOST_COUNTED; None where they can't be read."""


def read_broker(settings: KafkaSettings, slot: str, events: KafkaSettings | None = None) -> BrokerFacts:
    """UnavailableError when no broker answers within a few seconds, PreconditionError when it refuses us.

    `events`: with the topic of a table, where that is not the slot's own.
    """
    admin: Any = connected_client(AdminClient, client_configuration(settings))
    try:
        brokers = len(admin.list_topics(timeout=METADATA_TIMEOUT_S).brokers)
    except KafkaException as error:
        raise explain_kafka_exception(error) from error
    events = events or settings
    names = [events.topic, progress_topic(settings), dead_topic(events)]
    topics = {name: _described(admin, name) for name in names}
    operations = _cluster_operations(admin)
    return BrokerFacts(
        brokers,
        topics[names[0]],
        topics[names[1]],
        _may(operations, AclOperation.CREATE),
        _may_transact(admin, settings, slot, operations),
        topics[names[2]],
        count_dead_letters(events) if isinstance(topics[names[2]], TopicFacts) else 0,
    )


def may_join(settings: KafkaSettings, group: str) -> bool | None:
    """Whether we may read with that consumer group; None where the broker doesn't tell. Errors as of `read_broker`."""
    admin: Any = connected_client(AdminClient, client_configuration(settings))
    try:
        told = _answer(
            admin.describe_consumer_groups(
                [group], include_authorized_operations=True, request_timeout=METADATA_TIMEOUT_S
            )[group]
        )
    except KafkaException as error:
        return False if error.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED else None
    return _may(frozenset(told.authorized_operations) if told.authorized_operations else None, AclOperation.READ)


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
