"""When closing says of itself that it does not work."""

from __future__ import annotations

import pytest

from cdcwatch.close.workers import WorkersHealth
from cdcwatch.pipeline.closing import is_stuck

S = 1_000_000


@pytest.mark.parametrize(
    ("waiting_since_us", "last_answer_us", "last_progress_us", "overdue_us", "stuck"),
    [
        pytest.param(None, 0, 99 * S, 0, False, id="idle: nothing is due"),
        pytest.param(94 * S, 93 * S, 99 * S, 0, True, id="one order in flight, unanswered, the others idle"),
        pytest.param(94 * S, 97 * S, 97 * S, 60 * S, False, id="a long batch while others close"),
        pytest.param(96 * S, 0, 96 * S, 60 * S, False, id="a batch just begun"),
        pytest.param(None, 0, 94 * S, 6 * S, True, id="overdue, and nobody takes it"),
        pytest.param(None, 0, 94 * S, 4 * S, False, id="hardly overdue"),
        pytest.param(None, 0, 99 * S, 60 * S, False, id="overdue a moment ago by its deadline, workers alive"),
    ],
)
def test_stuck(waiting_since_us, last_answer_us, last_progress_us, overdue_us, stuck):
    health = WorkersHealth(
        workers=4,
        connected=4,
        last_progress_monotonic_us=last_progress_us,
        last_answer_monotonic_us=last_answer_us,
        waiting_since_monotonic_us=waiting_since_us,
        last_error="",
    )
    assert is_stuck(health, overdue_us, 100 * S) is stuck
