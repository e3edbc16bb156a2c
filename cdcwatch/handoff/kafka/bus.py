"""Kafka, as everybody but the writer sees it.

What `run` does without is loaded when it is asked for: it is a tenth of a start.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcwatch.errors import CdcwatchError
from cdcwatch.handoff.kafka.client import client_configuration, connected_client
from cdcwatch.handoff.kafka.ledger import find_progress, forget_progress, progress_topic
from cdcwatch.handoff.kafka.sink import AtLeastOnceSink, ExactlyOnceSink

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdcwatch.handoff.kafka.group import GroupMember
    from cdcwatch.handoff.kafka.tail import TopicTail
    from cdcwatch.handoff.member import Holder
    from cdcwatch.handoff.progress import Progress
    from cdcwatch.handoff.record import Record
    from cdcwatch.handoff.sink import Sink
    from cdcwatch.settings import Settings
    from cdcwatch.slot.check import Check


class KafkaBus:
    """As of `Bus`."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._kafka = settings, settings.kafka

    @property
    def is_transactional(self) -> bool:
        """By `kafka.delivery`."""
        return self._kafka.delivery == "exactly_once"

    @property
    def progress_place(self) -> str:
        """The progress topic."""
        return progress_topic(self._kafka)

    def sink(self, slot: str, topics: Sequence[str]) -> Sink:
        """The producer's."""
        kind = ExactlyOnceSink if self.is_transactional else AtLeastOnceSink
        return kind(self._kafka, slot, topics)

    def progress(self) -> Progress | None:
        """From the progress topic, where there is one."""
        return find_progress(self._kafka, self._settings.slot.name)

    def forget_progress(self) -> bool:
        """A tombstone."""
        return forget_progress(self._kafka, self._settings.slot.name)

    def tail(
        self, *, dead: bool = False, is_ended: Callable[[], bool], wanted: Callable[[Record], bool] | None = None
    ) -> TopicTail:
        """Of the table's topic."""
        from cdcwatch.handoff.kafka.dead_letters import of_dead_letters  # noqa: PLC0415
        from cdcwatch.handoff.kafka.tail import TopicTail  # noqa: PLC0415

        events = self._settings.for_events()
        return TopicTail(
            of_dead_letters(events) if dead else events, is_ended=is_ended, wanted=wanted or (lambda _record: True)
        )

    def checks(self, *, hears: bool = False) -> list[Check]:
        """Broker, topics, rights; of who writes the schema registry, too."""
        from cdcwatch.handoff.kafka.preflight import broker_checks  # noqa: PLC0415
        from cdcwatch.handoff.kafka.registry_check import registry_checks  # noqa: PLC0415

        checks = broker_checks(self._settings, hears=hears)
        return checks if hears else checks + registry_checks(self._settings)

    def why_unreachable(self) -> str:
        """Asks for the topic's metadata."""
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415

        try:
            connected_client(AdminClient, client_configuration(self._kafka), self._kafka.topic)
        except CdcwatchError as error:
            return str(error)
        return ""

    def member(self, holder: Holder) -> GroupMember:
        """Of the consumer group."""
        from cdcwatch.handoff.kafka.group import GroupMember  # noqa: PLC0415

        return GroupMember(self._settings.for_events(), self._settings.slot.name, holder)
