"""A schema registry for tests: Apicurio Registry, of its Maven artifact, by its API of Confluent's kind; and a small one.

The small one says what a test wants to hear: that the registry is away, or refuses. It checks nothing.
"""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import threading
import urllib.request
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from cdcwatch.local.binaries import find_java
from cdcwatch.local.jars import bring
from cdcwatch.local.process import OwnedProcess, free_port
from tests.archives import unpack
from tests.services import scratch_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Self

    from tests.certificates import Certificate

VERSION = "2.6.13.Final"  # the last that runs on Java 17
_PATH = "/apis/ccompat/v7"
_JAVA = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


class SchemaRegistry(NamedTuple):
    """Where clients find it."""

    url: str


@contextmanager
def any_registry() -> Iterator[SchemaRegistry]:
    """That of CDCWATCH_TEST_REGISTRY, else one that runs here while the tests do; it keeps all in memory."""
    given = os.environ.get("CDCWATCH_TEST_REGISTRY")
    if given:
        yield SchemaRegistry(given)
        return
    jars = bring(Path(__file__).with_name("registry-pom.xml"), f"apicurio-{VERSION}", what="Apicurio Registry")
    port = free_port()
    with scratch_directory() as directory:
        unpack(jars / f"apicurio-registry-app-{VERSION}-all.tar.gz", directory)
        process = OwnedProcess(
            [
                find_java(), *_JAVA, f"-Dquarkus.http.port={port}", "-Dquarkus.http.host=127.0.0.1",
                "-jar", directory / f"apicurio-registry-app-{VERSION}-runner.jar",
            ],
            user=None, death_signal=signal.SIGKILL, directory=directory, log_path=directory / "log",
            environment=os.environ,
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}{_PATH}"
            process.wait_ready(lambda: _answers(url), timeout_s=180, name="the schema registry")
            yield SchemaRegistry(url)
        finally:
            process.kill_tree()


def _answers(url: str) -> bool:
    with suppress(OSError), urllib.request.urlopen(f"{url}/subjects", timeout=5) as answer:  # noqa: S310
        return bool(answer.status == 200)
    return False


class SmallRegistry:
    """Takes every schema and gives it a number, or answers every request with `status`. Listens until it is closed."""

    def __init__(self, port: int | None = None, *, certificate: Certificate | None = None) -> None:
        self.status, self.asked = 200, 0
        self._schemas: list[tuple[str, str]] = []
        this = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer("")

            def do_POST(self) -> None:
                self._answer(self.rfile.read(int(self.headers["Content-Length"])).decode())

            def _answer(self, body: str) -> None:
                this.asked += 1
                status, said = this._said(self.path, body)
                data = said if isinstance(said, bytes) else json.dumps(said).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", port or 0), Handler)
        self._scheme = "http"
        if certificate is not None:
            context, self._scheme = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), "https"
            context.load_cert_chain(certificate.path, certificate.key)
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"{self._scheme}://127.0.0.1:{self._server.server_port}"

    def _said(self, path: str, body: str) -> tuple[int, Any]:  # noqa: PLR0911  an answer each
        if self.status != 200:
            return self.status, {"error_code": self.status, "message": "as the test wants it"}
        by_id = re.fullmatch(r"/schemas/ids/(\d+).*", path)
        if by_id is not None:
            number = int(by_id[1])
            if 1 <= number <= len(self._schemas):
                return 200, {"schema": self._schemas[number - 1][1]}
            return 404, {"error_code": 40403, "message": "Schema not found"}
        subject = re.match(r"/(?:compatibility/)?subjects/([^/?]+)", path)
        if subject is None:
            return 404, b"<html>nothing here</html>"
        if path.startswith("/compatibility/"):
            return 200, {"is_compatible": True}
        text = str(json.loads(body)["schema"])
        known = (subject[1], text) in self._schemas
        if not known and "/versions" not in path:
            return 404, {"error_code": 40403, "message": "Schema not found"}
        if not known:
            self._schemas.append((subject[1], text))
        number = self._schemas.index((subject[1], text)) + 1
        return 200, {"subject": subject[1], "version": 1, "id": number, "schema": text, "schemaType": "AVRO"}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
