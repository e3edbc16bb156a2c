"""Charts of the results. A table says in its `series` what is to be drawn of it, and this room draws it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from bench.report import percentile
from bench.svg import COLOURS, Picture

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from bench.report import Table

_WIDTH = 820
_LEFT, _RIGHT, _TOP = 24, 24, 64
_BAR, _BAR_STEP, _NAME_WIDTH, _VALUE_WIDTH = 17, 26, 300, 90
_PLOT_HEIGHT, _LEGEND_STEP = 300, 20
_LEAST_MS = 0.1
_SHARES = (*(at / 50 for at in range(50)), 0.99, 0.995, 0.999, 1.0)
_OURS = "cdcwatch"


def rounds_said(rounds: int) -> str:
    """How a figure came from them."""
    return f"medians of {rounds} rounds" if rounds > 1 else "one round"


def bars(name: str, title: str, note: str, values: Mapping[str, float]) -> dict[str, Any]:
    """The `series` of a table: a bar a name."""
    return {"kind": "bars", "name": name, "title": title, "note": note, "values": dict(values)}


def lateness(name: str, title: str, note: str, lateness_ms: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """The same: how many orders were closed how late at most. `lateness_ms` in order, milliseconds."""
    values = {
        closer: [[round(max(percentile(ordered, share), _LEAST_MS), 2), share] for share in _SHARES]
        for closer, ordered in lateness_ms.items()
        if ordered
    }
    return {"kind": "lateness", "name": name, "title": title, "note": note, "values": values}


def growth(name: str, title: str, note: str, values: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, Any]:
    """The same: lines over a number that grows by tens."""
    points = {line: [[x, round(y, 2)] for x, y in pairs] for line, pairs in values.items()}
    return {"kind": "growth", "name": name, "title": title, "note": note, "values": points}


def drawn(tables: Mapping[str, Sequence[Table]], *, busy: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Every chart's name and SVG. `busy`: the parts that were measured beside other work, which their charts say."""
    for part, of_part in tables.items():
        for series in (table.series for table in of_part):
            if series and series["values"]:
                note = (
                    f"Beside other work on the machine: no result. {series['note']}" if part in busy else series["note"]
                )
                yield series["name"], _DRAWN[series["kind"]]({**series, "note": note})


def _bars(series: dict[str, Any]) -> str:
    values: dict[str, float] = series["values"]
    picture = _titled(series, _TOP + _BAR_STEP * len(values) + 12)
    most = max(values.values())
    x = _LEFT + _NAME_WIDTH
    room = _WIDTH - x - _RIGHT - _VALUE_WIDTH
    for at, (name, value) in enumerate(values.items()):
        y = _TOP + _BAR_STEP * at
        width = room * value / most if most else 0.0
        picture.text(x - 10, y + 13, name, kind="bold" if name.startswith(_OURS) else "", anchor="end")
        picture.bar(x, y, width, _BAR, 0 if name.startswith(_OURS) else COLOURS - 1)
        picture.text(x + width + 7, y + 13, _number(value))
    return picture.document()


def _lateness(series: dict[str, Any]) -> str:
    points = [point for line in series["values"].values() for point in line]
    x_ticks = _decades(min(x for x, _ in points), max(x for x, _ in points))
    y_ticks = [0, 0.25, 0.5, 0.75, 0.9, 1.0]
    return _plot(series, x_ticks, y_ticks, y_labels=[f"{tick:.0%}" for tick in y_ticks], x_unit="ms late at most")


def _growth(series: dict[str, Any]) -> str:
    points = [point for line in series["values"].values() for point in line]
    x_ticks = _decades(min(x for x, _ in points), max(x for x, _ in points))
    step = _step(max(y for _, y in points))
    y_ticks = [step * at for at in range(math.ceil(max(y for _, y in points) / step) + 1)]
    return _plot(series, x_ticks, y_ticks, y_labels=[_number(tick) for tick in y_ticks], x_unit="orders", dots=True)


_DRAWN = {"bars": _bars, "lateness": _lateness, "growth": _growth}


def _plot(
    series: dict[str, Any],
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    *,
    y_labels: Sequence[str],
    x_unit: str,
    dots: bool = False,
) -> str:
    lines: dict[str, list[list[float]]] = series["values"]
    legend = _LEGEND_STEP * math.ceil(len(lines) / 2)
    left, top, width = _LEFT + 44, _TOP + legend, _WIDTH - _LEFT - _RIGHT - 60
    picture = _titled(series, top + _PLOT_HEIGHT + 48)
    first, last = math.log10(x_ticks[0]), math.log10(x_ticks[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        across = (math.log10(x) - first) / (last - first)
        return left + width * across, top + _PLOT_HEIGHT * (1 - y / y_ticks[-1])

    for tick in x_ticks:
        x, bottom = place(tick, 0)
        picture.rule(x, top, x, bottom)
        picture.text(x, bottom + 18, _number(tick), kind="faint", anchor="middle")
    picture.text(left + width, top + _PLOT_HEIGHT + 38, x_unit, kind="faint", anchor="end")
    for tick, label in zip(y_ticks, y_labels, strict=True):
        _, y = place(x_ticks[0], tick)
        picture.rule(left, y, left + width, y)
        picture.text(left - 8, y + 4, label, kind="faint", anchor="end")
    # Ours first, so that they have the same colours in every chart.
    ordered = sorted(lines.items(), key=lambda named: not named[0].startswith(_OURS))
    for at, (name, line) in enumerate(ordered):
        colour = at % COLOURS
        x, y = left + (at % 2) * width / 2, _TOP + _LEGEND_STEP * (at // 2) - 4
        picture.line([(x, y), (x + 34, y)], colour)
        picture.text(x + 42, y + 4, name, kind=f"t{colour}")
        picture.line([place(x, y) for x, y in line], colour, dots=dots)
    return picture.document()


def _titled(series: dict[str, Any], height: int) -> Picture:
    picture = Picture(_WIDTH, height, series["title"], series["note"])
    picture.text(_LEFT, 26, series["title"], kind="title")
    picture.text(_LEFT, 44, series["note"], kind="faint")
    return picture


def _decades(least: float, most: float) -> list[float]:
    first, last = math.floor(math.log10(least)), math.ceil(math.log10(most))
    return [10.0**at for at in range(first, max(last, first + 1) + 1)]


def _step(most: float) -> float:
    """Of four to eight lines over the whole."""
    rough = 10.0 ** math.floor(math.log10(most or 1))
    return next(rough * part for part in (0.125, 0.25, 0.5, 1.0, 2.0) if most / (rough * part) <= 8)


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
