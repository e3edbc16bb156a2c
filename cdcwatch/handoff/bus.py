"""The configured sink as everybody but its writer sees it: progress, readers, checks, membership. One for each kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cdcwatch.handoff.member import Holder, Member
    from cdcwatch.handoff.progress import Progress
    from cdcwatch.handoff.record import Record
    from cdcwatch.handoff.sink import Sink
    from cdcwatch.settings import Settings
    from cdcwatch.slot.check import Check


class Tail(Protocol):
    """Reads one table's committed records as any subscriber would. Not for several threads."""

    @property
    def topic(self) -> str:
        """Which one."""
        ...

    @property
    def read_count(self) -> int:
        """Committed records of the last reading, wanted or not."""
        ...

    def so_far(self) -> Iterator[Record]:
        """Every record up to what there was when this reader connected; in order within a partition."""
        ...

    def last(self, count: int) -> list[Record]:
        """The last `count` records by their timestamps, in that order."""
        ...

    def about(self, key: bytes, count: int, scan_records: int) -> list[Record]:
        """The last `count` records of a key, and those about the whole table, among about the last `scan_records`."""
        ...

    def follow(self) -> None:
        """From now on `came` has what comes after what was read."""

    def came(self, wait_s: float) -> Record | None:
        """The next record; None where none comes in that time."""
        ...

    def close(self) -> None:
        """Lets go."""


class Bus(Protocol):
    """Of one configuration; `tail` and `member` of one table's (`Settings.each`).

    UnavailableError where it doesn't answer, PreconditionError where it lacks something.
    """

    @property
    def is_transactional(self) -> bool:
        """As of `Sink`."""
        ...

    @property
    def progress_place(self) -> str:
        """Where the progress records are, in words."""
        ...

    def sink(self, slot: str, topics: Sequence[str]) -> Sink:
        """The writer. `topics`: of the tables."""
        ...

    def progress(self) -> Progress | None:
        """The slot's newest record; None where there is none."""
        ...

    def forget_progress(self) -> bool:
        """Takes it away; False where there is none."""
        ...

    def tail(
        self, *, dead: bool = False, is_ended: Callable[[], bool], wanted: Callable[[Record], bool] | None = None
    ) -> Tail:
        """A reader. `dead`: of the dead letters. `is_ended` ends iterations; what is not `wanted` is passed over."""
        ...

    def checks(self, *, hears: bool = False) -> list[Check]:
        """Of every table, judged; an answer within seconds. `hears`: what `--role close` needs."""
        ...

    def why_unreachable(self) -> str:
        """Asks whether it is there; empty: it is."""
        ...

    def member(self, holder: Holder) -> Member:
        """Joins those who share the hearing. ConfigurationError where this kind has no such thing."""
        ...


def bus_of(settings: Settings) -> Bus | None:
    """None: `sink.kind = "none"`. Libraries are loaded where they are used only."""
    kind = settings.sink.kind
    if kind == "kafka":
        from cdcwatch.handoff.kafka.bus import KafkaBus  # noqa: PLC0415

        return KafkaBus(settings)
    if kind == "file":
        from cdcwatch.handoff.file.bus import FileBus  # noqa: PLC0415

        return FileBus(settings)
    if kind == "redis":
        from cdcwatch.handoff.redis.bus import RedisBus  # noqa: PLC0415

        return RedisBus(settings)
    return None
