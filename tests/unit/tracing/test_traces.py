"""Which spans there are, of which orders, and how they hang together."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
import sys
import time
import uuid
from typing import TYPE_CHECKING

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from cdcwatch.close.attempt import Answer, Called, Claim, idempotency_key
from cdcwatch.close.outcome import Closed, CloseReport, Outcome, Unclosed
from cdcwatch.deadline.event import Event, EventEncoder
from cdcwatch.deadline.position import Position
from cdcwatch.deadline.rule import CANCELLED, SCHEDULED, Derived
from cdcwatch.deadline.schedule import Due
from cdcwatch.decode.change import Row
from cdcwatch.errors import ConfigurationError
from cdcwatch.handoff.progress import Origin, Progress
from cdcwatch.handoff.sink import Batch, NoSink
from cdcwatch.instant import NEGATIVE_INFINITY_US, from_unix_us
from cdcwatch.pipeline.built import require_built
from cdcwatch.settings import Settings, TelemetrySettings
from cdcwatch.tracing import process
from cdcwatch.tracing.edges import TracedOutside, TracedSink
from cdcwatch.tracing.identity import Choice, trace_identity
from cdcwatch.tracing.spans import Interval, Traces
from tests.fakes.table import WATCHED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry.sdk.trace import ReadableSpan

TABLE = WATCHED.qualified_name
NOW_US = from_unix_us(time.time_ns() // 1000)
DUE_US = NOW_US - 40_000
SENT = Interval(time.time_ns(), time.time_ns() + 5_000_000)
NOBODY, EVERYBODY = 1e-9, 1.0


class Made:
    """Traces, and the spans that came of them."""

    def __init__(self, ratio: float) -> None:
        self._exporter = InMemorySpanExporter()
        self.traces = Traces(ratio, SimpleSpanProcessor(self._exporter))

    @property
    def spans(self) -> list[ReadableSpan]:
        """In the order of their ends."""
        return list(self._exporter.get_finished_spans())

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]

    def attempted(self, report: CloseReport, *keys: int) -> None:
        self.traces.attempted(TABLE, "UPDATE", [Due(key, DUE_US, 0) for key in keys], report, SENT)


def closed(key: int, deadline_us: int = DUE_US) -> CloseReport:
    return CloseReport(closed=[Closed(key, deadline_us, 1, DUE_US + 30_000)])


def unclosed(key: int, outcome: Outcome, error: str = "") -> CloseReport:
    return CloseReport(unclosed=[Unclosed(Due(key, DUE_US, 0), outcome, None, error)])


def trace_id(key: int) -> int:
    return uuid.UUID(idempotency_key(WATCHED, key, DUE_US)).int


def told(made: Made, key: int, sink: TracedSink, derived: Derived, number: int) -> None:
    origin = Origin("7301234567890123456", 1, "shop", "slot")
    encoder = EventEncoder(WATCHED, system_identifier="7301234567890123456", database="shop", topic="orders.deadlines")
    event = encoder.change(key, derived, encoder.stamp(0x1A2B390, DUE_US - 100_000), 1)
    other = Event(None, b"{}", "orders.deadlines")
    batch = Batch([other, event], Progress(origin, Position()), range(number, number + 3), 100)
    sink.publish([batch])
    assert made.spans == []
    assert sink.acknowledged() == [range(number, number + 3)]


def sink_of(made: Made) -> TracedSink:
    return TracedSink(
        NoSink(Progress(Origin("1", 1, "shop", "slot"), Position())), made.traces, {"orders.deadlines": WATCHED}
    )


def test_a_close_hangs_below_the_event_in_the_topic_though_nobody_told_it_of_that() -> None:
    reader, closer = Made(EVERYBODY), Made(EVERYBODY)  # as in two processes
    told(reader, 7, sink_of(reader), Derived(SCHEDULED, Row(DUE_US, "pending", 0), None), 40)
    closer.attempted(closed(7), 7)
    (root,) = reader.spans
    update, close = closer.spans
    assert [span.name for span in (root, close, update)] == [
        "deadline.scheduled",
        "close order",
        "UPDATE public.orders",
    ]
    assert {span.context.trace_id for span in (root, close, update)} == {trace_id(7)}
    assert root.parent is None
    assert close.parent.span_id == root.context.span_id
    assert update.parent.span_id == close.context.span_id
    # Commit, handed over, durable; due, sent, answered.
    assert root.start_time < root.events[0].timestamp <= root.end_time
    assert close.start_time < update.start_time < update.end_time == close.end_time
    assert root.attributes["cdcwatch.event.id"] == "0/1A2B390-1"
    assert root.attributes["cdcwatch.key"] == close.attributes["cdcwatch.key"] == "7"
    assert (close.attributes["cdcwatch.outcome"], close.attributes["cdcwatch.lateness_ms"]) == ("closed", 30.0)
    assert update.attributes["db.operation.batch.size"] == 1
    assert update.kind is SpanKind.CLIENT
    assert close.status.status_code is StatusCode.UNSET


def test_successes_by_the_ratio_and_failures_always() -> None:
    made = Made(NOBODY)
    made.attempted(closed(7), 7)
    made.attempted(unclosed(7, Outcome.PAID), 7)
    made.attempted(unclosed(7, Outcome.DEFERRED), 7)
    assert made.spans == []
    made.attempted(unclosed(8, Outcome.FAILED, "SQLSTATE P0001"), 8)
    update, close = made.spans
    assert close.parent is None
    assert close.context.trace_id == trace_id(8)
    assert [(span.status.status_code, span.status.description) for span in (close, update)] == [
        (StatusCode.ERROR, "SQLSTATE P0001")
    ] * 2
    # And what becomes of it, in the same trace, without the wait counted once more.
    made.attempted(unclosed(8, Outcome.LOCKED), 8)
    made.attempted(closed(8), 8)
    assert {span.context.trace_id for span in made.spans} == {trace_id(8)}
    assert [span.attributes["cdcwatch.outcome"] for span in made.spans if span.name == "close order"] == [
        "failed", "locked", "closed"
    ]  # fmt: skip
    assert made.spans[-1].start_time == SENT.began_ns
    before = len(made.spans)
    made.attempted(closed(8), 8)
    assert len(made.spans) == before


def test_a_broken_connection_is_told_once_a_batch_and_an_order_that_is_given_up() -> None:
    made = Made(NOBODY)
    made.traces.broke(
        TABLE, "UPDATE", [Due(1, NEGATIVE_INFINITY_US, 0), Due(2, DUE_US, 0)], SENT, "ConnectionBrokeError"
    )
    assert made.names == ["UPDATE public.orders", "close order"]
    assert made.spans[1].start_time == SENT.began_ns
    assert made.spans[1].attributes["cdcwatch.key"] == "1"


def test_a_deadline_of_long_ago_was_not_waited_for() -> None:
    made = Made(EVERYBODY)
    made.attempted(closed(1, DUE_US - 7_200_000_000), 1)
    made.attempted(closed(2, NEGATIVE_INFINITY_US), 2)
    assert [span.start_time for span in made.spans] == [SENT.began_ns] * 4


def test_the_share_is_the_ratios_and_the_same_everywhere() -> None:
    choice = Choice(0.1)
    chosen = [key for key in range(100_000) if choice(key)]
    assert 9_000 < len(chosen) < 11_000
    assert [key for key in range(100_000) if Choice(0.1).has(str(key).encode())] == chosen
    assert all(Choice(1)(key) for key in ("", "a", -1, 2**63))
    assert not any(Choice(NOBODY)(key) for key in range(1000))
    assert (
        trace_identity(TABLE, 7, DUE_US) == trace_identity(TABLE, "7", DUE_US) != trace_identity(TABLE, 7, DUE_US + 1)
    )


def test_of_the_stream_only_what_leaves_a_deadline_and_only_once_it_is_durable() -> None:
    made = Made(EVERYBODY)
    sink = sink_of(made)
    told(made, 7, sink, Derived(CANCELLED, Row(None, "paid", 1), DUE_US, "paid"), 1)
    assert made.spans == []
    told(made, 7, sink, Derived(SCHEDULED, Row(DUE_US, "pending", 0), None), 4)
    assert made.names == ["deadline.scheduled"]
    made_nobody = Made(NOBODY)
    told(made_nobody, 7, sink_of(made_nobody), Derived(SCHEDULED, Row(DUE_US, "pending", 0), None), 1)
    assert made_nobody.spans == []


class _Endpoint:
    def __init__(self, answer: Answer) -> None:
        self.answer, self.headers = answer, [{}]

    def call(self, claim: Claim, headers: Mapping[str, str]) -> Called:
        self.headers.append(dict(headers))
        return Called(self.answer, "" if self.answer is Answer.SUCCEEDED else "HTTP 503")

    def close(self) -> None:
        """Nothing."""


@pytest.mark.parametrize(
    ("ratio", "answer"), [(EVERYBODY, Answer.SUCCEEDED), (NOBODY, Answer.FAILED), (NOBODY, Answer.SUCCEEDED)]
)
def test_a_call_carries_its_trace_where_it_is_followed(ratio: float, answer: Answer) -> None:
    made, endpoint = Made(ratio), _Endpoint(answer)
    claim = Claim(7, "c", 2, idempotency_key(WATCHED, 7, DUE_US), DUE_US, "pending", 0, 0)
    assert TracedOutside(endpoint, made.traces, TABLE).call(claim).answer is answer
    headers = endpoint.headers[-1]
    if ratio == EVERYBODY:
        (span,) = made.spans
        # The trace's id is the Idempotency-Key.
        assert headers == {"traceparent": f"00-{claim.idempotency_key.replace('-', '')}-{span.context.span_id:016x}-01"}
        assert (span.name, span.attributes["cdcwatch.attempt"], span.attributes["cdcwatch.answer"]) == (
            "call",
            2,
            "succeeded",
        )
        return
    assert headers == {}
    assert made.names == ([] if answer is Answer.SUCCEEDED else ["call"])
    if made.spans:
        assert made.spans[0].status.description == "HTTP 503"


def test_claims_are_followed_to_their_record() -> None:
    made = Made(EVERYBODY)
    made.attempted(CloseReport(claimed=[7]), 7)
    made.traces.recorded(TABLE, 3, closed(7).closed, SENT)
    assert made.names == ["UPDATE public.orders", "claim order", "UPDATE public.orders", "close order"]
    assert {span.context.trace_id for span in made.spans} == {trace_id(7)}


def _settings(ratio: float) -> Settings:
    return Settings(telemetry=TelemetrySettings(trace_ratio=ratio))


def test_without_the_extra_a_ratio_is_an_error_and_none_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    require_built(_settings(0.5), "all")
    monkeypatch.setattr(process, "find_spec", lambda _name: None)
    require_built(_settings(0), "all")
    with pytest.raises(ConfigurationError) as caught:
        require_built(_settings(0.5), "all")
    assert "pip install 'cdcwatch[otel]'" in caught.value.remedy


def test_off_it_makes_nothing() -> None:
    assert process.traces_of(_settings(0)) is None


_ENDING = """
from cdcwatch.settings import Settings, TelemetrySettings
from cdcwatch.tracing import process
from cdcwatch.tracing.spans import Order

process.STOP_S = 0.1
traces = process.traces_of(Settings(telemetry=TelemetrySettings(trace_ratio=1.0)))
traces.given_up([Order("orders", key, 0) for key in range(200)], 1, "no")
"""


def test_a_collector_that_hangs_holds_up_the_end_for_one_batch_alone() -> None:
    """The SDK would try the others for half a minute."""
    with socket.socket() as hangs:
        hangs.bind(("127.0.0.1", 0))
        hangs.listen(200)
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{hangs.getsockname()[1]}",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "0.5",
            "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "1",
        }
        subprocess.run([sys.executable, "-c", _ENDING], env={**os.environ, **environment}, check=True, timeout=300)
        hangs.setblocking(False)
        tried = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                hangs.accept()[0].close()
                tried += 1
    assert 0 < tried < 20


def test_what_the_exporter_cannot_do_is_told_in_our_log(caplog: pytest.LogCaptureFixture) -> None:
    ours, handler = logging.getLogger("cdcwatch.tracing.process"), process._InOurLog()
    ours.addHandler(caplog.handler)  # whether or not this process's log goes to the root
    try:
        said = [("WARNING", "Transient error, retrying in 0.9 s"), ("WARNING", "Queue full, dropping Span.")]
        for level, text in [*said, ("ERROR", "Failed to export")]:
            handler.handle(logging.makeLogRecord({"levelno": getattr(logging, level), "levelname": level, "msg": text}))
    finally:
        ours.removeHandler(caplog.handler)
    assert {one.getMessage() for one in caplog.records if one.levelno == logging.WARNING} == {
        "traces are not exported, and lost: Queue full, dropping Span.",
        "traces are not exported, and lost: Failed to export",
    }
    assert not any("Transient" in one.getMessage() for one in caplog.records if one.levelno > logging.DEBUG)
