"""What the service looks like from outside: which threads live, readiness in words, and the gauges."""

from __future__ import annotations

import time
from math import nan
from typing import TYPE_CHECKING, Any

from cdcwatch.deadline.rule import EVENT_TYPES
from cdcwatch.instant import to_unix_s
from cdcwatch.pipeline.readiness import Part, SinkSigns, judge_closers, judge_reader, judge_sink

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdcwatch.close.agenda import Agenda, AgendaFacts
    from cdcwatch.handoff.outbox import Outbox
    from cdcwatch.pipeline.closing import Closing
    from cdcwatch.pipeline.publisher import Publisher
    from cdcwatch.pipeline.reader import Reader
    from cdcwatch.pipeline.watch import Watch
    from cdcwatch.telemetry import Metrics


class Health:
    """Filled in as the parts are made. Read from any thread."""

    def __init__(self, outbox: Outbox, *, closes: bool, now_s: Callable[[], float] = time.monotonic) -> None:
        self._outbox, self._closes, self._now_s = outbox, closes, now_s
        self.reader: Reader | None = None
        self.publisher: Publisher | None = None
        self.closings: Mapping[str, Closing] = {}
        """By table."""
        self.watches: Sequence[Watch] = ()
        self.trouble = ""
        """Why nothing is read any more, though closing goes on."""
        self.awaited = ""
        """What holds up the beginning; empty: nothing that is known."""
        self.is_stopping = False
        """Threads end then as they should."""

    def await_writers(self, awaited: str) -> None:
        """What holds up the beginning; empty: nothing any more."""
        self.awaited = awaited

    def readiness(self) -> dict[str, Any]:
        """`ready`, and of each part whether it is, why not, and the age of its last progress."""
        parts = self._parts()
        return {
            "ready": all(part.ready for part in parts.values()),
            **{name: part.document() for name, part in parts.items()},
        }

    def liveness(self) -> list[str]:
        """Threads that have ended and should not have."""
        if self.is_stopping:
            return []
        reader, publisher = self.reader, self.publisher
        alive = {
            "reader": reader is None or reader.is_alive(),
            "sink": publisher is None or publisher.is_alive(),
            "closer": all(closing.are_threads_alive for closing in self.closings.values()),
        }
        if self.trouble:
            alive = {"closer": alive["closer"]}  # the others have ended as they should
        return [name for name, lives in alive.items() if not lives]

    def _parts(self) -> dict[str, Part]:
        parts = {"reader": self._reader_part(), "sink": self._sink_part()}
        if self._closes:
            parts["closer"] = self._closer_part()
        return parts

    def _reader_part(self) -> Part:
        if self.trouble:
            return Part(ready=False, reason=f"reading has ended: {self.trouble}", age_s=None)
        return judge_reader(self.reader.signs(self._now_s()) if self.reader else None, self.awaited)

    def _sink_part(self) -> Part:
        publisher, outbox = self.publisher, self._outbox
        if publisher is None:
            return judge_sink(None)
        signs = SinkSigns(publisher.is_open, publisher.last_error or "", outbox.acknowledged_age_s, outbox.oldest_age_s)
        return judge_sink(signs, self.awaited)

    def _closer_part(self) -> Part:
        return judge_closers({name: closing.signs() for name, closing in self.closings.items()}, self.awaited)

    def export(self, metrics: Metrics) -> None:
        """The gauges."""
        gauge, counter, outbox = metrics.gauge, metrics.counter, self._outbox
        gauge("ready", "1 when /readyz is 200.", lambda: float(self.readiness()["ready"]))
        counter(
            "events", "Deadline events made, by type: of the stream and of reads of the table.", self._events, "type"
        )
        counter("events_handed_over", "Events of the stream handed to the sink.", lambda: {"": outbox.event_count})
        counter("never_due", "Changes that left an open order with the deadline infinity.", self._never_due)
        gauge("outbox_bytes", "Events in flight to the sink.", lambda: outbox.size_bytes)
        gauge("outbox_events", "Events in flight to the sink.", lambda: outbox.unacknowledged_events)
        gauge("flush_lsn", "What may be confirmed, as an integer.", lambda: outbox.flush_lsn)
        gauge("confirmed_lsn", "What the server was told, as an integer.", self._confirmed_lsn)
        counter("reader_reconnects", "Replication connections lost.", self._reconnects)
        counter("sink_reopens", "Times the sink was opened anew.", self._reopens)
        export_ages(metrics, "reader", self._reader_part)
        export_ages(metrics, "sink", self._sink_part)
        if self._closes:
            export_ages(metrics, "closer", self._closer_part)
            at_hand = "Claimed orders of this process, of close.claim, until their answer is recorded."
            metrics.gauge_each("claims_at_hand", at_hand, lambda name: self._of(name, lambda one: one.claims_at_hand))
            export_heap(metrics, lambda name: one.agenda if (one := self.closings.get(name)) else None)

    def _events(self) -> dict[str, float]:
        counts: dict[str, float] = dict.fromkeys(EVENT_TYPES, 0)
        for watch in self.watches:
            for kind, count in watch.event_counts.items():
                counts[kind] += count
        return counts

    def _never_due(self) -> dict[str, float]:
        return {"": sum(watch.rule.never_due_count for watch in self.watches)}

    def _of(self, table: str, figure: Callable[[Closing], float]) -> float:
        closing = self.closings.get(table)
        return 0 if closing is None else figure(closing)

    def _confirmed_lsn(self) -> float:
        return self.reader.confirmed_lsn if self.reader else 0

    def _reconnects(self) -> dict[str, float]:
        return {"": self.reader.reconnect_count if self.reader else 0}

    def _reopens(self) -> dict[str, float]:
        return {"": self.publisher.reopen_count if self.publisher else 0}


def export_ages(metrics: Metrics, name: str, part: Callable[[], Part]) -> None:
    """The gauges of a part's age and of what waits there."""

    def age_s() -> float:
        found = part().age_s
        return nan if found is None else found

    metrics.gauge(f"{name}_age_seconds", f"Since the {name}'s last progress.", age_s)
    if name != "reader":
        waits = f"How long the oldest piece of the {name}'s work has waited."
        metrics.gauge(f"{name}_waiting_seconds", waits, lambda: part().waiting_s)


def export_heap(metrics: Metrics, agenda: Callable[[str], Agenda | None]) -> None:
    """The gauges of what is in memory, of every table. `agenda`: by the table's name; None: there is none yet."""

    def figure(of: Callable[[AgendaFacts], float | None], unknown: float = nan) -> Callable[[str], float]:
        def value(name: str) -> float:
            found = agenda(name)
            told = of(found.facts()) if found is not None else None
            return unknown if told is None else told

        return value

    each = metrics.gauge_each
    each("pending_entries", "Deadlines in memory.", figure(lambda facts: facts.pending, 0))
    each("retrying_entries", "Of them those that are tried again.", figure(lambda facts: facts.retrying, 0))
    each(
        "window_from_timestamp_seconds",
        "The earliest deadline in memory; NaN: there is none.",
        figure(lambda facts: to_unix_s(facts.next_deadline_us)),
    )
    each(
        "window_to_timestamp_seconds",
        "Deadlines up to there are in memory; NaN: it isn't loaded.",
        figure(lambda facts: to_unix_s(facts.window_end_us)),
    )
