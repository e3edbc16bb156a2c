"""What explain says of the place where a running service has an order."""

from __future__ import annotations

from typing import Any

import pytest

from cdcwatch.cli import explain
from cdcwatch.inspection.order import OrderRow, OrderStory

NOW_US = 1_000_000_000


def _story(in_s: float, *events: dict[str, Any], is_open: bool = True) -> OrderStory:
    row = OrderRow(NOW_US + round(in_s * 1_000_000), "pending", 0, is_open, NOW_US)
    return OrderStory({"id": "1"}, row, 3600, events, None)


def test_only_an_order_that_the_topic_has_told_of_is_surely_in_the_heap() -> None:
    truncated = {"type": "deadline.cancelled", "subject": "*"}
    assert _story(60, truncated, {"type": "deadline.scheduled", "subject": "1"}).window == (
        "in the heap of a running service"
    )
    doubtful = (
        "in the heap of a running service; one that came only as a dead letter is read from the table when it is due"
    )
    assert _story(60).window == doubtful
    assert _story(60, truncated).window == doubtful
    assert _story(-1).window.startswith("due: closed by the next batch of a running service, unless")


@pytest.mark.parametrize(("is_open", "said"), [(True, "(7.6 s overdue)"), (False, "(7.6 s ago)")])
def test_a_deadline_that_has_passed_is_overdue_only_while_the_order_is_open(
    capsys: pytest.CaptureFixture[str], said: str, *, is_open: bool
) -> None:
    explain._print(_story(-7.6, is_open=is_open))
    assert said in capsys.readouterr().out
