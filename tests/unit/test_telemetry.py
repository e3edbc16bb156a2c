"""What the log and the metrics say of rows that can't be understood."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, ClassVar

from prometheus_client import generate_latest

from cdcwatch import telemetry
from cdcwatch.telemetry import Metrics

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest


class _Later:
    """A timer that goes off when the test says so."""

    made: ClassVar[list[_Later]] = []

    def __init__(self, interval_s: float, call: Callable[[], None]) -> None:
        self.interval_s, self.call, self.daemon, self.is_cancelled = interval_s, call, False, False

    def start(self) -> None:
        self.made.append(self)

    def cancel(self) -> None:
        self.is_cancelled = True


def test_rows_that_cannot_be_understood_are_all_counted_and_all_logged_once_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = 100.0
    monkeypatch.setattr(telemetry.time, "monotonic", lambda: now_s)
    monkeypatch.setattr(telemetry.threading, "Timer", _Later)
    monkeypatch.setattr(_Later, "made", [])
    monkeypatch.setattr(logging.getLogger("cdcwatch"), "propagate", True)
    metrics = Metrics()

    def seen(at_s: float, count: int) -> None:
        nonlocal now_s
        now_s = at_s
        metrics.not_understood(count=count, last=f"id-{count}: why")

    for at_s, count in ((100.0, 1), (100.25, 5), (100.5, 2)):
        seen(at_s, count)
    (timer,) = _Later.made
    assert (timer.interval_s, timer.daemon) == (0.75, True)
    now_s = 101.0
    timer.call()  # nothing comes any more: the second's end tells it
    seen(101.5, 3)
    metrics.log_dead_letters()  # the service ends
    assert _Later.made[1].is_cancelled
    metrics.log_dead_letters()
    seen(103.0, 4)
    assert b'\ncdcwatch_dead_letters_total{about="row"} 15.0\n' in generate_latest(metrics.registry)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "1 row could not be understood, the last is id-1: why",
        "7 rows could not be understood, the last is id-2: why",
        "3 rows could not be understood, the last is id-3: why",
        "4 rows could not be understood, the last is id-4: why",
    ]
