"""How far work has come: figures, and where they are told."""

from __future__ import annotations

import io
import logging
import threading

import pytest
from rich.console import Console
from rich.progress import Progress

from cdcwatch import headway
from cdcwatch.cli.bars import _Bars
from cdcwatch.headway import LogTeller, Stage, is_watched, shown_by, stage
from tests.waiting import wait_until


class _Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("unit", "total", "done", "text"),
    [
        ("rows", 500_000, 120_000, "it: 120,000 of about 500,000 rows, 12,000/s, 32 s left"),
        ("events", None, 5, "it: 5 events, 0/s"),
        ("bytes", 100 << 20, 10 << 20, "it: 10.0 of about 100.0 MB, 1.0 MB/s, 2 min left"),
        ("rows", 10, 20, "it: 20 of about 20 rows, 2/s, 0 s left"),
        ("rows", 10, 0, "it: 0 of about 10 rows, 0/s"),
    ],
)
def test_what_a_line_says(unit: str, total: float | None, done: float, text: str) -> None:
    clock = _Clock()
    made = Stage("it", unit=unit, total=lambda: total, now_s=clock)
    clock.now_s += 10
    made.done += done
    assert made.text() == text


def test_the_log_has_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(logging.getLogger("cdcwatch"), "propagate", True)
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(LogTeller, "every_s", 0.01)
    assert headway.LOG_S >= 10
    with stage("reading it", unit="rows", total=7) as reading:
        reading.done += 3
        wait_until(lambda: caplog.records, 20, "a line")
    assert caplog.records[0].getMessage().startswith("reading it: 3 of about 7 rows, ")
    assert caplog.records[0].count == 3  # type: ignore[attr-defined]
    assert not is_watched()
    assert not any(thread.name == "headway" for thread in threading.enumerate())


def test_bars_show_rate_total_and_what_was_asked_for() -> None:
    console = Console(file=io.StringIO(), width=120, force_terminal=True, color_system=None)
    with Progress("{task.description} {task.percentage:.0f}% {task.fields[figures]}", console=console) as progress:
        bars = _Bars(progress)
        with shown_by(bars):
            assert is_watched()
            asked = [1.0]
            with stage("closing", unit="orders", total=lambda: 4, asked=lambda: asked[0]):
                wait_until(lambda: "closing 25% 1 of 4 orders, " in _drawn(progress, console), 20, "a bar")
                asked[0] = 4.0
        (task,) = progress.tasks
        assert (task.completed, task.total) == (4, 4), "the last of it is shown, however quick it was"
    assert not is_watched()


def _drawn(progress: Progress, console: Console) -> str:
    progress.refresh()
    return console.file.getvalue()  # type: ignore[attr-defined]
