"""The HTTP port: it only reads, and nobody can hold it up."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import select
import socket
from typing import TYPE_CHECKING

import pytest

from cdcwatch import endpoint
from cdcwatch.endpoint import MOST_CLIENTS, MOST_REQUEST_BYTES, TelemetryServer
from cdcwatch.errors import ConfigurationError
from cdcwatch.settings import TelemetrySettings
from cdcwatch.telemetry import Metrics
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Vitals:
    ready = True
    ended: tuple[str, ...] = ()

    def readiness(self):
        return {"ready": self.ready, "reader": {"reason": "why"}}

    def liveness(self):
        return list(self.ended)


class Board:
    def status(self, *, shows_keys):
        return {"shows_keys": shows_keys}


@pytest.fixture(scope="module")
def vitals() -> Vitals:
    return Vitals()


@pytest.fixture(scope="module")
def port(vitals: Vitals) -> Iterator[int]:
    server = TelemetryServer("127.0.0.1:0", Metrics(), vitals, Board())
    yield server.port
    server.close()


def ask(port: int, request: str | bytes) -> tuple[int, dict[str, str], str]:
    """Status, headers and body of the answer to a raw request; 0 where the connection just ends."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request.encode() if isinstance(request, str) else request)
        answer = b""
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(65536):
                answer += piece
    head, _, body = answer.decode(errors="replace").partition("\r\n\r\n")
    line, *fields = head.split("\r\n")
    return int(line.split()[1]) if line else 0, dict(field.split(": ", 1) for field in fields), body


def get(port: int, path: str, method: str = "GET") -> tuple[int, dict[str, str], str]:
    return ask(port, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n")


def test_the_pages(port: int, vitals: Vitals) -> None:
    status, headers, body = get(port, "/metrics")
    assert (status, "cdcwatch_closes_total" in body) == (200, True)
    assert headers["Server"].strip() == "cdcwatch"
    assert get(port, "/metrics?name=x")[0] == 200
    assert get(port, "/healthz")[::2] == (200, "ok\n")
    assert json.loads(get(port, "/readyz")[2]) == vitals.readiness()
    vitals.ready, vitals.ended = False, ("reader",)
    assert get(port, "/readyz")[0] == 503
    assert get(port, "/healthz")[::2] == (503, "ended: reader\n")
    vitals.ready, vitals.ended = True, ()


@pytest.mark.parametrize(
    ("host", "shown"),
    [
        ("127.0.0.1:9464", True),
        ("localhost", True),
        ("[::1]:80", True),
        ("rebound.example", False),  # a page of that name whose address became ours
        ("10.0.0.1", False),
        ("", False),
        ("[", False),
    ],
)
def test_keys_of_orders_are_for_this_machine_by_its_own_name(port: int, host: str, shown: bool) -> None:
    status, _, body = ask(port, f"GET /status HTTP/1.1\r\nHost: {host}\r\n\r\n")
    assert (status, json.loads(body)) == (200, {"shows_keys": shown})


def test_the_page_and_its_files_allow_nothing_from_elsewhere(port: int) -> None:
    for path, kind in (
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/icon.svg", "image/svg+xml"),
    ):
        status, headers, body = get(port, path)
        assert (status, headers["Content-Type"].partition(";")[0]) == (200, kind)
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert body.strip()
        addresses = set(re.findall(r"https?://[^\s\"'<>)]+", body)) - {"http://www.w3.org/2000/svg"}
        assert addresses == set(), path


def test_head_is_get_without_a_body(port: int) -> None:
    status, headers, body = get(port, "/healthz", "HEAD")
    assert (status, headers["Content-Length"], body) == (200, "3", "")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "X"])
def test_every_other_method_is_refused(port: int, method: str) -> None:
    status, headers, _ = get(port, "/metrics", method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize(
    "path", ["/index.html", "/../etc/passwd", "/metrics/../../etc/passwd", "/%2e%2e/metrics", "/metrics/", "x", "*"]
)
def test_there_is_nothing_but_the_pages(port: int, path: str) -> None:
    status, _, body = get(port, path)
    assert (status, body) == (404, "not found; there are: / /status /metrics /healthz /readyz\n")


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /metrics" + b"x" * MOST_REQUEST_BYTES,
        b"GET /metrics HTTP/1.1\r\n" + b"A: b\r\n" * MOST_REQUEST_BYTES,
    ],
)
def test_a_request_has_an_end(port: int, request_: bytes) -> None:
    # 0: the rest of what we send meets a closed connection, which may swallow the answer.
    assert ask(port, request_)[0] in {431, 0}
    assert get(port, "/healthz")[0] == 200


@pytest.mark.parametrize("request_", [b"\r\n\r\n", b"\xff\xfe\r\n\r\n", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n"])
def test_nonsense_ends_with_an_answer_or_none(port: int, request_: bytes) -> None:
    assert ask(port, request_)[0] in {0, 400, 404, 505}
    assert get(port, "/healthz")[0] == 200


def test_slow_clients_hold_up_nobody_and_are_let_go(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_S", 1.0)
    with contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
            for _ in range(MOST_CLIENTS - 1)
        ]
        for one in slow:
            one.sendall(b"GET /met")
        assert get(port, "/healthz")[0] == 200, "others are served meanwhile"

        def is_let_go() -> bool:
            with contextlib.suppress(OSError):
                slow[0].sendall(b"x")  # a drip doesn't buy more time
            return bool(select.select([slow[0]], [], [], 0)[0])

        wait_until(is_let_go, 20, "the slow client is let go", every_s=0.1)


def test_more_clients_than_places_are_turned_away(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "REQUEST_S", 60.0)
    with contextlib.ExitStack() as stack:
        for _ in range(MOST_CLIENTS):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60)).sendall(b"GET")
        wait_until(lambda: get(port, "/healthz")[0] == 0, 20, "no place is left")
    wait_until(lambda: get(port, "/healthz")[0] == 200, 20, "there are places again")


def test_loopback_is_the_default_and_anything_else_warns(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("cdcwatch"), "propagate", True)
    assert TelemetrySettings().listen.startswith("127.0.0.1:")
    for address in ("127.0.0.2:0", "localhost:0"):
        TelemetryServer(address, Metrics(), Vitals(), Board()).close()
    assert caplog.records == []
    for address in ("0.0.0.0:0", ":0"):
        TelemetryServer(address, Metrics(), Vitals(), Board()).close()
        assert "can be reached from other machines" in caplog.text
        caplog.clear()


def test_what_is_no_address_is_refused() -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        for address in (f"127.0.0.1:{taken.getsockname()[1]}", "127.0.0.1:99999", "no.such.host.invalid:1"):
            with pytest.raises(ConfigurationError, match=r"telemetry\.listen"):
                TelemetryServer(address, Metrics(), Vitals(), Board())
    none = TelemetryServer("", Metrics(), Vitals(), Board())
    assert none.port == 0
    none.close()
