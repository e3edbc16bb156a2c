"""What makes a sink's producer: librdkafka's own for JSON, one that turns events into Avro for Avro."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from confluent_kafka import Producer

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cdcwatch.settings import KafkaSettings


def maker_of_producers(settings: KafkaSettings, topics: Collection[str]) -> Callable[[dict[str, Any]], Producer]:
    """Of the format that the settings name. ConfigurationError without the packages that it takes.

    What it makes raises as `cdcwatch.handoff.kafka.registry` while no registry has said the schema's numbers.
    """
    if settings.format == "json":
        return Producer
    return _AvroProducers(settings, topics)


class _AvroProducers:
    """Asks the registry once: a producer that is opened again has the numbers."""

    def __init__(self, settings: KafkaSettings, topics: Collection[str]) -> None:
        from cdcwatch.handoff.kafka import registry  # noqa: PLC0415  an extra

        self._registry, self._topics = registry.Registry(settings.registry), topics
        self._ids: dict[str, int] = {}

    def __call__(self, configuration: dict[str, Any]) -> Producer:
        self._ids = self._ids or self._registry.ids(self._topics)
        return _AvroProducer(configuration, self._ids)


class _AvroProducer(Producer):
    """Events, which have headers, go out in Avro; progress and dead letters, which have none, as they are."""

    def __init__(self, configuration: dict[str, Any], ids: dict[str, int]) -> None:
        from cdcwatch.handoff.kafka.avro import MAGIC, Encoder  # noqa: PLC0415  an extra

        super().__init__(configuration)
        self._encode = Encoder().encode
        self._prefixes = {topic: MAGIC + number.to_bytes(4) for topic, number in ids.items()}

    def produce(  # type: ignore[override]  # librdkafka's
        self,
        topic: str,
        value: bytes,
        key: bytes | None = None,
        partition: int = -1,
        callback: Any = None,
        on_delivery: Any = None,
        timestamp: int = 0,
        headers: Any = None,
    ) -> None:
        """As librdkafka's, by name and by position; `on_delivery` counts where `callback` is None."""
        if headers is not None:
            body, headers = self._encode(value)
            value = self._prefixes[topic] + body
        super().produce(topic, value, key, partition, callback or on_delivery, None, timestamp, headers)
