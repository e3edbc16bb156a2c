"""The service with traces on, as a collector sees them: OTLP over HTTP, one trace from the commit to the close."""

from __future__ import annotations

import gzip
import threading
import uuid
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from cdcwatch.instant import parse_instant
from cdcwatch.tracing.identity import Choice, trace_identity
from tests.endpoint import Answer, Endpoint
from tests.oracle.world import World
from tests.orders import make_claims
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka

RATIO = 0.5
CHOSEN = [key for key in range(1, 100) if Choice(RATIO)(key)]
OTHERS = [key for key in range(1, 100) if not Choice(RATIO)(key)]
FOLLOWED, PASSED_BY, FAILING = CHOSEN[0], OTHERS[0], OTHERS[1]
TELEMETRY = f"trace_ratio = {RATIO}\n"
CLAIM = '[close]\naction = "claim"\n[close.claim]\nurl = "{url}"\nattempts = 2\n'
UPDATE = "[close]\nattempts = 2\n"
REFUSES = f"""
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
 $$BEGIN IF NEW.id = {FAILING} AND NEW.status = 'expired' THEN RAISE 'no'; END IF; RETURN NEW; END$$;
CREATE TRIGGER refuse BEFORE UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION refuse();
"""


class Span(NamedTuple):
    name: str
    trace: str
    """As an Idempotency-Key has it."""
    id: bytes
    parent: bytes
    failed: bool
    service: str
    told: dict[str, Any]
    began_ns: int
    ended_ns: int


class Collector:
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.url = ""

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            about = {one.key: one.value.string_value for one in resource.resource.attributes}
            for scope in resource.scope_spans:
                for span in scope.spans:
                    told = {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}
                    self.spans.append(
                        Span(
                            span.name, str(uuid.UUID(bytes=span.trace_id)), span.span_id, span.parent_span_id,
                            span.status.code == span.status.STATUS_CODE_ERROR, about["service.name"], told,
                            span.start_time_unix_nano, span.end_time_unix_nano,
                        )
                    )  # fmt: skip

    def of(self, key: int) -> dict[str, Span]:
        """The last span of each name, of one order."""
        traces = {span.trace for span in self.spans if span.told.get("cdcwatch.key") == str(key)}
        return {span.name: span for span in self.spans if span.trace in traces}

    @contextmanager
    def serving(self) -> Iterator[Collector]:
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                assert self.path == "/v1/traces"
                collector.take(gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body)
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nobody wants a line a request."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


@pytest.mark.parametrize("action", ["update", "claim"])
def test_a_trace_leads_from_the_commit_to_the_close_and_failures_have_one_always(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path, action: str
) -> None:
    with (
        Collector().serving() as collector,
        Endpoint().serving() as endpoint,
        World(
            database,
            kafka.bootstrap_servers,
            topic,
            tmp_path,
            CLAIM.format(url=endpoint.url) if action == "claim" else UPDATE,
        ) as world,
    ):
        endpoint.answer = lambda request: Answer(422 if request.order == str(FAILING) else 200)
        text = world.configuration.read_text()
        assert "[telemetry]\n" in text
        world.configuration.write_text(text.replace("[telemetry]\n", f"[telemetry]\n{TELEMETRY}"))
        if action == "claim":
            make_claims(world.connection)
        world.install()
        world.connection.execute(REFUSES)
        environment = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
            "OTEL_BSP_SCHEDULE_DELAY": "100",
        }
        with world.running(environment=environment):
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT unnest(%s::bigint[]), clock_timestamp() + interval '0.3 s'",
                [[FOLLOWED, PASSED_BY, FAILING]],
            )
            closed = "SELECT count(*) FROM orders WHERE status = 'expired'"
            wait_until(lambda: world.scalar(closed) == 2, 60, "two are closed")
            wait_until(lambda: "close order" in collector.of(FOLLOWED), 60, "the close was told")
            failed = "call" if action == "claim" else "given up"
            wait_until(lambda: failed in collector.of(FAILING), 60, "the failure was told")
        deadline = world.scalar(f"SELECT expires_at::text FROM orders WHERE id = {FOLLOWED}")
    assert collector.of(PASSED_BY) == {}
    assert {span.service for span in collector.spans} == {"cdcwatch"}
    followed = collector.of(FOLLOWED)
    names = {"deadline.scheduled", "close order", "UPDATE public.orders"}
    assert set(followed) == names | ({"claim order", "call"} if action == "claim" else set())
    root, close = followed["deadline.scheduled"], followed["close order"]
    assert root.parent == b""
    assert {
        span.parent for span in followed.values() if span.name not in {"deadline.scheduled", "UPDATE public.orders"}
    } == {root.id}
    assert followed["UPDATE public.orders"].parent == close.id
    assert root.told["messaging.destination.name"] == topic
    assert root.began_ns <= root.ended_ns
    assert close.began_ns <= close.ended_ns
    identity = trace_identity("public.orders", FOLLOWED, parse_instant(str(deadline)))
    assert uuid.UUID(root.trace).int == identity.trace_id
    failing = collector.of(FAILING)
    assert "deadline.scheduled" not in failing
    assert failing[failed].failed
    if action == "claim":
        (request,) = [one for one in endpoint.requests if one.order == str(FOLLOWED)]
        assert request.headers["traceparent"] == f"00-{request.key.replace('-', '')}-{followed['call'].id.hex()}-01"
        assert request.key == root.trace
        assert all("traceparent" not in one.headers for one in endpoint.requests if one.order != str(FOLLOWED))
    else:
        assert failing["close order"].failed
