"""What every Kafka client is configured with."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from cdcwatch.errors import UnavailableError
from cdcwatch.handoff.kafka.client import client_configuration, explain_kafka
from cdcwatch.settings import KafkaSettings


def test_a_silent_broker_is_given_up_as_soon_as_a_silent_database() -> None:
    assert client_configuration(KafkaSettings())["socket.timeout.ms"] == 15_000


def test_what_the_operator_says_wins() -> None:
    settings = KafkaSettings(client={"socket.timeout.ms": "40000"})
    assert client_configuration(settings)["socket.timeout.ms"] == "40000"


@pytest.mark.parametrize(
    "code", [KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND, 56, KafkaError._MSG_TIMED_OUT]
)
def test_j13_what_the_brokers_get_over_is_waited_out(code: int) -> None:
    """56: KAFKA_STORAGE_ERROR, a full disk."""
    error = explain_kafka(KafkaError(code))
    assert isinstance(error, UnavailableError)
    assert error.remedy
