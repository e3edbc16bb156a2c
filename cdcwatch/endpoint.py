"""The HTTP port: status page, `/status`, `/metrics`, `/healthz`, `/readyz`. It reads only; no client can hold it up.

A request has so many bytes and so many seconds in all, whatever it drips; a connection carries one.
https://docs.python.org/3/library/http.server.html
"""

from __future__ import annotations

import ipaddress
import json
import logging
import socket
import socketserver
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib import resources
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias
from urllib.parse import urlsplit

from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from cdcwatch.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cdcwatch.telemetry import Metrics

MOST_REQUEST_BYTES: Final = 8192
REQUEST_S: Final = 5.0
"""For the whole request, and again for the whole answer."""
MOST_CLIENTS: Final = 32
_TOO_LONG: Final = 431
_TEXT: Final = "text/plain; charset=utf-8"

_Page: TypeAlias = "Callable[[bool], tuple[int, str, bytes]]"
"""Status, content type and body, by whether the client may see keys of orders."""
_FILES: Final = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
_NOT_FOUND: Final = b"not found; there are: / /status /metrics /healthz /readyz\n"
_HEADERS: Final = {
    # Nothing but what this port serves, and nobody may frame it. https://www.w3.org/TR/CSP3/
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self';"
    " connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}

_log = logging.getLogger(__name__)


class Vitals(Protocol):
    """What the port tells beside the metrics. Called from threads of its own."""

    def readiness(self) -> dict[str, Any]:
        """`ready`, and why not."""
        ...

    def liveness(self) -> list[str]:
        """Threads that have ended and should not have."""
        ...


class StatusTeller(Protocol):
    """What `/status` tells. Called from threads of its own."""

    def status(self, *, shows_keys: bool) -> dict[str, Any]:
        """The document."""
        ...


class TelemetryServer:
    """Serves on threads of its own. `listen` empty: no port."""

    def __init__(self, listen: str, metrics: Metrics, vitals: Vitals, board: StatusTeller) -> None:
        """ConfigurationError when the address can't be listened on. Warns of one that others can reach."""
        self._server: _Server | None = None
        if not listen:
            return
        host, _, port = listen.rpartition(":")
        try:
            self._server = _Server(host.strip("[]") or "0.0.0.0", int(port), _pages(metrics, vitals, board))  # noqa: S104
        except (OSError, OverflowError) as error:
            said = error.strerror if isinstance(error, OSError) else "there is no such port"
            raise ConfigurationError(
                f"telemetry.listen {listen}: {said}",
                remedy="is another cdcwatch run on this machine? Choose a free address"
                " (CDCWATCH_TELEMETRY__LISTEN=127.0.0.1:9465), or an empty text for none",
            ) from None
        if not self._server.is_loopback:
            _log.warning(
                "telemetry.listen %s can be reached from other machines, and asks nobody who they are:"
                " see docs/security.md",
                listen,
            )
        threading.Thread(target=self._server.serve_forever, name="telemetry", daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens; 0 without one."""
        return int(self._server.server_address[1]) if self._server is not None else 0

    def close(self) -> None:
        """Stops listening."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()


class _Server(socketserver.ThreadingMixIn, HTTPServer):
    daemon_threads = True
    request_queue_size = MOST_CLIENTS

    def __init__(self, host: str, port: int, pages: Mapping[str, _Page]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._places = threading.BoundedSemaphore(MOST_CLIENTS)
        self.pages = pages
        super().__init__((host, port), _Handler)

    @property
    def is_loopback(self) -> bool:
        return _is_loopback(str(self.server_address[0]))

    def server_bind(self) -> None:
        """Without HTTPServer's question to the name servers."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """A client that went away is no event, and a traceback on stderr no log."""
        _log.debug("a request to the telemetry port broke off", exc_info=True)


def _pages(metrics: Metrics, vitals: Vitals, board: StatusTeller) -> dict[str, _Page]:
    def readyz(_: bool) -> tuple[int, str, bytes]:
        state = vitals.readiness()
        return (200 if state["ready"] else 503), "application/json", json.dumps(state).encode()

    def healthz(_: bool) -> tuple[int, str, bytes]:
        ended = vitals.liveness()
        return (503, _TEXT, f"ended: {', '.join(ended)}\n".encode()) if ended else (200, _TEXT, b"ok\n")

    def status(shows_keys: bool) -> tuple[int, str, bytes]:
        return 200, "application/json", json.dumps(board.status(shows_keys=shows_keys)).encode()

    def file(name: str, kind: str) -> _Page:
        body = resources.files("cdcwatch").joinpath("page", name).read_bytes()
        return lambda _: (200, kind, body)

    return {
        **{path: file(*one) for path, one in _FILES.items()},
        "/status": status,
        "/metrics": lambda _: (200, CONTENT_TYPE_LATEST, generate_latest(metrics.registry)),
        "/healthz": healthz,
        "/readyz": readyz,
    }


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version, default_request_version = "cdcwatch", "", "HTTP/1.0"
    error_content_type, error_message_format = _TEXT, "%(code)d %(message)s\n"

    def handle(self) -> None:
        head = self._head()
        if head is None:
            return
        self.connection.settimeout(REQUEST_S)  # of sendall: for all of it
        self.rfile = BytesIO(head)
        self.handle_one_request()

    def _head(self) -> bytes | None:
        """The request up to its empty line; None when it didn't come in time or is too long."""
        give_up_s, head = time.monotonic() + REQUEST_S, b""
        while b"\r\n\r\n" not in head and b"\n\n" not in head:
            left_s = give_up_s - time.monotonic()
            if left_s <= 0:
                return None
            self.connection.settimeout(left_s)
            try:
                piece = self.connection.recv(4096)
            except OSError:
                return None
            head += piece
            if not piece:
                return None
            if len(head) > MOST_REQUEST_BYTES:
                self.raw_requestline, self.requestline, self.request_version = b"", "", "HTTP/1.0"
                self.command = ""
                self.send_error(_TOO_LONG)
                return None
        return head

    def do_GET(self) -> None:
        page = self._pages().get(self.path.partition("?")[0])
        status, kind, body = page(self._shows_keys()) if page else (404, _TEXT, _NOT_FOUND)
        self._answer(status, kind, body)

    do_HEAD = do_GET  # noqa: N815  the server's own spelling

    def _shows_keys(self) -> bool:
        """To this machine alone, and not to a page of another name that a browser here was led to."""
        try:
            host = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        except ValueError:
            return False
        return _is_loopback(str(self.client_address[0])) and (host == "localhost" or _is_loopback(host))

    def _pages(self) -> Mapping[str, _Page]:
        server = self.server
        return server.pages if isinstance(server, _Server) else {}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):
            return self._refuse
        raise AttributeError(name)

    def _refuse(self) -> None:
        self._answer(405, _TEXT, b"this port only reads: GET or HEAD\n", {"Allow": "GET, HEAD"})

    def _answer(self, status: int, kind: str, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {
            "Content-Type": kind,
            "Content-Length": str(len(body)),
            **_HEADERS,
            **(headers or {}),
        }.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nobody wants a line a scrape."""


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False
