"""The page of metrics has every metric that the code exports, with its labels, and no other."""

from __future__ import annotations

import re
from math import inf, isnan, nan
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from msgspec.structs import replace
from prometheus_client import generate_latest

from cdcwatch.deadline.rule import CANCELLED, EXPIRED, MOVED, SCHEDULED, Derived
from cdcwatch.handoff.progress import Origin
from cdcwatch.pipeline.service import Service
from cdcwatch.pipeline.slot_lookout import SlotLookout, SlotSight
from cdcwatch.pipeline.sweeper import Sweeper
from cdcwatch.pipeline.watch import Watch
from cdcwatch.pipeline.worker import Worker
from cdcwatch.settings import Settings, TableEntry
from cdcwatch.slot.outlook import WalRate
from cdcwatch.telemetry import Metrics
from tests.unit.test_preflight import SLOT, WATCHED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client import CollectorRegistry

    from cdcwatch.slot.status import SlotStatus

PAGE = Path(__file__).parents[2] / "docs/metrics.md"
_ROW = re.compile(r"^\| `(cdcwatch_\w+)` \|([^|]*)\|[^|]+\|[^|]*\|$", re.MULTILINE)
ORIGIN = Origin("7", 1, "shop", "orders")
ENTRIES = tuple(TableEntry(name=f"{shop}.orders", topic=shop) for shop in ("a", "b"))
SEVERAL = msgspec.structs.replace(Settings(), tables=ENTRIES)


@pytest.fixture
def service() -> Iterator[Callable[[Settings], Service]]:
    made: list[Service] = []

    def make(settings: Settings) -> Service:
        made.append(Service(settings))
        return made[-1]

    yield make
    for one in made:
        one._waker.close()


def exported(registry: CollectorRegistry) -> dict[str, frozenset[str]]:
    """Names as they stand in the page that Prometheus reads, with their labels."""
    ends = {"counter": "_total", "info": "_info"}
    found = {}
    for collector in set(registry._names_to_collectors.values()):
        for metric in collector.describe():
            found[metric.name + ends.get(metric.type, "")] = frozenset(getattr(collector, "_labelnames", ()))
        if hasattr(collector, "_labelvalues") and collector._type == "info":
            found[f"{collector._name}_info"] = frozenset(collector._value)
    return {name: labels for name, labels in found.items() if name.startswith("cdcwatch_")}


def test_the_page_has_every_metric_and_no_other(service: Callable[[Settings], Service]) -> None:
    told = {name: set(re.findall(r"\w+", labels)) for name, labels in _ROW.findall(PAGE.read_text())}
    assert len(told) > 50
    one: dict[str, frozenset[str]] = {}
    for made in (service(Settings()), Worker(Settings()), Sweeper(Settings())):
        one |= exported(made._metrics.registry)
    assert set(one) == set(told)
    assert {name: set(labels) for name, labels in one.items()} == {
        name: labels - {"table"} for name, labels in told.items()
    }
    several = exported(service(SEVERAL)._metrics.registry) | exported(Sweeper(SEVERAL)._metrics.registry)
    assert {name: set(labels) for name, labels in several.items()} == {
        name: labels for name, labels in told.items() if name in several
    }
    assert len(several) > 45


def test_names_end_with_their_unit(service: Callable[[Settings], Service]) -> None:
    units = (
        r"_(seconds|bytes|entries|events|lsn|ppm|partitions|total|info|per_second|ready|active|alarm|at_hand|to_loss)$"
    )
    assert [name for name in exported(service(Settings())._metrics.registry) if not re.search(units, name)] == []


SAFE = replace(SLOT, keep_bytes=1 << 30, safe_wal_bytes=1 << 29, lag_bytes=7, retained_bytes=8, active=True)


@pytest.mark.parametrize(
    ("status", "rate", "seconds"),
    [
        (SAFE, WalRate(1 << 20, None), 512),
        (SAFE, WalRate(None, 1 << 20), 512),
        (SAFE, WalRate(0, 0), inf),
        (SAFE, WalRate(None, None), nan),
        (SLOT, WalRate(1 << 20, None), inf),
        (replace(SAFE, wal_status="lost"), WalRate(0, 0), 0),
    ],
)
def test_the_forecast_tells_never_from_unknown(status: SlotStatus, rate: WalRate, seconds: float) -> None:
    assert SlotSight(status, rate, 0.0).seconds_to_loss == pytest.approx(seconds, nan_ok=True)


def test_what_is_not_known_of_the_slot_is_nan() -> None:
    metrics, lookout = Metrics(), SlotLookout(Settings())
    lookout.export(metrics)
    names = ("lag_bytes", "retained_bytes", "seconds_to_loss", "wal_bytes_per_second", "active")

    def told() -> list[float | None]:
        return [metrics.registry.get_sample_value(f"cdcwatch_slot_{name}") for name in names]

    assert all(value is not None and isnan(value) for value in told())
    lookout.latest = SlotSight(SAFE, WalRate(1 << 20, None), 0.0)
    assert told() == [7, 8, 512, 1 << 20, 1]


def test_events_are_counted_by_type_and_counters_are_counters(service: Callable[[Settings], Service]) -> None:
    made = service(Settings())
    watch = Watch(Settings(), WATCHED, wake=lambda: None)
    made._health.watches = [watch]
    for encoder, kinds in (
        (watch.encoder(ORIGIN, of_stream=True), (SCHEDULED, EXPIRED, EXPIRED)),
        (watch.encoder(ORIGIN), (SCHEDULED,)),
    ):
        for kind in kinds:
            encoder.change(1, Derived(kind, None, None), encoder.stamp(1, 1), 1)
    page = generate_latest(made._metrics.registry).decode()
    assert "# TYPE cdcwatch_events_total counter" in page
    for kind, count in ((SCHEDULED, 2), (EXPIRED, 2), (MOVED, 0), (CANCELLED, 0)):
        assert f'\ncdcwatch_events_total{{type="{kind}"}} {count}.0\n' in page
    assert "\ncdcwatch_reader_reconnects_total 0.0\n" in page
    assert '\ncdcwatch_build_info{python="' in page
