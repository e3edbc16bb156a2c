"""What `/status` says, at looks that the test decides."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from cdcwatch.close.outcome import Outcome
from cdcwatch.close.timekeeping import ClockFigures
from cdcwatch.deadline.event import Event
from cdcwatch.deadline.schedule import Due
from cdcwatch.instant import from_unix_us
from cdcwatch.pipeline.board import Board, Shown
from cdcwatch.pipeline.recent import RecentOutbox
from cdcwatch.pipeline.remedies import remedy_of
from cdcwatch.pipeline.slot_lookout import SlotLookout, SlotSight
from cdcwatch.settings import Settings
from cdcwatch.slot.outlook import WalRate
from cdcwatch.telemetry import Metrics
from tests.unit.pipeline.test_lookouts import progress
from tests.unit.test_metrics import SAFE

NOW_US = from_unix_us(1_800_000_000_000_000)


class _Agenda:
    def __init__(self, *dues: Due) -> None:
        self._dues = list(dues)

    def facts(self) -> Any:
        return SimpleNamespace(
            pending=len(self._dues), retrying=1, overdue_us=0, window_end_us=NOW_US + 3_600_000_000, now_us=NOW_US
        )

    def nearest(self, count: int) -> list[Due]:
        return self._dues[:count]


class _World:
    def __init__(self, *tables: str) -> None:
        self.now_s, self.part = 100.0, {"ready": True, "reason": "streaming", "age_s": 0.1, "waiting_s": 0}
        self.metrics = Metrics(tables)
        self.outbox = RecentOutbox(1 << 20, lambda: None)
        self.slot = SlotLookout(Settings())
        self.board = Board(self.metrics, self, Settings(), outbox=self.outbox, slot=self.slot, now_s=lambda: self.now_s)
        self.board.watches = [  # type: ignore[assignment]
            SimpleNamespace(
                shown=Shown(name, f"{name}.deadlines", "update", _Agenda(Due('["eu","7"]', NOW_US + at, 0)), 2),  # type: ignore[arg-type]
                event_counts={"deadline.expired": 2},
            )
            for at, name in enumerate(tables)
        ]

    def readiness(self) -> dict[str, Any]:
        return {"ready": self.part["ready"], "reader": self.part}

    def look(self, *, shows_keys: bool = True) -> dict[str, Any]:
        told = self.board.status(shows_keys=shows_keys)
        assert json.loads(json.dumps(told, allow_nan=False)) == told
        return told


@pytest.fixture
def world() -> _World:
    return _World("public.orders")


def test_rates_are_between_looks_over_a_few_seconds(world: _World) -> None:
    assert world.look()["rates"] is None
    world.metrics.read(messages=30, changes=20, replayed=0, received_lsn=1)
    world.now_s += 0.1
    assert world.look()["rates"] is None, "too short a time for a rate"
    world.now_s += 1.9
    assert world.look()["rates"]["changes"] == 10
    for _ in range(20):
        world.now_s += 1
        told = world.look()["rates"]
    assert told["changes"] == 0, "what was long ago counts no more"
    world.now_s += 100
    world.metrics.read(messages=0, changes=1000, replayed=0, received_lsn=1)
    assert world.look()["rates"]["changes"] == 10, "after a pause it is over the pause"


def test_closes_are_told_by_table_and_together() -> None:
    world = _World("a.orders", "b.orders")
    world.look()
    world.metrics.of("a.orders").batch_settled({Outcome.CLOSED: 3, Outcome.PAID: 1}, [1000, 2000, 9000], 5)
    world.metrics.of("b.orders").batch_settled({Outcome.CLOSED: 1}, [70_000_000], 5)
    world.now_s += 2
    told = world.look()
    assert told["totals"]["closes_by_outcome"] == {"closed": 4, "paid": 1}
    assert told["totals"]["closed"] == 4
    assert (told["rates"]["closed a.orders"], told["rates"]["closed b.orders"]) == (1.5, 0.5)
    assert [one["closed"] for one in told["tables"]] == [3, 1]
    assert told["lateness"]["recent"] == {"count": 4, "p50_s": 0.009, "p99_s": 70.0, "max_s": 70.0}
    assert [bucket for bucket in told["lateness"]["buckets"] if bucket["count"]] == [
        *({"le_s": bound, "count": 1} for bound in (0.001, 0.0025, 0.01)),
        {"le_s": None, "count": 1},
    ]
    assert told["totals"]["events_by_type"] == {"deadline.expired": 4}
    assert [(one["table"], one["in_s"]) for one in told["next"]] == [("a.orders", 0.0), ("b.orders", 1e-6)]


def test_keys_are_for_whoever_may_see_them_and_nothing_else_of_a_row_is_there(world: _World) -> None:
    value = (
        b'{"source":"cdcwatch:7/shop/public.orders","type":"deadline.expired","subject":"' + b"k" * 500 + b'",'
        b'"time":"T","data":{"status":"a secret","commit_lsn":"0/1A"}}'
    )
    world.outbox.offer([Event(b"k", value)], progress(1))
    told = world.look()
    assert told["next"][0]["key"] == "eu, 7"
    assert told["events"][0] == {
        "type": "deadline.expired",
        "table": "public.orders",
        "key": "k" * 120,
        "lsn": "0/1A",
        "time": "T",
    }
    withheld = world.look(shows_keys=False)
    assert (withheld["next"][0]["key"], withheld["events"][0]["key"]) == (None, None)
    text = json.dumps([told, withheld])
    assert "secret" not in text
    assert "kkk" not in json.dumps(withheld)


def test_alarms_are_parts_the_slot_and_clocks_each_with_a_remedy(world: _World) -> None:
    assert world.look()["alarms"] == []
    assert world.look()["slot"] == {"name": "cdcwatch_orders", "problem": "not looked at yet"}
    world.part = {**world.part, "ready": False, "reason": "waiting for the slot"}
    world.slot.latest = SlotSight(replace(SAFE, lag_bytes=5 << 30), WalRate(1 << 20, None), 99.0)
    world.metrics.clock_measured(ClockFigures(0, 0, None, jumped=False, slept_us=0, alarms=frozenset({"drift"})))
    told = world.look()
    assert [alarm["what"] for alarm in told["alarms"]] == ["reader", "time_to_loss", "lag", "clock drift"]
    assert all(alarm["message"] and alarm["remedy"] for alarm in told["alarms"])
    assert told["alarms"][0]["remedy"].startswith("where another cdcwatch has it")
    assert told["slot"]["seconds_to_loss"] == 512
    assert told["slot"]["age_s"] == 1.0


def test_every_part_has_a_remedy() -> None:
    for part in ("reader", "sink", "subscriber", "closer", "something new"):
        assert remedy_of(part, "a reason that nobody thought of")
    assert "pg_stat_activity" in remedy_of(
        "closer", "shop.orders: an order has been due for 11 s and others hold it locked"
    )
