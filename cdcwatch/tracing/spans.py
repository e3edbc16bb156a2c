"""The spans themselves, by OpenTelemetry's SDK.

https://opentelemetry.io/docs/specs/otel/trace/api/, and its names for databases and messaging:
https://opentelemetry.io/docs/specs/semconv/
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.id_generator import IdGenerator, RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ALWAYS_ON
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cdcwatch import __version__
from cdcwatch.close.outcome import Outcome
from cdcwatch.instant import NEGATIVE_INFINITY_US, from_unix_us
from cdcwatch.tracing.identity import Choice, trace_identity

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span
    from opentelemetry.util.types import AttributeValue

    from cdcwatch.close.attempt import Called, Claim
    from cdcwatch.close.outcome import Closed, CloseReport
    from cdcwatch.deadline.schedule import Due
    from cdcwatch.table import Key

_MOST_TROUBLED: Final = 10_000
_LONGEST_WAIT_NS: Final = 3_600_000_000_000
"""What was due longer ago was not waited for: its span begins with the attempt."""
_TRIED_AGAIN: Final = frozenset({Outcome.LOCKED, Outcome.NOT_DUE, Outcome.FAILED, Outcome.CLAIMED})


class Order(NamedTuple):
    """One order's one deadline."""

    table: str
    key: Key
    deadline_us: int


class Interval(NamedTuple):
    """Of this machine's clock, in nanoseconds since 1970."""

    began_ns: int
    ended_ns: int


class _GivenIds(IdGenerator):
    """Random span ids but where one is given; trace ids are always given, by the thread that begins a root."""

    def __init__(self) -> None:
        self._random, self._given = RandomIdGenerator(), threading.local()

    def give(self, trace_id: int, span_id: int | None) -> None:
        self._given.trace_id, self._given.span_id = trace_id, span_id

    def generate_trace_id(self) -> int:
        return int(self._given.trace_id)

    def generate_span_id(self) -> int:
        span_id = getattr(self._given, "span_id", None)
        self._given.span_id = None
        return self._random.generate_span_id() if span_id is None else span_id


class Traces:
    """Makes spans of the chosen orders, and of all that fail. Used by any thread."""

    def __init__(self, ratio: float, processor: SpanProcessor) -> None:
        """`processor` hands finished spans on. OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES name the process."""
        self.chooses = Choice(ratio)
        self._ids = _GivenIds()
        named = Resource.create()  # as the environment says
        own = {SERVICE_VERSION: __version__}
        if str(named.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
            own[SERVICE_NAME] = "cdcwatch"
        # Which orders are followed is decided here, by their keys, and by no sampler.
        self._provider = TracerProvider(
            sampler=ALWAYS_ON, resource=named.merge(Resource(own)), id_generator=self._ids, shutdown_on_exit=True
        )
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("cdcwatch", __version__)
        self._lock = threading.Lock()
        self._troubled: OrderedDict[tuple[str, Key], None] = OrderedDict()
        """Failed before: what becomes of them is told too."""

    # -- the stream and the topic ------------------------------------------------------------------------------------

    def told(self, order: Order, committed_us: int, sent: Interval, attributes: Mapping[str, AttributeValue]) -> None:
        """The order's event is durable: the root, from the commit (by the database's clock) on."""
        identity = trace_identity(*order)
        self._ids.give(identity.trace_id, identity.root_id)
        began_ns = min(_unix_ns(committed_us), sent.began_ns)
        root = self._tracer.start_span(
            str(attributes["cdcwatch.event.type"]),
            Context(),
            SpanKind.PRODUCER,
            _of(order, attributes),
            start_time=began_ns,
        )
        root.add_event("handed to the sink", timestamp=sent.began_ns)
        root.end(sent.ended_ns)

    # -- closes ------------------------------------------------------------------------------------------------------

    def attempted(self, table: str, statement: str, batch: Sequence[Due], report: CloseReport, sent: Interval) -> None:
        """A batch of closes has its answer: a span for each order that is followed, and for each that failed."""
        about = _statement(table, statement, len(batch))
        self._closed(table, about, report.closed, sent)
        if report.claimed:
            deadlines = {due.key: due.deadline_us for due in batch}
            for key in filter(self.chooses, report.claimed):
                self._attempt(Order(table, key, deadlines[key]), Outcome.CLAIMED, sent, about, {})
        for unclosed in report.unclosed:
            key, outcome = unclosed.due.key, unclosed.outcome
            is_followed = self.chooses(key) or (table, key) in self._troubled
            if outcome is Outcome.FAILED or (is_followed and outcome is not Outcome.DEFERRED):
                order = Order(table, key, unclosed.due.deadline_us)
                self._attempt(order, outcome, sent, about, {}, error=unclosed.error)

    def recorded(self, table: str, claimed: int, closed: Iterable[Closed], sent: Interval) -> None:
        """Claimed orders whose external action is done are closed: some of `claimed`, in one statement."""
        self._closed(table, _statement(table, "UPDATE", claimed), closed, sent)

    def _closed(self, table: str, about: _Statement, closed: Iterable[Closed], sent: Interval) -> None:
        chooses, troubled = self.chooses, self._troubled
        for one in closed:
            if chooses(one.key) or (troubled and (table, one.key) in troubled):
                told = {"cdcwatch.lateness_ms": one.lateness_us / 1000, "cdcwatch.version": one.version}
                self._attempt(Order(table, one.key, one.deadline_us), Outcome.CLOSED, sent, about, told)

    def broke(self, table: str, statement: str, batch: Sequence[Due], sent: Interval, error: str) -> None:
        """The connection broke over a batch: told of the orders that are followed, and of the first."""
        about = _statement(table, statement, len(batch))
        for place, due in enumerate(batch):
            if place == 0 or self.chooses(due.key):
                self._attempt(Order(table, due.key, due.deadline_us), Outcome.FAILED, sent, about, {}, error=error)

    def given_up(self, orders: Iterable[Order], attempts: int, error: str) -> None:
        """These became dead letters."""
        for order in orders:
            span = self._begin("given up", order, SpanKind.INTERNAL, {"cdcwatch.attempts": attempts}, None)
            span.set_status(Status(StatusCode.ERROR, error))
            span.end()

    def _attempt(
        self,
        order: Order,
        outcome: Outcome,
        sent: Interval,
        about: _Statement,
        attributes: Mapping[str, AttributeValue],
        *,
        error: str = "",
    ) -> None:
        """From the deadline, or a further attempt's beginning, to the answer; the statement is a span in it."""
        due_ns = 0 if order.deadline_us == NEGATIVE_INFINITY_US else _unix_ns(order.deadline_us)
        waited_ns = sent.began_ns - due_ns
        is_first = (order.table, order.key) not in self._troubled and 0 <= waited_ns <= _LONGEST_WAIT_NS
        told = {**attributes, "cdcwatch.outcome": str(outcome)}
        name = "claim order" if outcome is Outcome.CLAIMED else "close order"
        whole = self._begin(name, order, SpanKind.INTERNAL, told, due_ns if is_first else sent.began_ns)
        part = self._tracer.start_span(
            about.name,
            trace.set_span_in_context(whole, Context()),
            SpanKind.CLIENT,
            about.attributes,
            start_time=sent.began_ns,
        )
        if outcome is Outcome.FAILED:
            for span in (whole, part):
                span.set_status(Status(StatusCode.ERROR, error))
        part.end(sent.ended_ns)
        whole.end(sent.ended_ns)
        self._remember(order, outcome)

    def _remember(self, order: Order, outcome: Outcome) -> None:
        name = (order.table, order.key)
        with self._lock:
            if outcome is Outcome.FAILED:
                self._troubled[name] = None
                if len(self._troubled) > _MOST_TROUBLED:
                    self._troubled.popitem(last=False)
            elif outcome not in _TRIED_AGAIN:
                self._troubled.pop(name, None)

    # -- external actions --------------------------------------------------------------------------------------------

    def call_begins(self, table: str, claim: Claim, headers: dict[str, str]) -> Span | None:
        """None where the order isn't followed; else the call's span, and its context among the headers."""
        if not self.chooses(claim.key):
            return None
        span = self._called(table, claim, None)
        TraceContextTextMapPropagator().inject(headers, trace.set_span_in_context(span, Context()))
        return span

    def call_ended(self, table: str, claim: Claim, span: Span | None, began_ns: int, called: Called) -> None:
        """The endpoint has answered, or has not in time."""
        if span is None:
            if not called.error:
                return
            span = self._called(table, claim, began_ns)
        span.set_attribute("cdcwatch.answer", str(called.answer))
        if called.error:
            span.set_status(Status(StatusCode.ERROR, called.error))
        span.end()

    def _called(self, table: str, claim: Claim, began_ns: int | None) -> Span:
        attributes: dict[str, AttributeValue] = {"http.request.method": "POST", "cdcwatch.attempt": claim.attempt}
        return self._begin("call", Order(table, claim.key, claim.deadline_us), SpanKind.CLIENT, attributes, began_ns)

    def _begin(
        self, name: str, order: Order, kind: SpanKind, attributes: Mapping[str, AttributeValue], began_ns: int | None
    ) -> Span:
        """Below the root of an order that is followed, wherever that was made; of another without anything above it."""
        identity = trace_identity(*order)
        context = Context()
        if self.chooses(order.key):
            root = SpanContext(
                identity.trace_id, identity.root_id, is_remote=True, trace_flags=TraceFlags(TraceFlags.SAMPLED)
            )
            context = trace.set_span_in_context(NonRecordingSpan(root), context)
        self._ids.give(identity.trace_id, None)
        return self._tracer.start_span(name, context, kind, _of(order, attributes), start_time=began_ns)


def _unix_ns(us: int) -> int:
    return (us - from_unix_us(0)) * 1000


class _Statement(NamedTuple):
    name: str
    attributes: dict[str, AttributeValue]


def _statement(table: str, statement: str, rows: int) -> _Statement:
    attributes: dict[str, AttributeValue] = {
        "db.system.name": "postgresql",
        "db.operation.name": statement,
        "db.collection.name": table,
        "db.operation.batch.size": rows,
    }
    return _Statement(f"{statement} {table}", attributes)


def _of(order: Order, attributes: Mapping[str, AttributeValue]) -> dict[str, AttributeValue]:
    return {"cdcwatch.table": order.table, "cdcwatch.key": str(order.key), **attributes}
