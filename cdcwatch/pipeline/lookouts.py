"""Who looks at the slot and at the sink from beside: threads of their own, that nothing waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcwatch.handoff.bus import bus_of
from cdcwatch.pipeline.sink_lookout import SinkLookout
from cdcwatch.pipeline.slot_lookout import SlotLookout

if TYPE_CHECKING:
    from cdcwatch.handoff.outbox import Outbox
    from cdcwatch.settings import Settings
    from cdcwatch.telemetry import Metrics


class Lookouts:
    """Of one service."""

    def __init__(self, settings: Settings, outbox: Outbox, metrics: Metrics) -> None:
        self._settings = settings
        self.slot = SlotLookout(settings)
        self.slot.export(metrics)
        self._sink = SinkLookout(outbox, self._why_unreachable) if settings.sink.kind != "none" else None

    def start(self) -> None:
        """Where there is a port, the slot is looked at: nobody would see it else."""
        if self._settings.telemetry.listen:
            self.slot.start()
        if self._sink is not None:
            self._sink.start()

    def _why_unreachable(self) -> str:
        """By a bus made when it is asked for: its library is loaded once the stream has begun, not before."""
        bus = bus_of(self._settings)
        return bus.why_unreachable() if bus is not None else ""

    def request_stop(self) -> None:
        """Ends them."""
        self.slot.request_stop()
        if self._sink is not None:
            self._sink.request_stop()
