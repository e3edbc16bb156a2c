"""Which settings go together. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from cdcwatch.errors import ConfigurationError
from cdcwatch.settings import PATTERNS_IN_WORDS, TOPIC_NAME, alternatives
from cdcwatch.zone import Zone

if TYPE_CHECKING:
    from cdcwatch.settings import Settings


def require_coherent(settings: Settings) -> None:
    """ConfigurationError for what no single key can tell."""
    for one in settings.each():
        _check_table(one)
    _check_topic_names(settings)
    _check_topics(settings)
    _check_registry(settings)


def _check_table(settings: Settings) -> None:
    table, close = settings.table, settings.close
    if table.time_zone:
        _require_zone(table.time_zone)
    if table.status and not table.open:
        raise ConfigurationError("table.open is empty", remedy="name the statuses in which the deadline is live")
    if table.status and close.action == "update" and close.status in table.open:
        raise ConfigurationError(
            f"close.status {close.status!r} is also in table.open: a closed order would stay open",
            remedy="choose another close.status, or take it out of table.open",
        )
    if close.action == "claim":
        _check_claim(settings)
    if close.action == "delete" and close.set:
        raise ConfigurationError(
            'close.action = "delete" leaves no row that close.set could write to',
            remedy="take close.set out; what else is to happen in the same transaction goes into close.also",
        )
    deadlines = alternatives(table.deadline)
    if not table.status and close.action == "update" and not set(deadlines) & set(close.set):
        raise ConfigurationError(
            "without table.status a closed order would stay open",
            remedy=f'[close] set = {{ {deadlines[0]} = "NULL" }} lets a close clear the deadline; or action = "delete"',
        )
    taken = {*alternatives(table.status), *alternatives(table.version)} & set(close.set)
    if taken:
        raise ConfigurationError(
            f"close.set names {', '.join(sorted(taken))}, which the close writes itself",
            remedy="take it out of close.set; the status comes from close.status, the version is counted up",
        )


def _check_claim(settings: Settings) -> None:
    """Of `close.action = "claim"`. The address is not shown: it may hold a password."""
    table, close, claim = settings.table, settings.close, settings.close.claim
    if not re.match(r"https?://[^/\s]", claim.url):
        raise ConfigurationError(
            "close.claim.url is no http:// or https:// address",
            remedy='[close.claim] url = "https://shop.example/close"',
        )
    if not table.status:
        raise ConfigurationError(
            'close.action = "claim" needs table.status: a claimed order has a status of its own',
            remedy='name the status column, or use close.action = "update"',
        )
    statuses = [*table.open, close.status, claim.processing, claim.failed]
    twice = sorted({status for status in statuses if statuses.count(status) > 1})
    if twice:
        raise ConfigurationError(
            f"table.open, close.status, close.claim.processing and failed share {', '.join(twice)}",
            remedy="give each a status of its own",
        )
    if claim.stuck_after_s < 2 * claim.timeout_s:
        raise ConfigurationError(
            "close.claim.stuck_after_s is less than twice timeout_s: claims would be taken from whoever still calls",
            remedy=f"stuck_after_s = {2 * claim.timeout_s:g} or more",
        )


def _check_registry(settings: Settings) -> None:
    """The address is not shown: it may hold a password."""
    url = settings.kafka.registry.url
    if url and not all(re.match(r"https?://[^/\s]", one.strip()) for one in url.split(",")):
        raise ConfigurationError(
            "kafka.registry.url is no http:// or https:// address",
            remedy='[kafka.registry] url = "https://registry.example"',
        )
    if settings.kafka.format == "avro" and not url:
        raise ConfigurationError(
            'kafka.format = "avro" needs a schema registry', remedy='[kafka.registry] url = "https://registry.example"'
        )


def _check_topic_names(settings: Settings) -> None:
    """A stream's name may have what a Kafka topic's may not."""
    for entry in settings.tables if settings.sink.kind == "kafka" else ():
        if entry.topic is not None and not re.fullmatch(TOPIC_NAME, entry.topic):
            raise ConfigurationError(
                f"table.topic {entry.topic!r} is no name of a Kafka topic", remedy=PATTERNS_IN_WORDS[TOPIC_NAME]
            )


def _check_topics(settings: Settings) -> None:
    """Of several tables: each has its own, and none is named as what belongs to another."""
    if len(settings.tables) <= 1:
        return
    for place, entry in enumerate(settings.tables):
        if entry.topic is None:
            raise ConfigurationError(
                f"table[{place}].topic is missing: each of several tables has a topic of its own",
                remedy=f'name it under the [[table]] of {entry.name}: topic = "…"',
            )
    in_redis = settings.sink.kind == "redis"
    first = settings.redis.stream if in_redis else settings.kafka.topic
    ours = [f"{first}.progress", *([f"{first}.owner"] if in_redis else [])]
    for entry in settings.tables:
        ours += [f"{entry.topic}", f"{entry.topic}.dead"]
        if in_redis and settings.redis.partitions > 1:
            ours += [f"{entry.topic}.{number}" for number in range(settings.redis.partitions)]
    twice = sorted({name for name in ours if ours.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"two of [[table]] would write to the topic {', '.join(twice)}", remedy="give each a topic of its own"
        )
    names = [entry.name for entry in settings.tables]
    if again := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"[[table]] has {', '.join(again)} more than once",
            remedy="leave one of them: a table has one topic and rule",
        )


def _require_zone(name: str) -> None:
    try:
        Zone(name)
    except ValueError:
        raise ConfigurationError(
            f"table.time_zone {name!r} is no time zone that this machine knows",
            remedy="write it as in Europe/Amsterdam; where the machine has no zone data: pip install tzdata",
        ) from None
