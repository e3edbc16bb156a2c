"""What the schema registry must have, judged: it answers, and has our schema or would take it."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from cdcwatch.errors import CdcwatchError
from cdcwatch.slot.check import Check, failed

if TYPE_CHECKING:
    from cdcwatch.handoff.kafka.registry import Registry
    from cdcwatch.settings import Settings


def registry_checks(settings: Settings) -> list[Check]:
    """A line for each table's topic, and one for a link that shows a password; none with `format = "json"`.

    Registers nothing. ConfigurationError without the extra `avro`.
    """
    if settings.kafka.format == "json":
        return []
    from cdcwatch.handoff.kafka.registry import Registry  # noqa: PLC0415  an extra

    registry = Registry(settings.kafka.registry)
    checks = [_of_topic(registry, one.for_events().topic, settings) for one in settings.each()]
    return [*checks, *_link(settings)]


def _of_topic(registry: Registry, topic: str, settings: Settings) -> Check:
    try:
        number = registry.known(topic)
        if number is not None:
            return Check("registry", "ok", f"{registry.subject(topic)} has this version's schema, number {number}")
        if not settings.kafka.registry.register:
            raise registry.not_there(topic)
        if not registry.fits(topic):
            raise registry.conflict(topic)
    except CdcwatchError as error:
        return failed("registry", error)
    return Check("registry", "ok", f"{registry.subject(topic)} lacks this version's schema; run registers it")


def _link(settings: Settings) -> list[Check]:
    """Where a password would travel in the clear."""
    registry = settings.kafka.registry
    has_password = "basic.auth.user.info" in registry.client or "@" in registry.url
    for url in registry.url.split(","):
        parts = urlsplit(url.strip())
        is_near = parts.hostname in {"localhost", "::1"} or (parts.hostname or "").startswith("127.")
        if has_password and parts.scheme == "http" and not is_near:
            message = "the link to the schema registry is not encrypted: the password travels in the clear"
            return [Check("registry_tls", "warn", message, "write kafka.registry.url as https://…")]
    return []
