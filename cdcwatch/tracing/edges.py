"""Table, sink and endpoint as they are, with what passes through them told to `Traces`."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import orjson

from cdcwatch.close.claim import ClaimTable
from cdcwatch.close.outside import NO_HEADERS
from cdcwatch.close.update import PostgresTable
from cdcwatch.errors import CdcwatchError
from cdcwatch.instant import read_instant
from cdcwatch.tracing.spans import Interval, Order

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from cdcwatch.close.attempt import Called, Claim
    from cdcwatch.close.claim import Ended, Recorded
    from cdcwatch.close.outcome import CloseReport, Unclosed
    from cdcwatch.close.outside import Outside
    from cdcwatch.deadline.event import Event
    from cdcwatch.deadline.schedule import Due
    from cdcwatch.handoff.progress import Progress
    from cdcwatch.handoff.sink import Batch, Sink
    from cdcwatch.handoff.told import Told
    from cdcwatch.table import WatchedTable
    from cdcwatch.tracing.spans import Traces


def _statement_of(table: WatchedTable) -> str:
    return "DELETE" if table.deletes else "UPDATE"


def _followed(
    traces: Traces, table: WatchedTable, close: Callable[[Sequence[Due]], CloseReport], batch: Sequence[Due]
) -> CloseReport:
    began_ns, statement = time.time_ns(), _statement_of(table)
    try:
        report = close(batch)
    except CdcwatchError as error:
        sent = Interval(began_ns, time.time_ns())
        traces.broke(table.qualified_name, statement, batch, sent, type(error).__name__)
        raise
    traces.attempted(table.qualified_name, statement, batch, report, Interval(began_ns, time.time_ns()))
    return report


def _given_up(traces: Traces, table: WatchedTable, given_up: Sequence[Unclosed], attempts: int) -> None:
    orders = [Order(table.qualified_name, one.due.key, one.due.deadline_us) for one in given_up]
    traces.given_up(orders, attempts, given_up[-1].error if given_up else "")


class TracedTable(PostgresTable):
    """Keeps the `Table` contract."""

    def __init__(self, *arguments: Any, traces: Traces, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._traces = traces

    def close(self, batch: Sequence[Due]) -> CloseReport:
        """As it is."""
        return _followed(self._traces, self._table, super().close, batch)

    def tell_given_up(self, given_up: Sequence[Unclosed], attempts: int) -> None:
        """As it is."""
        super().tell_given_up(given_up, attempts)
        _given_up(self._traces, self._table, given_up, attempts)


class TracedClaimTable(TracedTable, ClaimTable):
    """The same of claims; `record_closed` ends an order's trace."""

    def record_closed(self, done: Sequence[Ended]) -> Recorded:
        """As it is."""
        began_ns = time.time_ns()
        recorded = super().record_closed(done)
        sent = Interval(began_ns, time.time_ns())
        self._traces.recorded(self._table.qualified_name, len(done), recorded.closed, sent)
        return recorded


class TracedOutside:
    """An endpoint; the calls of orders that are followed carry a `traceparent`."""

    def __init__(self, outside: Outside, traces: Traces, table: str) -> None:
        self._outside, self._traces, self._table = outside, traces, table

    def call(self, claim: Claim, headers: Mapping[str, str] = NO_HEADERS) -> Called:
        """As it is."""
        began_ns, sent = time.time_ns(), dict(headers)
        span = self._traces.call_begins(self._table, claim, sent)
        called = self._outside.call(claim, sent)
        self._traces.call_ended(self._table, claim, span, began_ns, called)
        return called

    def close(self) -> None:
        """As it is."""
        self._outside.close()


class TracedSink:
    """A sink; of orders that are followed it notes when they were handed over, and tells when they are durable."""

    def __init__(self, sink: Sink, traces: Traces, tables: Mapping[str, WatchedTable], system: str = "kafka") -> None:
        """`tables`: by topic. `system`: what holds the events."""
        self._sink, self._traces, self._system = sink, traces, system
        self._names = {topic: table.qualified_name for topic, table in tables.items()}
        self._waiting: dict[int, tuple[Event, int]] = {}
        """By their numbers: events that are handed over and not durable yet, and since when."""

    @property
    def is_transactional(self) -> bool:
        """As it is."""
        return self._sink.is_transactional

    @property
    def made_topics(self) -> Collection[str]:
        """As it is."""
        return self._sink.made_topics

    def open(self) -> Progress | None:
        """As it is."""
        self._waiting = {}
        return self._sink.open()

    def publish(self, batches: Sequence[Batch]) -> None:
        """As it is."""
        now_ns, chooses = time.time_ns(), self._traces.chooses.has
        for batch in batches:
            for number, event in zip(
                batch.sequence, batch.events, strict=False
            ):  # the last number is the progress record's
                if event.key is not None and chooses(event.key):
                    self._waiting[number] = (event, now_ns)
        self._sink.publish(batches)

    def acknowledged(self) -> list[range]:
        """As it is."""
        found = self._sink.acknowledged()
        if found and self._waiting:
            now_ns = time.time_ns()
            durable = [number for number in self._waiting if any(number in one for one in found)]
            for number in durable:
                event, handed_ns = self._waiting.pop(number)
                self._tell(event, Interval(handed_ns, now_ns))
        return found

    def _tell(self, event: Event, sent: Interval) -> None:
        """Of an event that leaves a live deadline: what ends one belongs to the trace of its close."""
        value = orjson.loads(event.value)
        data = value["data"]
        if value["type"] not in {"deadline.scheduled", "deadline.moved"}:
            return
        self._traces.told(
            Order(self._names[event.topic], value["subject"], read_instant(data["deadline"])),
            read_instant(value["time"]),
            sent,
            {
                "messaging.system": self._system,
                "messaging.destination.name": event.topic,
                "cdcwatch.event.type": value["type"],
                "cdcwatch.event.id": value["id"],
                "cdcwatch.commit_lsn": data["commit_lsn"],
            },
        )

    def survey(self, made: Callable[[int], Told], topic: str = "") -> Told:
        """As it is."""
        return self._sink.survey(made, topic)

    def publish_snapshot(self, events: Iterable[Event], progress: Progress) -> int:
        """As it is."""
        return self._sink.publish_snapshot(events, progress)

    def close(self) -> None:
        """As it is."""
        self._sink.close()
