"""Which offsets are to be committed: up to where each partition is settled, once each."""

from __future__ import annotations

from typing import TYPE_CHECKING

from confluent_kafka import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable

    from confluent_kafka import KafkaError

    from cdcwatch.consume.lane import Lane


class Offsets:
    """For the thread that polls."""

    def __init__(self) -> None:
        self._sent: dict[tuple[str, int], int] = {}

    def new(self, lanes: Iterable[Lane]) -> list[TopicPartition]:
        """Those that were not sent yet; they count as sent from now on."""
        places = []
        for lane in lanes:
            place, position = (lane.topic, lane.partition), lane.position
            if position is not None and self._sent.get(place) != position:
                self._sent[place] = position
                places.append(TopicPartition(*place, position))
        return places

    def on_commit(self, error: KafkaError | None, places: list[TopicPartition]) -> None:
        """The broker's answer: what it refused is sent again."""
        if error is not None or any(place.error for place in places):
            self._sent.clear()

    def forget(self, places: Iterable[tuple[str, int]]) -> None:
        """These partitions are not ours any more."""
        for place in places:
            self._sent.pop(place, None)
