"""What every Kafka client is configured with."""

from __future__ import annotations

from cdcwatch.handoff.client import client_configuration
from cdcwatch.settings import KafkaSettings


def test_a_silent_broker_is_given_up_as_soon_as_a_silent_database() -> None:
    assert client_configuration(KafkaSettings())["socket.timeout.ms"] == 15_000


def test_what_the_operator_says_wins() -> None:
    settings = KafkaSettings(client={"socket.timeout.ms": "40000"})
    assert client_configuration(settings)["socket.timeout.ms"] == "40000"
