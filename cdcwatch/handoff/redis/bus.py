"""Redis, as everybody but the writer sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcwatch.errors import CdcwatchError
from cdcwatch.handoff.redis.client import connected
from cdcwatch.handoff.redis.group import StreamMember
from cdcwatch.handoff.redis.keys import progress_key
from cdcwatch.handoff.redis.ledger import find_progress, forget_progress
from cdcwatch.handoff.redis.preflight import redis_checks
from cdcwatch.handoff.redis.sink import RedisSink
from cdcwatch.handoff.redis.tail import StreamTail

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdcwatch.handoff.member import Holder
    from cdcwatch.handoff.progress import Progress
    from cdcwatch.handoff.record import Record
    from cdcwatch.handoff.sink import Sink
    from cdcwatch.settings import Settings
    from cdcwatch.slot.check import Check

_ASK_S = 5.0


class RedisBus:
    """As of `Bus`."""

    is_transactional = True

    def __init__(self, settings: Settings) -> None:
        self._settings, self._redis = settings, settings.redis

    @property
    def progress_place(self) -> str:
        """The progress hash."""
        return progress_key(self._redis)

    def sink(self, slot: str, topics: Sequence[str]) -> Sink:
        """The streams' writer."""
        return RedisSink(self._redis, slot, topics)

    def progress(self) -> Progress | None:
        """From the progress hash."""
        return find_progress(self._redis, self._settings.slot.name)

    def forget_progress(self) -> bool:
        """Deletes the field, and fences who writes."""
        return forget_progress(self._redis, self._settings.slot.name)

    def tail(
        self, *, dead: bool = False, is_ended: Callable[[], bool], wanted: Callable[[Record], bool] | None = None
    ) -> StreamTail:
        """Of the table's streams."""
        return StreamTail(self._redis, self._settings.topic, dead=dead, is_ended=is_ended, wanted=wanted)

    def checks(self, *, hears: bool = False) -> list[Check]:
        """Server, persistence, streams, rights."""
        return redis_checks(self._settings, hears=hears)

    def why_unreachable(self) -> str:
        """Connects."""
        try:
            connected(self._redis, answer_s=_ASK_S).close()
        except CdcwatchError as error:
            return str(error)
        return ""

    def member(self, holder: Holder) -> StreamMember:
        """Of the consumer group."""
        return StreamMember(self._redis, self._settings.topic, self._settings.slot.name, holder)
