"""What Redis must have, judged: that it answers and keeps events, our streams, and our rights on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from cdcwatch.errors import CdcwatchError, ConfigurationError, PreconditionError
from cdcwatch.handoff.redis.client import place
from cdcwatch.handoff.redis.facts import TableFacts, read_table
from cdcwatch.handoff.redis.keys import dead_stream, owner_key, progress_key, share_a_hash_slot, staged_key, streams_of
from cdcwatch.handoff.redis.server import OLDEST, how_it_flushes, require_fit
from cdcwatch.handoff.redis.streams import require_partitions, unfit
from cdcwatch.slot.check import Check, failed
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from cdcwatch.settings import RedisSettings, Settings

_TABLES_OWN: Final = frozenset({"stream", "dead_letters", "group", "rights"})
"""What is told of every table; the rest is the slot's."""
_NEARLY_FULL: Final = 0.8


def redis_checks(settings: Settings, *, hears: bool = False) -> list[Check]:
    """Asks Redis and judges. At most a few seconds, also when nobody answers.

    `hears`: what `--role close` needs, which writes no events, and not what the reader does.
    """
    try:
        first, *others = settings.each()
        checks = _of_table(first, hears=hears)
        for one in others:
            checks += [check for check in _of_table(one, hears=hears) if check.name in _TABLES_OWN]
        if not hears:
            checks += _cluster(settings)
    except ConfigurationError as error:
        return [failed("redis", error)]
    except CdcwatchError as error:
        answered = failed("redis", error)
        return [replace(answered, message=f"{answered.message} (redis.url: {place(settings.redis)})")]
    return checks


def _of_table(settings: Settings, *, hears: bool) -> list[Check]:
    redis, topic, slot = settings.redis, settings.topic, settings.slot.name
    return judge_table(read_table(redis, topic, slot, hears=hears), redis, topic, slot, hears=hears)


def judge_table(facts: TableFacts, redis: RedisSettings, topic: str, slot: str, *, hears: bool) -> list[Check]:
    """Pure."""
    checks = [_answers(facts, redis), _link(redis), _stream(facts, redis, topic, hears=hears)]
    if hears:
        checks.append(_group(facts))
    else:
        checks += [_persistence(facts, redis), _memory(facts), _progress(facts, redis, slot), _dead(facts, topic)]
    return [*checks, _rights(facts, topic)]


def _answers(facts: TableFacts, redis: RedisSettings) -> Check:
    server = facts.server
    if server.version < OLDEST:
        message = f"Redis at {place(redis)} is of version {server.version_text}"
        return Check("redis", "fail", message, "use Redis 7.0 or later")
    if server.is_replica:
        message = f"the Redis at {place(redis)} is a replica: it takes no events"
        return Check("redis", "fail", message, "mend redis.url, or wait for the failover to end", unreachable=True)
    return Check("redis", "ok", f"Redis {server.version_text} answers at {place(redis)}")


def _link(redis: RedisSettings) -> Check:
    if redis.url.startswith("rediss:"):
        if "ssl_cert_reqs=none" in redis.url.lower():
            message = "the link to Redis is encrypted, but the server's certificate is not verified"
            return Check("redis_tls", "warn", message, "take ssl_cert_reqs out of redis.url")
        return Check("redis_tls", "ok", "the link to Redis is encrypted, the server is verified")
    host = place(redis).rpartition(":")[0].strip("[]")
    if host in {"", "localhost", "::1"} or host.startswith("127.") or redis.url.startswith("unix:"):
        return Check("redis_tls", "ok", "the link to Redis is not encrypted, and doesn't leave this machine")
    return Check(
        "redis_tls",
        "warn",
        "the link to Redis is not encrypted: password and events travel in the clear",
        "redis.url = rediss://…?ssl_ca_certs=/path/of/the/authority",
    )


def _stream(facts: TableFacts, redis: RedisSettings, topic: str, *, hears: bool) -> Check:
    streams = facts.streams
    if facts.partitions is not None:
        try:
            require_partitions(facts.partitions, redis)
        except PreconditionError as error:
            return failed("stream", error)
    if streams.unfit:
        return failed("stream", unfit(streams.unfit[0], "key of another type"))
    many = counted(redis.partitions, "stream")
    if streams.missing:
        if hears:
            return Check("stream", "fail", f"Redis has no stream {streams.missing[0]}", "start `cdcwatch run`")
        if facts.has_progress:
            message = f"Redis has no stream {streams.missing[0]} any more, though there is progress of this slot"
            remedy = "stop cdcwatch, `cdcwatch snapshot` makes it anew with the open orders, start it again"
            return Check("stream", "warn", message, remedy)
        return Check("stream", "ok", f"{', '.join(streams.missing[:3])}: missing; run makes {many}")
    age = "" if streams.oldest_ms is None else f", the oldest of {_age(facts.now_ms - streams.oldest_ms)} ago"
    return Check("stream", "ok", f"{topic}: {many}, {counted(streams.length, 'event')}{age}")


def _persistence(facts: TableFacts, redis: RedisSettings) -> Check:
    server = facts.server
    try:
        waits = require_fit(server, redis)
    except PreconditionError as error:
        return failed("persistence", error)
    if waits:
        message = f"{how_it_flushes(server)}: events are acknowledged when WAITAOF says that they are on the disk"
        return Check("persistence", "ok", message)
    if server.flushes_always:
        return Check("persistence", "ok", "appendfsync always: an event is on Redis' disk before it is acknowledged")
    known = server.flushes_always is not None
    message = (
        f"{how_it_flushes(server)}: a crash of Redis may lose the last second of events, or more"
        if known
        else "whether Redis flushes to its disk before it acknowledges can't be asked (CONFIG is refused)"
    )
    remedy = "appendonly yes and appendfsync always, then take redis.require_fsync = false out"
    return Check("persistence", "warn", f"{message}; cdcwatch then tells of a gap", remedy)


def _memory(facts: TableFacts) -> Check:
    server = facts.server
    if not server.limit_bytes:
        message = f"maxmemory is not set: {server.used_bytes >> 20} MiB are used, and events go on adding to that"
        return Check("memory", "ok", message)
    share = server.used_bytes / server.limit_bytes
    message = f"{server.used_bytes >> 20} of {server.limit_bytes >> 20} MiB of maxmemory are used"
    if share > _NEARLY_FULL:
        return Check(
            "memory",
            "warn",
            f"{message}: when it is full nothing is published",
            "raise maxmemory, or set redis.max_age_s so that old events are trimmed",
        )
    return Check("memory", "ok", message)


def _progress(facts: TableFacts, redis: RedisSettings, slot: str) -> Check:
    name = progress_key(redis)
    if facts.has_progress:
        return Check("progress", "ok", f"{name} has the progress of {slot}")
    return Check("progress", "ok", f"{name} has no progress of {slot}: the first start reads the table")


def _dead(facts: TableFacts, topic: str) -> Check:
    name = dead_stream(topic)
    if facts.dead:
        return Check(
            "dead_letters",
            "warn",
            f"{counted(facts.dead, 'dead letter')} in {name}: rows that could not be understood, orders that could not"
            " be closed",
            "cdcwatch events --dead",
        )
    return Check("dead_letters", "ok", f"{name} is empty: every row was understood, no order was given up")


def _group(facts: TableFacts) -> Check:
    return Check(
        "group", "ok", f"the consumer group is {facts.group}: {counted(facts.members, 'worker')} in it now or lately"
    )


def _rights(facts: TableFacts, topic: str) -> Check:
    if facts.lacking is None:
        message = "whether our commands are permitted shows at run: we may not ask (ACL DRYRUN)"
        return Check(
            "rights", "warn", message, "grant +acl|whoami and +acl|dryrun, or see docs/sinks.md for the rights"
        )
    if facts.lacking:
        some = ", ".join(facts.lacking[:3]) + (" …" if len(facts.lacking) > 3 else "")  # noqa: PLR2004
        return Check("rights", "fail", f"we lack {some}", f"ACL SETUSER … ~{topic}* and the commands of docs/sinks.md")
    return Check("rights", "ok", "we may do what is needed")


def _cluster(settings: Settings) -> list[Check]:
    """Of a cluster: all keys must lie in one hash slot. Told only where they don't."""
    redis = settings.redis
    keys = [owner_key(redis), progress_key(redis), staged_key(redis, settings.slot.name)]
    for one in settings.each():
        keys += [*streams_of(one.topic, redis.partitions), dead_stream(one.topic)]
    if share_a_hash_slot(keys):
        return []
    facts = read_table(redis, settings.each()[0].topic, settings.slot.name, hears=False)
    if not facts.server.is_cluster:
        return []
    return [
        Check(
            "hash_slot",
            "fail",
            "in a Redis cluster all our keys must lie in one hash slot",
            'name the streams with one hash tag: redis.stream = "{orders}.deadlines"',
        )
    ]


def _age(milliseconds: int) -> str:
    seconds = max(0, milliseconds) // 1000
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
