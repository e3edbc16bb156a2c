"""What this version does, of what its configuration knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcwatch.errors import ConfigurationError
from cdcwatch.tracing.process import require_traceable

if TYPE_CHECKING:
    from cdcwatch.settings import Settings


def require_built(settings: Settings, role: str) -> None:
    """ConfigurationError for what this version's configuration knows and its code or this installation lacks."""
    unbuilt = [
        (settings.sink.kind not in {"kafka", "none"}, f'sink.kind = "{settings.sink.kind}"', 'use "kafka" or "none"'),
        (role not in {"all", "read", "close", "sweep"}, f"--role {role}", "use --role all, read, close or sweep"),
    ]
    for wanted, what, instead in unbuilt:
        if wanted:
            raise ConfigurationError(f"{what} is not in this version", remedy=instead)
    require_traceable(settings)
