"""A record as subscribers read it, whichever sink holds it."""

from __future__ import annotations

from msgspec import Struct

from cdcwatch.deadline.event import NO_ORDER


class Record(Struct, frozen=True):
    """A committed record of the topic."""

    partition: int
    offset: int
    timestamp_ms: int
    value: bytes
    key: bytes | None = None
    """None: about the whole table."""

    @property
    def is_about_all(self) -> bool:
        """A TRUNCATE or a gap: about no single order."""
        return self.key is None or self.key.startswith(NO_ORDER)
