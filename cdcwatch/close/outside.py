"""The endpoint of `close.claim.url`: one POST an attempt, over connections that are kept.

Redirects are not followed, and no proxy of the environment is used: the address is meant as it is written.
https://urllib3.readthedocs.io/en/stable/reference/urllib3.connectionpool.html
"""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import unquote

import urllib3
from urllib3.util import make_headers, parse_url

from cdcwatch import __version__
from cdcwatch.close.attempt import Answer, Called, judge
from cdcwatch.errors import ConfigurationError, UnavailableError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cdcwatch.close.attempt import Claim

_LONGEST_BODY: Final = 65_536
"""What is longer is not read: a new connection costs less."""
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


class Outside(Protocol):
    """What is called. Called by several threads at a time; must not raise."""

    def call(self, claim: Claim, headers: Mapping[str, str] = NO_HEADERS) -> Called:
        """One attempt of one order; with these headers too."""

    def close(self) -> None:
        """Lets the connections go."""


class HttpOutside:
    """A pool of connections to one endpoint."""

    def __init__(self, url: str, body_of: Callable[[Claim], bytes], *, connections: int, timeout_s: float) -> None:
        """`body_of` makes a request's body. Does not connect. ConfigurationError where the address can't be read."""
        try:
            parsed = parse_url(url)
        except urllib3.exceptions.LocationParseError:
            parsed = None
        if parsed is None or parsed.host is None or parsed.scheme not in {"http", "https"}:
            raise ConfigurationError("close.claim.url can't be read", remedy='write it as "https://shop.example/close"')
        self._body_of, self._target = body_of, parsed.request_uri
        self.scheme, self.host = parsed.scheme, parsed.host
        self._headers = {"content-type": "application/json", "user-agent": f"cdcwatch/{__version__}"}
        if parsed.auth:
            self._headers.update(make_headers(basic_auth=unquote(parsed.auth)))
        kind = urllib3.HTTPSConnectionPool if parsed.scheme == "https" else urllib3.HTTPConnectionPool
        self._pool = kind(
            parsed.host.strip("[]"),
            parsed.port,
            timeout=urllib3.Timeout(total=timeout_s),
            maxsize=connections,
            block=True,
            retries=False,
        )

    def call(self, claim: Claim, headers: Mapping[str, str] = NO_HEADERS) -> Called:
        """One POST with the order's Idempotency-Key; no answer within the time limit is a failed attempt."""
        sent = {**self._headers, **headers, "idempotency-key": claim.idempotency_key}
        try:
            answer = self._pool.urlopen(
                "POST",
                self._target,
                body=self._body_of(claim),
                headers=sent,
                redirect=False,
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            # The message may name the address with what is in it; its kind says enough.
            return Called(Answer.FAILED, f"no answer ({type(error).__name__})")
        try:
            return judge(
                answer.status, answer.headers.get("retry-after"), answer.headers.get("date"), now=datetime.now(UTC)
            )
        finally:
            _let_go(answer)

    def probe(self) -> None:
        """Connects, and says nothing: UnavailableError where that fails."""
        connection = self._pool._new_conn()  # noqa: SLF001 - a connection as the pool makes them
        try:
            connection.connect()
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise UnavailableError(
                f"{self.scheme}://{self.host} can't be reached ({type(error).__name__})",
                remedy="see that close.claim.url is right and its server up: orders are tried again until then",
            ) from None
        finally:
            connection.close()

    def close(self) -> None:
        """Lets the connections go."""
        self._pool.close()


def _let_go(answer: urllib3.BaseHTTPResponse) -> None:
    """Back to the pool; where its body is long or breaks off, closed first."""
    is_read = False
    with contextlib.suppress(urllib3.exceptions.HTTPError, OSError, ValueError):
        is_read = len(answer.read(_LONGEST_BODY)) < _LONGEST_BODY
    with contextlib.suppress(urllib3.exceptions.HTTPError, OSError, ValueError):
        if not is_read:
            answer.close()
        answer.release_conn()
