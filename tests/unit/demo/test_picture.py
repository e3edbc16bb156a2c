"""The demo's screen fits its terminal, and its last lines say what was compared."""

from __future__ import annotations

import io
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace
from rich.console import Console

from cdcwatch.demo.figures import Lateness, SlotPlace, Waiting
from cdcwatch.demo.performance import Frame
from cdcwatch.demo.picture import LivePicture
from cdcwatch.demo.summary import Summary
from cdcwatch.demo.tally import Comparison, ShopCounts, TopicCounts
from cdcwatch.settings import Settings

EVENT = {
    "time": "2026-01-01T00:00:00.000000Z",
    "type": "deadline.scheduled",
    "subject": "1",
    "data": {"deadline": "2026-01-01T00:00:00.000000Z"},
}
WORLD = SimpleNamespace(
    settings=Settings,
    configuration_path=Path("/tmp/cdcwatch-demo-x/demo.toml"),  # noqa: S108  only shown
    dsn="host=127.0.0.1 port=5432 user=postgres dbname=shop",
    page_address="http://127.0.0.1:9464/",
    title="PostgreSQL 15",
)
FRAME = Frame(
    61.0, "open", ShopCounts(placed=2252), TopicCounts(), Waiting(7, 3, 0), Lateness(), SlotPlace(0, 0), [EVENT] * 50
)


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40)])
def test_the_screen_fits_and_names_the_commands(width: int, height: int) -> None:
    console = Console(file=io.StringIO(), width=width, height=height, color_system=None, force_terminal=False)
    console.print(LivePicture(console, cast("Any", WORLD), "cdcwatch")._drawn(FRAME))
    lines = cast("io.StringIO", console.file).getvalue().splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) < width
    text = "\n".join(lines)
    for said in ("cdcwatch top -c ", "cdcwatch events --follow -c ", "2,252", "Ctrl-C"):
        assert said in text
    assert ("cdcwatch pending -c " in text) is (width >= 120)
    # No figure of now stands under "a second" and "in all" without a heading of its own.
    waiting = next(at for at, line in enumerate(lines) if "waiting" in line)
    assert "now" in lines[waiting]
    assert "pending" in lines[waiting + 1]


def test_the_last_lines_say_what_was_compared() -> None:
    topic = TopicCounts()
    stopped = Summary(1.0, {}, Waiting(), Lateness(), ShopCounts(), topic, 0, 0)
    assert "agree  stopped midway: not compared. With --for 20s " in stopped.text()
    assert "0 cancelled (paid, cancelled or deleted)" in stopped.text()
    agreed = replace(stopped, comparisons=(Comparison("a", 1, 1), Comparison("b", 2, 2)))
    assert "agree  yes, in all 2 comparisons: of the table, the topic and what the shop did" in agreed.text()
    differing = replace(stopped, comparisons=(Comparison("a", 1, 1), Comparison("b", 2, 3)))
    assert "agree  NO: 1 of 2 comparisons differ: of the table" in differing.text()
    assert "b: 2 expected, 3 found" in differing.text()
