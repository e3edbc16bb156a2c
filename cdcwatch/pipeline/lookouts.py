"""Who looks at the slot and at the sink from beside: threads of their own, that nothing waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcwatch.errors import CdcwatchError
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
        self._sink = SinkLookout(outbox, self._why_unreachable)

    def start(self) -> None:
        """Where there is a port, the slot is looked at: nobody would see it else."""
        if self._settings.telemetry.listen:
            self.slot.start()
        if self._settings.sink.kind == "kafka":
            self._sink.start()

    def request_stop(self) -> None:
        """Ends them."""
        self.slot.request_stop()
        self._sink.request_stop()

    def _why_unreachable(self) -> str:
        from confluent_kafka.admin import AdminClient  # noqa: PLC0415  librdkafka only where it is used

        from cdcwatch.handoff.client import client_configuration, connected_client  # noqa: PLC0415

        settings = self._settings.kafka
        try:
            connected_client(AdminClient, client_configuration(settings), settings.topic)
        except CdcwatchError as error:
            return str(error)
        return ""
