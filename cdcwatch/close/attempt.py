"""What an external action is asked for, and what its answer means. Pure.

Headers: https://www.rfc-editor.org/rfc/rfc9110#field.retry-after,
https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/
"""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from cdcwatch.instant import format_instant
from cdcwatch.table import key_mapping

if TYPE_CHECKING:
    from cdcwatch.table import Key, WatchedTable

_NAMESPACE: Final = uuid.UUID("6f1f5c1e-64b7-5b0a-9d0c-3a2f6a7b5d11")
_ACTION: Final = "close"

FIRST_BACKOFF_S: Final = 1.0
MOST_BACKOFF_S: Final = 300.0
MOST_RETRY_AFTER_S: Final = 86_400.0
"""What asks for a longer wait than a day is a mistake."""
_SPREAD_S: Final = 1.0
_MOST_DOUBLINGS: Final = 32

_HTTP_SUCCESS, _HTTP_REDIRECT, _HTTP_CLIENT, _HTTP_SERVER = 200, 300, 400, 500
_TRIED_AGAIN: Final = frozenset({408, 409, 425, 429})
"""Of 4xx: a timeout, a conflict (the same key is at work just now), too early, too many."""


class Claim(NamedTuple):
    """An order that this process has claimed."""

    key: Key
    claim_id: str
    """The fence: what is recorded under another one is not taken."""
    attempt: int
    """Which one this is, from 1."""
    idempotency_key: str
    deadline_us: int
    """These three as they were when the order was claimed first: a repeated call says the same."""
    status: str | None
    version: int
    taken_us: int
    """Monotonic, before the claim: others may take it over `stuck_after_s` later."""


class Answer(StrEnum):
    """What a call came to."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """It may succeed another time; or nobody knows, as no answer came."""
    REFUSED = "refused"
    """It will not succeed however often it is tried."""


class Called(NamedTuple):
    """A call that is over."""

    answer: Answer
    error: str = ""
    """`HTTP 503`, `no answer (ReadTimeoutError)`: nothing of the order, nothing of the endpoint."""
    retry_after_s: float | None = None


def idempotency_key(table: WatchedTable, key: Key, deadline_us: int) -> str:
    """The same for one order and one deadline, whoever calls, however often, after whatever crash."""
    return str(identity_of(table.qualified_name, key, deadline_us))


def identity_of(table: str, key: Key, deadline_us: int) -> uuid.UUID:
    """Of one order's one deadline; `table` is its qualified name."""
    return uuid.uuid5(_NAMESPACE, orjson.dumps([table, str(key), _ACTION, deadline_us]).decode())


def body_of(table: WatchedTable, claim: Claim) -> bytes:
    """The request's JSON: as the topic writes these values, so that the same bytes come with the same key."""
    version: int | str | None = claim.version
    if table.version is None:
        version = None
    elif table.version.type == "bigint":
        version = str(claim.version)
    return orjson.dumps(
        {
            "table": table.qualified_name,
            "key": key_mapping(claim.key, table.key),
            "deadline": format_instant(claim.deadline_us),
            "status": claim.status,
            "version": version,
        }
    )


def judge(status: int, retry_after: str | None = None, date: str | None = None, *, now: datetime) -> Called:
    """The meaning of an answer by its status, `Retry-After` and `Date`; `now` counts where it has no `Date`."""
    if _HTTP_SUCCESS <= status < _HTTP_REDIRECT:
        return Called(Answer.SUCCEEDED)
    if _HTTP_CLIENT <= status < _HTTP_SERVER and status not in _TRIED_AGAIN:
        return Called(Answer.REFUSED, f"HTTP {status}")
    # By the endpoint's own clock: the wait is then right whatever ours says.
    wait_s = None if retry_after is None else parse_retry_after(retry_after, now=_http_date(date) or now)
    return Called(Answer.FAILED, f"HTTP {status}", wait_s)


def parse_retry_after(value: str, *, now: datetime) -> float | None:
    """Seconds to wait, of either form: `120`, `Wed, 21 Oct 2026 07:28:00 GMT`. None where it is neither."""
    text = value.strip()
    if text.isascii() and text.isdigit():
        # Of a number too long for its digits to matter, `int` itself would complain.
        return min(float(text[:10]), MOST_RETRY_AFTER_S)
    at = _http_date(text)
    return None if at is None else min(max(0.0, (at - now).total_seconds()), MOST_RETRY_AFTER_S)


def delay_s(attempt: int, retry_after_s: float | None, random: float) -> float:
    """The wait after the attempt of that number; `random` is in [0, 1).

    Exponential with full jitter. Never before Retry-After, and spread over a second behind it.
    https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    full_s = min(MOST_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(attempt - 1, _MOST_DOUBLINGS))
    backoff_s = full_s * random
    return backoff_s if retry_after_s is None else max(backoff_s, retry_after_s + _SPREAD_S * random)


def is_over(attempt: int, attempts: int, answer: Answer) -> bool:
    """Whether the order goes to the failed status after this attempt."""
    return answer is Answer.REFUSED or (answer is Answer.FAILED and attempt >= attempts)


def _http_date(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, IndexError, OverflowError):
        return None
    return at.replace(tzinfo=UTC) if at.tzinfo is None else at
