"""The streams of a table, as their readers must find them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdcwatch.errors import PreconditionError
from cdcwatch.handoff.redis.keys import PARTITIONS_FIELD, dead_stream, progress_key, streams_of

if TYPE_CHECKING:
    from cdcwatch.settings import RedisSettings


def existing_streams(client: Any, settings: RedisSettings, topic: str, *, dead: bool = False) -> list[str]:
    """By partition; readers never make them. PreconditionError where one is missing, or there are not so many."""
    recorded = client.hget(progress_key(settings), PARTITIONS_FIELD)
    if recorded is not None:
        require_partitions(int(recorded), settings)
    names = [dead_stream(topic)] if dead else streams_of(topic, settings.partitions)
    for name in names:
        kind = client.type(name).decode()
        if kind == "none":
            raise PreconditionError(
                f"Redis has no stream {name!r}", remedy="start `cdcwatch run`, which makes it, or mend redis.stream"
            )
        if kind != "stream":
            raise unfit(name, kind)
    return names


def require_partitions(recorded: int, settings: RedisSettings) -> None:
    """PreconditionError where the settings have another count than the streams were made with."""
    if recorded != settings.partitions:
        raise PreconditionError(
            f"the streams in Redis have {recorded} partitions, and redis.partitions is {settings.partitions}",
            remedy=f"redis.partitions = {recorded}, or another redis.stream: orders would change their streams",
        )


def unfit(name: str, kind: str) -> PreconditionError:
    """Of a key that was deleted (`none`), or is something else."""
    if kind == "none":
        return PreconditionError(
            f"Redis has no stream {name!r} any more",
            remedy="start again: it is made anew, and told of the open orders by `cdcwatch snapshot`",
        )
    return PreconditionError(
        f"the key {name!r} in Redis is a {kind}, and no stream",
        remedy="choose another redis.stream: another program uses this name",
    )
