"""This process's traces, where the configuration wants any."""

from __future__ import annotations

import logging
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cdcwatch.errors import ConfigurationError

if TYPE_CHECKING:
    from cdcwatch.settings import Settings
    from cdcwatch.tracing.spans import Traces

_log = logging.getLogger(__name__)


def require_traceable(settings: Settings) -> None:
    """ConfigurationError where traces are wanted and the extra `otel` is not installed."""
    if settings.telemetry.trace_ratio and not _is_installed():
        raise ConfigurationError(
            "telemetry.trace_ratio needs OpenTelemetry, which is not installed",
            remedy="pip install 'cdcwatch[otel]', or trace_ratio = 0",
        )


def _is_installed() -> bool:
    names = ("opentelemetry", "opentelemetry.sdk", "opentelemetry.exporter", "opentelemetry.exporter.otlp.proto.http")
    try:
        return all(find_spec(name) is not None for name in names)
    except ModuleNotFoundError:
        return False


def traces_of(settings: Settings) -> Traces | None:
    """The same object for all who ask; None with `trace_ratio = 0`. What is there when the process ends is exported."""
    return _made(settings.telemetry.trace_ratio) if settings.telemetry.trace_ratio else None


@cache
def _made(ratio: float) -> Traces:
    """To where OTEL_EXPORTER_OTLP_… says, in batches, by a thread of its own; what is too much is dropped.

    https://opentelemetry.io/docs/specs/otel/protocol/exporter/
    """
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415  an extra
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    from cdcwatch.tracing.spans import Traces  # noqa: PLC0415

    theirs = logging.getLogger("opentelemetry")
    theirs.handlers, theirs.propagate = [_InOurLog()], False
    return Traces(ratio, BatchSpanProcessor(OTLPSpanExporter()))


class _InOurLog(logging.Handler):
    """Says in our log, and in its form, what the exporter could not do; that it tries again is no event."""

    def emit(self, record: logging.LogRecord) -> None:
        """As of Handler."""
        if record.levelno >= logging.ERROR:
            _log.warning("traces are not exported, and lost: %s", record.getMessage())
        else:
            _log.debug("%s", record.getMessage())
