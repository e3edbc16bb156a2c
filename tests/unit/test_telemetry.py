"""What the log and the metrics say of rows that can't be understood."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from prometheus_client import generate_latest

from cdcwatch import telemetry
from cdcwatch.telemetry import Metrics

if TYPE_CHECKING:
    import pytest


def test_rows_that_cannot_be_understood_are_all_counted_and_logged_once_a_second(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = iter([100.0, 100.1, 100.9, 101.0, 101.5])
    monkeypatch.setattr(telemetry.time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(logging.getLogger("cdcwatch"), "propagate", True)
    metrics = Metrics()
    for count in (1, 5, 1, 2, 1):
        metrics.not_understood(count=count, last=f"id-{count}: why")
    assert b"\ncdcwatch_dead_letters_total 10.0\n" in generate_latest(metrics.registry)
    assert [record.getMessage().partition(";")[0] for record in caplog.records] == [
        "1 rows could not be understood, the last is id-1: why",
        "8 rows could not be understood, the last is id-2: why",
    ]
