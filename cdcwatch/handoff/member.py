"""What `--role close` hears the topic by, whichever sink holds it: one of several members, each with its partitions."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class Heard(NamedTuple):
    """A record as it came."""

    partition: int
    key: bytes | None
    value: bytes | None


class Holder(Protocol):
    """Who is told what the member has. Called inside of `poll`, by its thread."""

    def gained(self, partitions: list[int], count: int) -> None:
        """These are ours, from a little before their ends of just now on; the topic has `count`.

        An empty list too: it has joined.
        """

    def lost(self, partitions: list[int], *, is_gone: bool) -> None:
        """These are not ours any more. `is_gone`: not asked for in peace, the group went on without us."""


class Member(Protocol):
    """For one thread. UnavailableError, PreconditionError from any method: leave, and join again."""

    def poll(self) -> tuple[list[Heard], bool]:
        """What has come, and whether that was all."""
        ...

    def partitions(self) -> int:
        """Of the topic now."""
        ...

    def close(self) -> None:
        """Leaves the group."""
        ...
