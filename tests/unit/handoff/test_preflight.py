from __future__ import annotations

from typing import Any

import pytest
from confluent_kafka.admin._acl import AclOperation
from msgspec.structs import replace

from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.handoff.kafka.broker import BrokerFacts, TopicFacts
from cdcwatch.handoff.kafka.preflight import judge_broker
from cdcwatch.settings import KafkaSettings, Settings
from cdcwatch.slot.check import exit_code

ALL = frozenset({AclOperation.READ, AclOperation.WRITE, AclOperation.DESCRIBE})
TOPIC = TopicFacts(6, 0, ALL, "delete")
PROGRESS = TopicFacts(1, 0, ALL, "compact")
GOOD = BrokerFacts(3, TOPIC, PROGRESS, may_create=True, transactional_id=True, dead=TOPIC)


def _judged(facts: BrokerFacts, **kafka: Any) -> dict[str, tuple[str, str]]:
    checks = judge_broker(facts, Settings(kafka=KafkaSettings(**kafka)))
    assert all(bool(check.remedy) == (check.state != "ok") for check in checks)
    return {check.name: (check.state, check.remedy) for check in checks}


def test_all_is_well() -> None:
    assert {state for state, _ in _judged(GOOD).values()} == {"ok"}
    assert "transactional" not in _judged(GOOD, delivery="at_least_once")


@pytest.mark.parametrize(
    ("facts", "name", "state", "remedy"),
    [
        (replace(GOOD, topic=None), "topic", "fail", "--create --topic orders.deadlines"),
        (replace(GOOD, topic=replace(TOPIC, leaderless=2)), "topic", "fail", "every broker"),
        (
            replace(GOOD, topic=replace(TOPIC, operations=frozenset({AclOperation.DESCRIBE}))),
            "topic",
            "fail",
            "--operation Write --topic orders.deadlines",
        ),
        (replace(GOOD, topic=replace(TOPIC, operations=None)), "topic", "ok", ""),
        (replace(GOOD, topic=PreconditionError("refused", remedy="grant")), "topic", "fail", "grant"),
        (replace(GOOD, progress=None), "progress", "ok", ""),
        (replace(GOOD, progress=None, may_create=False), "progress", "fail", "cleanup.policy=compact"),
        (replace(GOOD, progress=replace(PROGRESS, partitions=3)), "progress", "fail", "--delete"),
        (replace(GOOD, progress=replace(PROGRESS, cleanup_policy="delete")), "progress", "fail", "--add-config"),
        (
            replace(GOOD, progress=replace(PROGRESS, operations=frozenset({AclOperation.WRITE}))),
            "progress",
            "fail",
            "--operation Read --operation Describe",
        ),
        (replace(GOOD, dead=None), "dead_letters", "ok", ""),
        (
            replace(GOOD, dead=None, may_create=False),
            "dead_letters",
            "fail",
            "--topic orders.deadlines.dead --partitions 1",
        ),
        (replace(GOOD, dead=replace(TOPIC, operations=frozenset())), "dead_letters", "fail", "--operation Write"),
        (replace(GOOD, dead=PreconditionError("refused", remedy="grant")), "dead_letters", "fail", "grant"),
        (replace(GOOD, dead_letters=1), "dead_letters", "warn", "cdcwatch events --dead"),
        (replace(GOOD, dead_letters=None), "dead_letters", "warn", "--operation Read"),
        (replace(GOOD, transactional_id=False), "transactional", "warn", "--transactional-id"),
        (replace(GOOD, transactional_id=None), "transactional", "warn", "--transactional-id"),
    ],
)
def test_what_is_amiss_is_told_with_its_remedy(facts: BrokerFacts, name: str, state: str, remedy: str) -> None:
    found = _judged(facts)[name]
    assert (found[0], remedy in found[1]) == (state, True), found


def test_a_missing_topic_that_run_makes_is_well() -> None:
    assert _judged(replace(GOOD, topic=None), create_topic=True)["topic"][0] == "ok"
    assert _judged(replace(GOOD, topic=None, may_create=False), create_topic=True)["topic"][0] == "fail"


def test_exit_codes_are_by_class() -> None:
    well = judge_broker(GOOD, Settings())
    away = judge_broker(replace(GOOD, topic=UnavailableError("away", remedy="wait")), Settings())
    refused = judge_broker(replace(GOOD, topic=PreconditionError("no", remedy="grant")), Settings())
    assert [exit_code(checks) for checks in (well, away, refused, [*away, *refused])] == [0, 3, 1, 1]
