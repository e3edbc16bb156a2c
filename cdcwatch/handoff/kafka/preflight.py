"""What the broker must have, judged: reachable, our three topics with their partitions, and our rights on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka.admin._acl import AclOperation
from msgspec.structs import replace

from cdcwatch.errors import CdcwatchError
from cdcwatch.handoff.kafka.broker import BrokerFacts, TopicFacts, may_join, read_broker
from cdcwatch.handoff.kafka.client import topic_command, transactional_id
from cdcwatch.handoff.kafka.dead_letters import MOST_COUNTED, dead_topic, dead_topic_command
from cdcwatch.handoff.kafka.group import group_id
from cdcwatch.handoff.kafka.ledger import progress_topic
from cdcwatch.slot.check import Check, failed
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from cdcwatch.settings import KafkaSettings, Settings


_PUBLISHING: Final = {"Write": AclOperation.WRITE, "Describe": AclOperation.DESCRIBE}
_HEARING: Final = {"Read": AclOperation.READ, "Describe": AclOperation.DESCRIBE}
_TABLES_OWN: Final = frozenset({"topic", "dead_letters", "group"})
"""What is told of every table; the rest is the slot's."""
_UNTRUE: Final = frozenset({"false", "0"})


def broker_checks(settings: Settings, *, hears: bool = False) -> list[Check]:
    """Asks the broker and judges. At most a few seconds, also when nobody answers.

    `hears`: what `--role close` needs, which writes nothing, and not what the reader does.
    """
    try:
        first, *others = settings.each()
        checks = _of_table(first, hears=hears)
        for one in others:
            checks += [check for check in _of_table(one, hears=hears) if check.name in _TABLES_OWN]
    except CdcwatchError as error:
        answered = failed("kafka", error)
        return [
            replace(
                answered, message=f"{answered.message} (kafka.bootstrap_servers: {settings.kafka.bootstrap_servers})"
            )
        ]
    return checks


def _of_table(settings: Settings, *, hears: bool) -> list[Check]:
    events, slot = settings.for_events(), settings.slot.name
    facts = read_broker(settings.kafka, slot, events)
    if not hears:
        return judge_broker(facts, settings)
    group = group_id(events, slot)
    return judge_hearing(facts, events, group, may_join(events, group))


def judge_hearing(facts: BrokerFacts, kafka: KafkaSettings, group: str, joins: bool | None) -> list[Check]:
    """Of a worker that closes: it reads the topic as a member of the consumer group. Pure."""
    checks = [_answers(facts, kafka), _link(kafka), _topic(facts, kafka, _HEARING, "read")]
    if joins is False:
        remedy = (
            f"kafka-acls.sh --bootstrap-server {kafka.bootstrap_servers} --add --allow-principal User:…"
            f" --operation Read --group {group}"
        )
        return [*checks, Check("group", "fail", f"we lack Read on the consumer group {group}", remedy)]
    return [*checks, Check("group", "ok", f"the consumer group is {group}" + (", and we may join it" if joins else ""))]


def judge_broker(facts: BrokerFacts, settings: Settings) -> list[Check]:
    """Pure."""
    kafka, events = settings.kafka, settings.for_events()
    checks = [_answers(facts, kafka), _link(kafka), _topic(facts, events, _PUBLISHING, "write to")]
    checks.append(_progress(facts, kafka))
    checks.append(_dead(facts, events))
    if kafka.delivery == "exactly_once":
        checks.append(_transactions(facts, kafka, settings.slot.name))
    return checks


def _answers(facts: BrokerFacts, kafka: KafkaSettings) -> Check:
    return Check("kafka", "ok", f"Kafka answers at {kafka.bootstrap_servers}: {counted(facts.brokers, 'broker')}")


def _link(kafka: KafkaSettings) -> Check:
    """Whether what travels to the brokers is encrypted, by what librdkafka was told."""
    client = {name: str(value).lower() for name, value in kafka.client.items()}
    protocol = client.get("security.protocol", "plaintext")
    remedy = 'under [kafka.client]: "security.protocol" = "SASL_SSL", "ssl.ca.location" = "…": docs/security.md'
    if not protocol.endswith("ssl"):
        if all(_is_loopback(server) for server in kafka.bootstrap_servers.split(",")):
            return Check("kafka_tls", "ok", "the link to Kafka is not encrypted, and doesn't leave this machine")
        what = "password and events" if protocol.startswith("sasl") else "events"
        return Check("kafka_tls", "warn", f"the link to Kafka is not encrypted: {what} travel in the clear", remedy)
    if client.get("enable.ssl.certificate.verification", "true") in _UNTRUE:
        message = "the link to Kafka is encrypted, but the broker's certificate is not verified"
        return Check("kafka_tls", "warn", message, "take enable.ssl.certificate.verification out of [kafka.client]")
    if client.get("ssl.endpoint.identification.algorithm", "https") == "none":
        message = "the link to Kafka is encrypted, but the name in the broker's certificate is not compared"
        return Check("kafka_tls", "warn", message, "take ssl.endpoint.identification.algorithm out of [kafka.client]")
    return Check("kafka_tls", "ok", f"the link to Kafka is encrypted ({protocol.upper()}), the brokers are verified")


def _is_loopback(server: str) -> bool:
    host = server.strip().rpartition("://")[2].rpartition(":")[0].strip("[]")
    return host in {"localhost", "::1"} or host.startswith("127.")


def _topic(  # noqa: PLR0911  a line of the report each
    facts: BrokerFacts, kafka: KafkaSettings, wanted: dict[str, AclOperation], use: str
) -> Check:
    topic = facts.topic
    if isinstance(topic, CdcwatchError):
        return failed("topic", topic)
    if topic is None:
        if not kafka.create_topic:
            remedy = f"{topic_command(kafka)} (or set kafka.create_topic = true)"
            return Check("topic", "fail", f"Kafka has no topic {kafka.topic}", remedy)
        if facts.may_create is False:
            return Check("topic", "fail", f"{kafka.topic} is missing, and we may not create it", topic_command(kafka))
        return Check(
            "topic", "ok", f"{kafka.topic} is missing; run makes it with {counted(kafka.partitions, 'partition')}"
        )
    if topic.leaderless:
        return Check(
            "topic",
            "fail",
            f"{topic.leaderless} of {topic.partitions} partitions of {kafka.topic} have no leader",
            "see that every broker of the topic is up",
            unreachable=True,
        )
    lacking = _lacking(topic, wanted)
    if lacking:
        return Check("topic", "fail", f"we lack {lacking} on {kafka.topic}", _grant(kafka, lacking, kafka.topic))
    return Check("topic", "ok", f"{kafka.topic} has {counted(topic.partitions, 'partition')}, and we may {use} it")


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


def _dead(facts: BrokerFacts, kafka: KafkaSettings) -> Check:  # noqa: PLR0911  a line of the report each
    name, dead, count = dead_topic(kafka), facts.dead, facts.dead_letters
    if isinstance(dead, CdcwatchError):
        return failed("dead_letters", dead)
    if dead is None:
        if facts.may_create is False:
            message = f"{name} is missing, and we may not create it"
            return Check("dead_letters", "fail", message, dead_topic_command(kafka))
        return Check("dead_letters", "ok", f"{name} is missing; run makes it")
    lacking = _lacking(dead, {"Write": AclOperation.WRITE, "Describe": AclOperation.DESCRIBE})
    if lacking:
        return Check("dead_letters", "fail", f"we lack {lacking} on {name}", _grant(kafka, lacking, name))
    if count is None:
        return Check(
            "dead_letters",
            "warn",
            f"we may not read {name}: whether it is empty shows to others",
            _grant(kafka, "Read", name),
        )
    if count:
        many = counted(count, "dead letter") if count < MOST_COUNTED else f"{count} or more dead letters"
        return Check(
            "dead_letters",
            "warn",
            f"{many} in {name}: rows that could not be understood, orders that could not be closed",
            "cdcwatch events --dead",
        )
    return Check("dead_letters", "ok", f"{name} is empty: every row was understood, no order was given up")


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
