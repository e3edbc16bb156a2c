"""docs/consume.md has every metric of a consumer, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from cdcwatch.consume.metrics import GroupMetrics

PAGE = Path(__file__).parents[3] / "docs/consume.md"


def test_the_page_has_what_is_exported() -> None:
    registry = CollectorRegistry()
    metrics = [GroupMetrics(group, registry) for group in ("one", "two")]  # two consumers may share a registry
    ends = {"counter": "_total"}
    exported = {metric.name + ends.get(metric.type, "") for metric in registry.collect()}
    assert set(re.findall(r"`(cdcwatch_consume_\w+)`", PAGE.read_text())) == exported
    metrics[0].count("total", 3)
    metrics[0].count("duplicates")
    metrics[1].level_is_up("redis", is_up=False)
    assert registry.get_sample_value("cdcwatch_consume_events_total", {"group": "one"}) == 3
    assert registry.get_sample_value("cdcwatch_consume_duplicate_ratio", {"group": "one"}) == 1 / 3
    assert registry.get_sample_value("cdcwatch_consume_duplicate_ratio", {"group": "two"}) == 0
    assert registry.get_sample_value("cdcwatch_consume_store_up", {"group": "two", "store": "redis"}) == 0
    assert metrics[1].stats().away == ("redis",)
