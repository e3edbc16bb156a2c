"""What this machine lacks for a local service."""

from __future__ import annotations

from cdcwatch.errors import PreconditionError


class LocalServiceError(PreconditionError):
    """A local service can't be found, started or stopped; `remedy` says what to install or where to look."""
