"""What the service looks like from outside: readiness in words, and the gauges."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cdcwatch.deadline.rule import DeadlineRule
    from cdcwatch.handoff.outbox import Outbox
    from cdcwatch.pipeline.closing import Closing
    from cdcwatch.pipeline.publisher import Publisher
    from cdcwatch.pipeline.reader import Reader
    from cdcwatch.telemetry import Metrics


class Health:
    """Filled in as the parts are made. Read from any thread."""

    def __init__(self, *, closes: bool) -> None:
        self._closes = closes
        self.reader: Reader | None = None
        self.publisher: Publisher | None = None
        self.closing: Closing | None = None
        self.rule: DeadlineRule | None = None

    def readiness(self) -> dict[str, Any]:
        """`ready`, and the state of each part: 200 once the stream is read and the sink and the closer work."""
        reader, publisher, closing = self.reader, self.publisher, self.closing
        streams = reader is not None and reader.is_streaming
        is_open = publisher is not None and publisher.is_open
        closes = closing is not None and closing.is_ready
        parts = {
            "reader": "streaming" if streams else "waiting for the slot or the sink",
            "sink": "open" if is_open else (publisher and publisher.last_error) or "not open",
        }
        if self._closes:
            waiting = (closing and closing.last_error) or "loading the window or waiting for the database"
            parts["closer"] = "working" if closes else waiting
        return {"ready": streams and is_open and (closes or not self._closes), **parts}

    def export(self, metrics: Metrics, outbox: Outbox) -> None:
        """The gauges."""
        gauge = metrics.gauge
        gauge("ready", "1 when /readyz is 200.", lambda: float(self.readiness()["ready"]))
        gauge("events_handed_over", "Deadline events derived since the start.", lambda: outbox.event_count)
        gauge("never_due", "Changes that left an open order with the deadline infinity.", self._never_due)
        gauge("outbox_bytes", "Events in flight to the sink.", lambda: outbox.size_bytes)
        gauge("flush_lsn", "What may be confirmed, as an integer.", lambda: outbox.flush_lsn)
        gauge("confirmed_lsn", "What the server was told, as an integer.", self._confirmed_lsn)
        gauge("reader_reconnects", "Replication connections lost.", self._reconnects)
        gauge("sink_reopens", "Times the sink was opened anew.", self._reopens)
        if self._closes:
            gauge("pending_entries", "Deadlines in memory.", lambda: len(self.closing.agenda) if self.closing else 0)

    def _never_due(self) -> float:
        return self.rule.never_due_count if self.rule else 0

    def _confirmed_lsn(self) -> float:
        return self.reader.confirmed_lsn if self.reader else 0

    def _reconnects(self) -> float:
        return self.reader.reconnect_count if self.reader else 0

    def _reopens(self) -> float:
        return self.publisher.reopen_count if self.publisher else 0
