"""A tiny HTTP endpoint that takes effect once a key, as an idempotent one does, and counts what it was asked for."""

from __future__ import annotations

import json
import threading
from collections import Counter
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Request(NamedTuple):
    key: str
    """The Idempotency-Key."""
    body: dict[str, Any]
    headers: dict[str, str]

    @property
    def order(self) -> str:
        return "|".join(self.body["key"].values())


class Answer(NamedTuple):
    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b"{}"


class Endpoint:
    """What it was asked for, and which effects that had."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.requests: list[Request] = []
        self.effects: Counter[str] = Counter()
        """Idempotency-Key to how often it took effect: one, whoever asks again."""
        self.orders: dict[str, str] = {}
        """Idempotency-Key to the order that came first with it."""
        self.connections = 0
        self.answer: Callable[[Request], Answer] = lambda _: Answer()
        """May wait; what is no 2xx has no effect."""
        self.url = ""

    def take(self, request: Request) -> Answer:
        with self.lock:
            self.requests.append(request)
        answer = self.answer(request)
        with self.lock:
            if 200 <= answer.status < 300 and request.key not in self.orders:
                self.orders[request.key] = request.order
                self.effects[request.order] += 1
        return answer

    @contextmanager
    def serving(self) -> Iterator[Endpoint]:
        """Listens at `url` until the end of the block."""
        endpoint = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True
            wbufsize = -1

            def setup(self) -> None:
                super().setup()
                with endpoint.lock:
                    endpoint.connections += 1

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers["content-length"]))
                headers = {name.lower(): value for name, value in self.headers.items()}
                answer = endpoint.take(Request(headers["idempotency-key"], json.loads(raw), headers))
                self.send_response(answer.status)
                for name, value in {**answer.headers, "content-length": str(len(answer.body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, *_: object) -> None:
                pass  # clients are killed here

        server = Server(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        self.url = f"http://127.0.0.1:{server.server_port}/close?shop=1"
        try:
            yield self
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
