"""A record's value as JSON, whichever format it was written in: a topic may hold both.

JSON begins with a brace, what a schema registry knows with a zero byte.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.settings import KafkaSettings

_MAGIC: Final = b"\0"


class Values:
    """For the reader of a topic. Asks the registry only for schemas that this version doesn't have itself."""

    def __init__(self, settings: KafkaSettings) -> None:
        """Nothing is asked, and nothing of Avro imported, before the first record that is in it."""
        self._registry = settings.registry
        self._schemas: dict[int, Any] = {}

    def as_json(self, value: bytes | None, headers: Callable[[], object]) -> bytes | None:
        """Any other value as it is: whoever reads finds out that it is no event.

        ConfigurationError without the extra `avro`; UnavailableError and PreconditionError of the registry.
        """
        if value is None or value[:1] != _MAGIC:
            return value
        return self._decoded(value, headers())

    def _decoded(self, value: bytes, headers: object) -> bytes:
        from cdcwatch.handoff.kafka import avro  # noqa: PLC0415  an extra

        version = avro.version_of(headers)
        number = int.from_bytes(value[1 : avro.PREFIX_LENGTH])
        written_with = avro.schema(version) if version is not None else self._of_the_registry(number)
        found = None if written_with is None else avro.decode(value[avro.PREFIX_LENGTH :], written_with)
        return value if found is None else found

    def _of_the_registry(self, number: int) -> Any:
        """The schema of that number, where it is one of our event."""
        if not self._registry.url:
            return None
        if number not in self._schemas:
            from cdcwatch.handoff.kafka import avro  # noqa: PLC0415  an extra
            from cdcwatch.handoff.kafka.registry import Registry  # noqa: PLC0415  the same

            text = Registry(self._registry).schema(number)
            self._schemas[number] = None if text is None else avro.plain_schema(text)
        return self._schemas[number]
