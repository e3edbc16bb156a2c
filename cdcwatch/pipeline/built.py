"""What this version does, of what its configuration knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcwatch.errors import ConfigurationError
from cdcwatch.tracing.process import require_traceable

if TYPE_CHECKING:
    from cdcwatch.settings import Settings


def require_built(settings: Settings, role: str) -> None:
    """ConfigurationError for what this version's configuration knows and its code or this installation lacks."""
    if role not in {"all", "read", "close", "sweep"}:
        raise ConfigurationError(f"--role {role} is not in this version", remedy="use --role all, read, close or sweep")
    require_traceable(settings)
    if settings.sink.kind == "redis":
        import cdcwatch.handoff.redis.client  # noqa: F401, PLC0415  says what to install
    if settings.sink.kind == "kafka" and settings.kafka.format == "avro":
        from cdcwatch.handoff.kafka import avro, registry  # noqa: F401, PLC0415  the same
