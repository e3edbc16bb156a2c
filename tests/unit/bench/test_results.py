"""What is written of measurements is what was measured: tables, pages, charts, all from results.json."""

from __future__ import annotations

import contextlib
import xml.etree.ElementTree as ET
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest

import bench.__main__
from bench import charts, results
from bench.essentials import essentials
from bench.process import Failure
from bench.report import Table, percentile

if TYPE_CHECKING:
    from pathlib import Path


def part(*tables: Table, load_before: float = 0.2) -> results.Part:
    return results.Part(
        "2026-01-02 03:04", "python -m bench", "2 cores", "PostgreSQL 15", 12.3, load_before, list(tables)
    )


def table(name: str, figure: str, **more: object) -> Table:
    return Table(name, "How it was done.", ["what", "ratio"], [[name, figure]], [1.25, 0.5], **more)  # type: ignore[arg-type]


def test_every_file_that_is_made_of_the_results_is_what_results_json_gives() -> None:
    parts = results.load()
    assert parts
    stale = [path for path, text in results.written(parts) if not path.exists() or path.read_text() != text]
    assert not stale, "written from other results: python -m bench --charts"


def test_a_page_is_written_between_its_markers_and_nowhere_else() -> None:
    page = (
        "Ours: 7.\n<!-- bench:read -->\nold 1.11\n<!-- /bench -->\nand\n<!-- bench:lateness-2 -->\n<!-- /bench -->\nend"
    )
    parts = {"read": part(table("slot", "0.58")), "lateness": part(table("one", "1.01"), table("two", "2.02"))}
    filled = results.filled(page, parts)
    assert filled.startswith("Ours: 7.\n<!-- bench:read -->\n")
    assert filled.endswith("\n<!-- /bench -->\nend")
    assert "| slot | 0.58 |" in filled
    assert "| two | 2.02 |" in filled
    assert "1.11" not in filled
    assert "1.01" not in filled
    assert "Load average: 0.5 to 1.2" in filled
    assert results.filled(filled, parts) == filled


def test_a_page_says_of_a_part_without_results_that_there_are_none() -> None:
    assert "Not measured yet" in results.filled("<!-- bench:closes -->\n<!-- /bench -->", {})


def test_results_come_back_from_the_file_as_they_were(tmp_path: Path) -> None:
    series = charts.bars("read", "Read", "medians", {"cdcwatch": 2.5})
    parts = {"read": part(table("slot", "0.58", series=series, problems=["short"])), "closes": part()}
    results.save(parts, tmp_path / "results.json")
    assert results.load(tmp_path / "results.json") == parts
    assert results.load(tmp_path / "none.json") == {}


def test_a_part_that_is_measured_again_leaves_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- bench:read -->\n<!-- /bench -->\n<!-- bench:closes -->\n<!-- /bench -->\n")
    for name, path in (("JSON", "results.json"), ("MARKDOWN", "RESULTS.md"), ("CHARTS", "charts")):
        monkeypatch.setattr(results, name, tmp_path / path)
    monkeypatch.setattr(results, "PAGES", (page,))
    monkeypatch.setattr(bench.__main__.servers, "kafka", contextlib.nullcontext)
    monkeypatch.setattr(bench.__main__.servers, "warm_up", lambda _: None)
    figures = iter(["0.11", "0.22", "0.33"])

    def measure(*_: object) -> list[Table]:
        return [table("slot", next(figures), series=charts.bars("drawn", "Read", "", {"cdcwatch": 2.5}))]

    monkeypatch.setattr(bench.__main__, "PARTS", {"read": measure, "closes": measure})
    for arguments in ([], ["--only", "read"], ["--charts"]):
        monkeypatch.setattr("sys.argv", ["bench", *arguments])
        assert bench.__main__.main() == 0
    shown = page.read_text()
    assert ("0.11" in shown, "0.22" in shown, "0.33" in shown) == (False, True, True)
    assert (tmp_path / "charts/drawn.svg").exists()
    assert results.load()["read"].command == "python -m bench --only read"
    assert (tmp_path / "RESULTS.md").read_text().count("| slot |") == 2

    monkeypatch.setattr("sys.argv", ["bench", "--only", "read", "--no-results"])
    figures = iter(["0.44"])
    assert bench.__main__.main() == 0
    assert page.read_text() == shown


def test_a_figure_that_does_not_hold_ends_with_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.__main__.servers, "kafka", contextlib.nullcontext)
    monkeypatch.setattr(bench.__main__.servers, "warm_up", lambda _: None)
    monkeypatch.setattr(bench.__main__, "PARTS", {"read": lambda *_: [table("slot", "0.1", problems=["died"])]})
    monkeypatch.setattr("sys.argv", ["bench", "--no-results"])
    assert bench.__main__.main() == 1


def test_figures_that_were_taken_beside_other_work_say_so_everywhere() -> None:
    series = charts.bars("drawn", "Read", "medians", {"cdcwatch": 2.5})
    loud = table("slot", "0.5", series=series)
    loud.loads = [4.1, 7.0]
    usual = table("slot", "0.5", series=series)
    usual.loads = [1.0, 7.0]
    page = "<!-- bench:read -->\n<!-- /bench -->"
    for one, says in ((part(usual), False), (part(loud), True), (part(usual, load_before=1.1), True)):
        parts = {"read": one}
        assert ("None of these figures is a result" in results.document(parts)) is says
        assert ("None of these figures is a result" in results.filled(page, parts)) is says
        [chart] = [text for path, text in results.written(parts) if path.name == "drawn.svg"]
        assert ("no result" in chart) is says


def test_what_is_missing_and_what_went_wrong_stands_with_the_table() -> None:
    lacking = table("ours", "1.00", problems=["ours, round 2: closed 3 orders early"])
    lacking.lack("River", "no go on PATH")
    for shown in (lacking.text(), lacking.markdown(), results.document({"lateness": part(lacking)})):
        assert "River (missing)" in shown
        assert "missing: River: no go on PATH" in shown
        assert "closed 3 orders early" in shown


def test_percentiles() -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], 0.5) == 3.0
    assert percentile([1.0, 2.0, 3.0, 4.0], 1.0) == 4.0
    assert percentile([7.0], 0.99) == 7.0


SERIES = {
    "bars": charts.bars("a", "Rates <of> it", "2 & 3", {"cdcwatch, no sink": 50.0, "another": 100.0, "none": 0.0}),
    "lateness": charts.lateness("b", "Late", "", {"x": [-0.5, 0.01, 2.0, 80.0], "y": [1.0], "closed nothing": []}),
    "growth": charts.growth("c", "Grows", "", {"x": [(1e3, 20.0), (1e6, 21.0)], "y": [(1e3, 3.0), (1e7, 7.0)]}),
}


@pytest.mark.parametrize("kind", SERIES)
def test_a_chart_is_an_svg_that_stays_in_its_frame_in_light_and_dark(kind: str) -> None:
    [(name, drawn)] = charts.drawn({"part": [Table("", "", [], series=SERIES[kind]), Table("", "", [])]})
    assert name == SERIES[kind]["name"]
    assert "prefers-color-scheme:dark" in drawn
    picture = ET.fromstring(drawn)  # noqa: S314 - our own
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    for shape in picture.iter():
        for names, most in ((("x", "cx", "x1", "x2"), width), (("y", "cy", "y1", "y2"), height)):
            assert all(0 <= float(shape.attrib[one]) <= most for one in names if one in shape.attrib)
        for point in shape.attrib.get("points", "").split():
            x, y = map(float, point.split(","))
            assert 0 <= x <= width
            assert 0 <= y <= height


def test_bars_are_as_long_as_their_figures() -> None:
    [(_, drawn)] = charts.drawn({"part": [Table("", "", [], series=SERIES["bars"])]})
    space = "{http://www.w3.org/2000/svg}"
    picture = ET.fromstring(drawn)  # noqa: S314 - our own
    ours, other, none = (float(one.attrib["width"]) for one in picture.iter(f"{space}rect") if "x" in one.attrib)
    assert other == pytest.approx(2 * ours, abs=0.2)
    assert none == 1
    texts = [text.text for text in picture.iter(f"{space}text")]
    assert "Rates <of> it" in texts
    assert "100" in texts


def test_a_lateness_chart_is_drawn_from_shares_and_leaves_out_who_closed_nothing() -> None:
    values = SERIES["lateness"]["values"]
    assert list(values) == ["x", "y"]
    assert values["x"][0] == [0.1, 0.0]  # the scale ends there
    assert values["x"][-1] == [80.0, 1.0]


def test_the_essentials_are_the_tables_figures_and_what_is_missing_is_left_out() -> None:
    same = "to it with the same plugin"
    rows = [
        ["pg_recvlogical, wal2json", "1.00"],
        ["cdcwatch, wal2json, no sink", "1.40"],
        ["cdcwatch, pgoutput, no sink", "2.10"],
        ["cdcwatch, wal2json, Kafka exactly_once", "0.71"],
        ["cdcwatch, pgoutput, Kafka exactly_once", "0.93"],
    ]
    reading = Table("Reading", "how", ["reader", same], rows)
    process = [["cdcwatch, wal2json", "54", "80"], ["cdcwatch, pgoutput", "55", "101"]]
    memory = Table("Memory of the process", "how", ["process", "idle RSS MB", "full load RSS MB"], process)
    pending = Table("Memory of pending orders", "how", ["orders", "bytes each"], [["1,000,000", "118"]])
    assert essentials({"memory": [memory, pending], "read": [reading]}) == [
        "Memory: 54 MB idle, 101 MB at its peak under full load, 118 bytes a pending order at a million of them."
    ]
    rows.append(["Debezium 3.6.1, JSON, no sink", "0.11"])  # with its start: not what is said
    assert len(essentials({"memory": [memory, pending], "read": [reading]})) == 1
    rows.append(["Debezium 3.6.1, JSON, no sink: the second half of its events", "0.31"])
    [said, _] = essentials({"memory": [memory, pending], "read": [reading]})
    for figure in ("0.71 x", "0.93 x", "1.40 x", "2.10 x", "0.31 x"):
        assert figure in said


def test_a_flame_graph_says_when_and_on_what_it_was_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "CHARTS", tmp_path)
    graph = tmp_path / "flame-read.svg"
    graph.write_text('<?xml version="1.0"?><svg width="1"><g/></svg>')
    page = "<!-- bench:flame -->\n<!-- /bench -->"
    assert "2026" not in results.filled(page, {})
    results.describe(graph, part(table("slot", "1.00")))
    ET.fromstring(graph.read_text())  # noqa: S314
    assert "2026-01-02 03:04 UTC, `python -m bench`, took 12 s." in results.filled(page, {})


def test_what_a_table_means_is_said_once_where_the_next_means_the_same() -> None:
    other = Table("three", "Another way.", ["what"], [["x"]])
    page = "<!-- bench:read -->\n<!-- /bench -->"
    filled = results.filled(page, {"read": part(table("one", "1"), table("two", "2"), other)})
    assert filled.count("How it was done.") == 1
    assert filled.count("Another way.") == 1


def test_an_interrupt_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted() -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(bench.__main__, "_measured", interrupted)
    assert bench.__main__.main() == 130
    assert capsys.readouterr().err == "interrupted: what was measured whole is kept\n"


def test_a_part_that_fails_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> list[Table]:
        raise Failure("it did not end")

    monkeypatch.setattr(bench.__main__, "PARTS", {"read": fails, "visible": lambda *_: [table("slot", "1.00")]})
    monkeypatch.setattr(bench.__main__, "BY_NAME_ONLY", {})
    monkeypatch.setattr(bench.__main__.servers, "kafka", contextlib.nullcontext)
    monkeypatch.setattr(bench.__main__.servers, "warm_up", lambda _: None)
    monkeypatch.setattr(bench.__main__, "find_postgres", lambda: SimpleNamespace(major=15))
    monkeypatch.setattr("sys.argv", ["bench", "--no-results"])
    assert bench.__main__.main() == 1
    said = capsys.readouterr()
    assert "! read: it did not end" in said.err
    assert "slot" in said.out
    monkeypatch.setattr("sys.argv", ["bench", "--no-results", "--only", "visible", "--match", "another"])
    assert bench.__main__.main() == 2
