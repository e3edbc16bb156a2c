"""This process's traces, where the configuration wants any."""

from __future__ import annotations

import atexit
import logging
import threading
import time
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from cdcwatch.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.sdk.trace.export import SpanExporter

    from cdcwatch.settings import Settings
    from cdcwatch.tracing.spans import Traces

_log = logging.getLogger(__name__)
STOP_S: Final = 5.0
"""For what is to be exported yet when the process ends; the SDK would take half a minute."""


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
    exporter, ends = OTLPSpanExporter(), threading.Event()
    traces = Traces(ratio, BatchSpanProcessor(exporter))
    # At the interpreter's end there are no new threads. What is registered last runs first: before the SDK's own.
    threading.Thread(target=_cut_short, args=(ends, exporter), name="traces end", daemon=True).start()
    atexit.register(ends.set)
    return traces


def _cut_short(ends: threading.Event, exporter: SpanExporter) -> None:
    """After that no batch is begun; the one that is under way has OTEL_EXPORTER_OTLP_TIMEOUT."""
    ends.wait()
    time.sleep(STOP_S)
    exporter.shutdown()


class _InOurLog(logging.Handler):
    """Says in our log, and in its form, what the exporter could not do; that it tries again is no event."""

    def emit(self, record: logging.LogRecord) -> None:
        """As of Handler."""
        if (
            record.levelno >= logging.ERROR or "ropping" in record.getMessage()
        ):  # its queue is full, or too much at once
            _log.warning("traces are not exported, and lost: %s", record.getMessage())
        else:
            _log.debug("%s", record.getMessage())
