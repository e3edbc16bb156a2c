from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from cdcwatch.slot.outlook import Thresholds, WalRate, alarms, time_to_loss_s
from cdcwatch.slot.rates import WalSample, rate_between
from tests.unit.test_preflight import SLOT

MB = 1 << 20
SAFE = replace(SLOT, safe_wal_bytes=1000 * MB, keep_bytes=2000 * MB, active=True, owner_pid=7)


@pytest.mark.parametrize(
    ("changes", "now", "average", "seconds"),
    [
        ({}, 10 * MB, None, 100),
        ({}, 1 * MB, 10 * MB, 100),
        ({}, None, 10 * MB, 100),
        ({}, 0.0, 0.0, None),
        ({}, None, None, None),
        ({"safe_wal_bytes": None}, 10 * MB, None, None),
        ({"safe_wal_bytes": -5 * MB}, 10 * MB, None, 0),
        ({"wal_status": "lost"}, 10 * MB, None, 0),
    ],
)
def test_the_forecast_takes_the_worse_rate(
    changes: dict[str, Any], now: float | None, average: float | None, seconds: float | None
) -> None:
    assert time_to_loss_s(replace(SAFE, **changes), WalRate(now, average)) == seconds


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, []),
        ({"wal_status": "lost"}, ["lost"]),
        ({"invalidation_reason": "idle_timeout", "wal_status": "unreserved"}, ["lost"]),
        ({"wal_status": "unreserved"}, ["wal_status"]),
        ({"safe_wal_bytes": 10 * MB}, ["time_to_loss"]),
        ({"lag_bytes": 1 << 31}, ["lag"]),
        ({"retained_bytes": 1 << 40}, ["retained"]),
        ({"catalog_xmin_age": 300_000_000}, ["xmin_age"]),
        (
            {"lag_bytes": 1 << 31, "retained_bytes": 1 << 40, "wal_status": "unreserved"},
            ["wal_status", "retained", "lag"],
        ),
    ],
)
def test_each_threshold_has_its_alarm(changes: dict[str, Any], what: list[str]) -> None:
    found = alarms(replace(SAFE, **changes), WalRate(1000.0, None), Thresholds())
    assert [alarm.what for alarm in found] == what
    assert all(alarm.remedy for alarm in found)


def test_an_idle_slot_alarms_only_where_a_reader_is_wanted() -> None:
    idle = replace(SAFE, active=False)
    assert alarms(idle, WalRate(None, None), Thresholds()) == []
    assert [alarm.what for alarm in alarms(idle, WalRate(None, None), Thresholds(needs_reader=True))] == ["inactive"]


def test_a_rate_is_between_two_samples() -> None:
    assert rate_between(WalSample(1000, 1.0), WalSample(3000, 3.0)) == 1000
    assert rate_between(None, WalSample(3000, 3.0)) is None
    assert rate_between(WalSample(1000, 3.0), WalSample(3000, 3.0)) is None
    assert rate_between(WalSample(5000, 1.0), WalSample(3000, 3.0)) == 0, "a server that went back to a backup"
