"""What the Redis server is set to, and whether an event that it has acknowledged is one that it keeps. Judging is pure.

https://redis.io/docs/latest/operate/oss_and_stack/management/persistence/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.handoff.redis.client import RedisError, talking

if TYPE_CHECKING:
    from cdcwatch.settings import RedisSettings

OLDEST: Final = (7, 0)
"""Streams tell how many entries were ever added from then on."""
_WAITAOF_SINCE: Final = (7, 2)
_ASKED: Final = ("appendonly", "appendfsync", "no-appendfsync-on-rewrite", "maxmemory-policy")


class ServerFacts(Struct, frozen=True):
    """As INFO and CONFIG GET tell."""

    version: tuple[int, ...]
    has_aof: bool
    fsync: str | None
    """`appendfsync`; None where we may not ask, as with many managed servers."""
    fsync_pauses: bool | None
    """`no-appendfsync-on-rewrite`: while the file is rewritten nothing is flushed. None: may not ask."""
    eviction: str
    """`maxmemory-policy`."""
    is_replica: bool = False
    is_cluster: bool = False
    used_bytes: int = 0
    limit_bytes: int = 0
    """0: none."""

    @property
    def flushes_always(self) -> bool | None:
        """Whether every write is on the disk before it is acknowledged; None where nobody tells."""
        if not self.has_aof:
            return False
        if self.fsync is None:
            return None
        return self.fsync == "always" and not self.fsync_pauses

    @property
    def can_wait(self) -> bool:
        """Whether there is WAITAOF, and something that it could wait for: with `appendfsync no` nobody flushes."""
        return self.has_aof and self.fsync != "no" and self.version >= _WAITAOF_SINCE

    @property
    def version_text(self) -> str:
        """With dots."""
        return ".".join(map(str, self.version))


def read_server(client: Any) -> ServerFacts:
    """Asks. CdcwatchError as of `talking`; what CONFIG refuses is None."""
    with talking():
        told: dict[str, Any] = client.info()
    if told.get("loading") == 1:  # it answers INFO, and says of itself that it has no append-only file
        raise UnavailableError("Redis is loading its data", remedy="wait: it answers once that is done")
    config: dict[str, str] = {}
    try:
        for name in _ASKED:
            config |= client.config_get(name)
    except RedisError:
        config = {}  # a right that is missing, or no such command: the connection shows with the next question
    pauses = config.get("no-appendfsync-on-rewrite")
    return ServerFacts(
        tuple(int(part) for part in str(told["redis_version"]).split(".") if part.isdigit()),
        told.get("aof_enabled") == 1,
        config.get("appendfsync"),
        None if pauses is None else pauses == "yes",
        config.get("maxmemory-policy") or str(told.get("maxmemory_policy", "")),
        told.get("role") not in {"master", None},
        told.get("cluster_enabled") == 1,
        int(told.get("used_memory", 0)),
        int(told.get("maxmemory", 0)),
    )


def require_fit(facts: ServerFacts, settings: RedisSettings) -> bool:
    """PreconditionError where events could vanish. Whether WAITAOF has to say when they are on the disk."""
    if facts.version < OLDEST:
        raise PreconditionError(f"Redis is of version {facts.version_text}", remedy="use Redis 7.0 or later")
    if facts.eviction not in {"noeviction", ""}:
        raise PreconditionError(
            f"Redis may evict events: maxmemory-policy is {facts.eviction}",
            remedy="set maxmemory-policy noeviction, or use a Redis of its own",
        )
    if facts.flushes_always or not settings.require_fsync:
        return False
    if facts.can_wait:
        return True
    if facts.flushes_always is None:
        raise PreconditionError(
            "Redis does not tell whether it flushes to its disk before it acknowledges (CONFIG is refused), and has no"
            " WAITAOF",
            remedy="use Redis 7.2 or later, or redis.require_fsync = false: a crash of Redis may then lose a second",
        )
    raise PreconditionError(
        f"Redis acknowledges before events are on its disk ({how_it_flushes(facts)}), and WAITAOF can't say when they"
        " are",
        remedy="redis.conf: appendonly yes, appendfsync always, no-appendfsync-on-rewrite no; or use Redis 7.2 or later"
        " with appendonly yes; or redis.require_fsync = false: a crash of Redis may then lose a second",
    )


def how_it_flushes(facts: ServerFacts) -> str:
    """In the words of redis.conf."""
    if not facts.has_aof:
        return "appendonly no"
    if facts.fsync is None:
        return "appendonly yes"
    return f"appendfsync {facts.fsync}" + (", no-appendfsync-on-rewrite yes" if facts.fsync_pauses else "")
