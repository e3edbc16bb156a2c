"""The dead-letter topic, `<topic>.dead`: one record a row that could not be understood, keyed by its id."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cdcwatch.errors import CdcwatchError, PreconditionError
from cdcwatch.handoff.kafka.client import create_topic, partition_count, topic_command

if TYPE_CHECKING:
    from cdcwatch.settings import KafkaSettings

MOST_COUNTED: Final = 10_000
# A month, whatever the broker's default: somebody has to look at them. Not for ever: they hold rows.
_CONFIGURATION: Final = {"cleanup.policy": "delete", "retention.ms": str(30 * 86_400_000)}


def dead_topic(settings: KafkaSettings) -> str:
    """Its name."""
    return f"{settings.topic}.dead"


def of_dead_letters(settings: KafkaSettings) -> KafkaSettings:
    """The settings of a reader of the dead-letter topic."""
    # `run` makes it whatever create_topic says.
    return msgspec.structs.replace(settings, topic=dead_topic(settings), partitions=1, create_topic=True)


def dead_topic_command(settings: KafkaSettings) -> str:
    """What an operator types to make it."""
    configuration = " ".join(f"--config {name}={value}" for name, value in _CONFIGURATION.items())
    return f"{topic_command(of_dead_letters(settings))} {configuration}"


def require_dead_topic(client: Any, settings: KafkaSettings) -> None:
    """Makes it where it is missing, before it is needed: a row that can't be understood must not stop the stream."""
    if partition_count(client, dead_topic(settings)) is not None:
        return
    try:
        create_topic(settings, dead_topic(settings), 1, _CONFIGURATION)
    except PreconditionError as error:
        raise PreconditionError(
            f"Kafka has no topic {dead_topic(settings)!r} for rows that can't be understood, and it can't be made"
            f" ({error})",
            remedy=f"{dead_topic_command(settings)} (and grant Write and Describe on it)",
        ) from error


def count_dead_letters(settings: KafkaSettings) -> int | None:
    """How many there are, at most MOST_COUNTED; None where that can't be read."""
    from cdcwatch.handoff.kafka.tail import TopicTail  # noqa: PLC0415  `run` starts without it

    try:
        with TopicTail(of_dead_letters(settings)) as tail:
            return sum(1 for _ in islice(tail.so_far(), MOST_COUNTED))
    except CdcwatchError:
        return None
