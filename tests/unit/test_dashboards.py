"""Alert rules and dashboard ask for metrics, labels and sections of the runbook that there are."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import promql_parser
import pytest
import yaml

from cdcwatch.pipeline.service import Service
from cdcwatch.pipeline.sweeper import Sweeper
from cdcwatch.pipeline.worker import Worker
from cdcwatch.settings import Settings, TableEntry
from tests.pages import blocks

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

    from tests.pages import Block

ROOT = Path(__file__).parents[2]
RULES = yaml.safe_load((ROOT / "docker/prometheus/alerts.yml").read_text())
DASHBOARD = json.loads((ROOT / "docker/grafana/dashboards/cdcwatch.json").read_text())
PANELS = DASHBOARD["panels"]
# Of Prometheus itself, on every series.
SCRAPED = {"job", "instance"}


def _exported(registry: CollectorRegistry) -> dict[str, set[str]]:
    """What a scrape can show: every sample's name with its labels."""
    found: dict[str, set[str]] = {}
    for collector, names in registry._collector_to_names.items():
        labels = set(getattr(collector, "_labelnames", ()))
        for name in names:
            if not name.endswith("_created"):
                found[name] = labels | ({"le"} if name.endswith("_bucket") else set())
    return found


@pytest.fixture(scope="module")
def series() -> dict[str, set[str]]:
    """Of every role, with one table and with several."""
    several = Settings(tables=(TableEntry(name="a.orders", topic="a"), TableEntry(name="b.orders", topic="b")))
    services = [Service(settings) for settings in (Settings(), several)]
    registries = [one._metrics.registry for one in (*services, Worker(Settings()), Sweeper(Settings()))]
    for service in services:
        service._waker.close()
    found: dict[str, set[str]] = {"up": set()}
    for registry in registries:
        for name, labels in _exported(registry).items():
            found[name] = found.get(name, set()) | labels
    assert {"cdcwatch_ready", "cdcwatch_closes_total", "cdcwatch_lateness_seconds_bucket"} <= set(found)
    return found


def _selectors(node: Any) -> list[promql_parser.VectorSelector]:
    """Every selector in a parsed query."""
    if isinstance(node, promql_parser.VectorSelector):
        return [node]
    found = []
    for name in ("expr", "lhs", "rhs", "args", "param", "vector_selector", "vs"):
        below = getattr(node, name, None)
        for one in below if isinstance(below, list) else [below]:
            if one is not None:
                found += _selectors(one)
    return found


def _grouped(query: str) -> set[str]:
    return {label.strip() for part in re.findall(r"\bby \(([^)]*)\)", query) for label in part.split(",")}


def _check(query: str, series: dict[str, set[str]], shown: str = "") -> None:
    """Every metric is exported, every label asked for, grouped by or `shown` is one of its."""
    selectors = _selectors(promql_parser.parse(query))
    assert len(selectors) == len(re.findall(r"\b(?:cdcwatch_\w+|up)\b", query)), query
    known: set[str] = set()
    for selector in selectors:
        assert selector.name in series, f"no metric {selector.name}: {query}"
        labels = series[selector.name] | SCRAPED
        known |= labels
        for matcher in selector.matchers.matchers:
            assert matcher.name in labels, f"{selector.name} has no label {matcher.name}: {query}"
    assert _grouped(query) <= known, query
    aggregates = re.search(r"\b(?:sum|max|min|avg|count|histogram_quantile)\b", query) is not None
    for label in re.findall(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}", shown):
        assert label in (_grouped(query) if aggregates else known), f"{label} is not there after {query}"


@pytest.mark.parametrize("rule", RULES["groups"][0]["rules"], ids=lambda rule: rule["alert"])
def test_an_alert_can_come_and_says_what_to_do(rule: dict[str, Any], series: dict[str, set[str]]) -> None:
    annotations = rule["annotations"]
    _check(rule["expr"], series, annotations["summary"])
    assert set(annotations) == {"summary", "description", "runbook"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    page, _, anchor = annotations["runbook"].partition("#")
    titles = re.findall(r"^#+ (.*)$", (ROOT / page).read_text(), re.MULTILINE)
    assert anchor in {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}, rule["alert"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_shows_what_is_exported(panel: dict[str, Any], series: dict[str, set[str]]) -> None:
    for target in panel["targets"]:
        query = target["expr"].replace("$__rate_interval", "5m").replace("$job", "cdcwatch")
        _check(query, series, target["legendFormat"])
        assert 'job="cdcwatch"' in query


@pytest.mark.parametrize("block", [one for one in blocks(ROOT / "docs/metrics.md") if "promql" in one.words])
def test_a_query_of_the_documentation_asks_for_what_is_exported(block: Block, series: dict[str, set[str]]) -> None:
    _check(block.text, series, "")


def test_the_dashboard_is_laid_out() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in PANELS:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies over another"
        assert place["x"] + place["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(PANELS))) <= variables
    provisioned = yaml.safe_load((ROOT / "docker/grafana/provisioning/datasources/prometheus.yaml").read_text())
    assert provisioned["datasources"][0]["type"] == "prometheus"


def test_a_query_of_what_is_not_exported_is_found(series: dict[str, set[str]]) -> None:
    for query in (
        "rate(cdcwatch_closed_total[5m])",
        'cdcwatch_closes_total{result="closed"}',
        "sum by (kind) (cdcwatch_ready)",
    ):
        with pytest.raises(AssertionError):
            _check(query, series)
    with pytest.raises(ValueError, match="parenthesis"):
        _check("rate(cdcwatch_closes_total[5m]", series)
