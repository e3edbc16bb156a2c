"""What an answer means, when the next attempt comes, and what makes two calls the same."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import orjson
import pytest
from msgspec.structs import replace

from cdcwatch.close.attempt import (
    MOST_BACKOFF_S,
    MOST_RETRY_AFTER_S,
    Answer,
    Claim,
    body_of,
    delay_s,
    idempotency_key,
    is_over,
    judge,
    parse_retry_after,
)
from cdcwatch.instant import NEGATIVE_INFINITY_US
from cdcwatch.table import Column
from tests.fakes.table import WATCHED

NOW = datetime(2026, 11, 30, 10, 0, 0, tzinfo=UTC)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_every_2xx_is_a_success(status):
    assert judge(status, now=NOW) == (Answer.SUCCEEDED, "", None)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 422, 451])
def test_a_refusal_is_not_tried_again(status):
    called = judge(status, "5", now=NOW)
    assert called == (Answer.REFUSED, f"HTTP {status}", None)
    assert is_over(1, 8, called.answer)


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504, 301, 307])
def test_what_may_pass_is_tried_again_until_the_last_attempt(status):
    called = judge(status, now=NOW)
    assert called == (Answer.FAILED, f"HTTP {status}", None)
    assert [is_over(attempt, 3, called.answer) for attempt in (1, 2, 3, 4)] == [False, False, True, True]


@pytest.mark.parametrize(
    ("value", "wait_s"),
    [
        ("120", 120),
        (" 0 ", 0),
        ("9" * 5000, MOST_RETRY_AFTER_S),
        ("Mon, 30 Nov 2026 10:00:30 GMT", 30),
        ("Monday, 30-Nov-26 10:00:30 GMT", 30),
        ("Mon Nov 30 10:00:30 2026", 30),
        ("Mon, 30 Nov 2026 09:00:00 GMT", 0),
        ("Mon, 30 Nov 2099 09:00:00 GMT", MOST_RETRY_AFTER_S),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
        ("", None),
        ("\u0665", None),
        ("Mon, 30 Nov 2026 25:61:61 GMT", None),
    ],
)
def test_retry_after_has_two_forms(value, wait_s):
    assert parse_retry_after(value, now=NOW) == wait_s


def test_a_date_counts_from_the_endpoints_own_clock():
    at = "Mon, 30 Nov 2026 11:00:30 GMT"
    assert judge(503, at, "Mon, 30 Nov 2026 11:00:00 GMT", now=NOW).retry_after_s == 30
    assert judge(503, at, None, now=NOW + timedelta(minutes=60)).retry_after_s == 30
    assert judge(503, at, "no date", now=NOW + timedelta(minutes=60)).retry_after_s == 30


def test_the_wait_is_jittered_in_full_and_doubles_up_to_a_bound():
    assert [delay_s(attempt, None, 0.5) for attempt in (1, 2, 3, 4)] == [0.5, 1, 2, 4]
    assert delay_s(5, None, 0.0) == 0
    assert delay_s(10_000, None, 1.0) == MOST_BACKOFF_S


def test_nothing_is_tried_before_retry_after():
    assert delay_s(1, 60, 0.0) == 60
    assert 60 < delay_s(1, 60, 0.9) < 61
    assert delay_s(9, 2, 0.9) > 200


def test_the_key_is_of_the_order_and_its_deadline_alone():
    keys = {
        idempotency_key(WATCHED, 1, 5),
        idempotency_key(WATCHED, 2, 5),
        idempotency_key(WATCHED, 1, 6),
        idempotency_key(replace(WATCHED, name="reservations"), 1, 5),
    }
    assert len(keys) == 4
    # Written down: another version of cdcwatch must make the same, or an order could take effect twice.
    assert idempotency_key(WATCHED, 1, 5) == "84b65828-1ba3-57cc-abbb-031e21770766"


def claim(**values):
    return Claim(**{
        "key": 1, "claim_id": "a", "attempt": 1, "idempotency_key": "k", "deadline_us": 0, "status": "pending",
        "version": 3, "taken_us": 0, **values,
    })  # fmt: skip


def test_the_body_says_what_the_order_was_when_it_was_claimed():
    assert orjson.loads(body_of(WATCHED, claim())) == {
        "table": "public.orders",
        "key": {"id": "1"},
        "deadline": "2000-01-01T00:00:00.000000Z",
        "status": "pending",
        "version": 3,
    }
    assert body_of(WATCHED, claim()) == body_of(WATCHED, claim(attempt=2, claim_id="b", taken_us=9))
    wide = replace(WATCHED, version=Column("version", "bigint"), key=(Column("shop", "text"), Column("id", "bigint")))
    told = orjson.loads(body_of(wide, claim(key='["a","7"]', deadline_us=NEGATIVE_INFINITY_US)))
    assert (told["key"], told["version"], told["deadline"]) == ({"shop": "a", "id": "7"}, "3", "-infinity")
    assert orjson.loads(body_of(replace(WATCHED, version=None), claim()))["version"] is None
