"""Which sink the configuration wants, traced where traces are wanted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcwatch.handoff.bus import bus_of
from cdcwatch.handoff.sink import NoSink
from cdcwatch.tracing.process import traces_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdcwatch.handoff.progress import Progress
    from cdcwatch.handoff.sink import Sink
    from cdcwatch.settings import Settings
    from cdcwatch.table import WatchedTable


def made_sink(settings: Settings, start: Progress, tables: Mapping[str, WatchedTable]) -> Sink:
    """`start`: the slot, and where it stands. `tables`: by topic."""
    bus = bus_of(settings)
    if bus is None:
        return NoSink(start)
    sink, traces = bus.sink(start.origin.slot, list(tables)), traces_of(settings)
    if traces is None:
        return sink
    from cdcwatch.tracing.edges import TracedSink  # noqa: PLC0415  an extra

    return TracedSink(sink, traces, tables, settings.sink.kind)
