"""How figures come about: ratios within a round, what doesn't count, what is read from other programs' words."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

from bench import closing, growth, lateness, memory, read, watched
from bench.load import SHAPES
from bench.readers import BASELINE, DEBEZIUM, DEBEZIUM_WARM, Reader, baseline_of, readers
from cdcwatch.close.agenda import Agenda

if TYPE_CHECKING:
    import pytest


def reading(rate: float, problem: str = "") -> read.Run:
    return read.Run(rate, 2.0, 1.0, 0.5, 50.0, not problem, problem)


def test_a_ratio_is_taken_within_the_round_and_a_round_that_failed_does_not_count() -> None:
    ours = Reader("cdcwatch", "pgoutput", lambda _: [], publishes=True)
    by_name = {
        BASELINE: [reading(100), reading(10), reading(1, "slow")],
        baseline_of("pgoutput"): [reading(200), reading(20), reading(20)],
        "cdcwatch": [reading(50), reading(10), reading(10)],
        DEBEZIUM_WARM: [reading(25), reading(4), reading(1000, "died")],
    }
    row = read._row(ours, by_name["cdcwatch"], by_name, 200_000)
    assert row[:5] == ["cdcwatch", "0.75", "0.50", "2.25", "10"]
    assert row[5:] == ["1.00", "0.50", "0.25", "50", "yes"]
    quiet = Reader("cdcwatch", "pgoutput", lambda _: [])
    assert read._row(quiet, by_name["cdcwatch"], by_name, 200_000)[3] == "-"
    assert read._row(ours, [reading(5, "died")], by_name, 1)[1:] == [*["-"] * 8, "no"]


def test_debezium_is_compared_without_its_start() -> None:
    """What it says of the second part of its events counts, and a run that said nothing does not."""
    said = "SLF4J: something\nsecond part 150000 events 5000000000 ns\n"
    assert read.warm_events_a_s(said) == 30_000
    assert read.warm_events_a_s("died") == 0
    warm = [reading(30_000), reading(0)]
    by_name = {
        BASELINE: [reading(60_000), reading(1)],
        baseline_of("pgoutput"): [reading(90_000), reading(1)],
        DEBEZIUM_WARM: warm,
    }
    assert read._warm_row(by_name)[:5] == [DEBEZIUM_WARM, "0.50", "0.33", "-", "30,000"]
    ours = Reader("cdcwatch", "pgoutput", lambda _: [], publishes=True)
    assert read._row(ours, [reading(60_000), reading(5)], by_name, 1)[3] == "2.00"


def test_readers_of_other_names_are_neither_run_nor_built() -> None:
    found, missing = readers("no sink, nobody")
    assert [one.name for one in found] == [baseline_of("wal2json"), baseline_of("pgoutput")]
    assert not missing


def test_a_peer_that_cannot_be_had_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    found, missing = readers()
    assert set(missing) == {DEBEZIUM, "psycopg2 and json.loads, wal2json"}
    assert "javac" in missing[DEBEZIUM]
    assert len(found) == 9
    closers, without = closing.closers()
    assert list(without) == [closing.RIVER]
    assert "no go on PATH" in without[closing.RIVER]
    assert len(closers) == 4


def test_an_order_that_cdcwatch_closed_early_is_no_figure_but_a_problem() -> None:
    early = closing.Run([-0.1, *[1.0] * (SHAPES[0].orders - 1)], 1, 1, 1, 1)
    topic = SimpleNamespace(count=lambda: 2 * SHAPES[0].orders)
    assert closing._problem(closing.ours("wal2json"), early, SHAPES[0], topic) == "closed 1 orders early"
    assert not closing._problem(closing.Closer("River", lambda *_: []), early, SHAPES[0], topic)
    short = closing.Run([1.0], 1, 1, 1, 1)
    assert "closed 1 of" in closing._problem(closing.Closer("River", lambda *_: []), short, SHAPES[0], topic)
    on_time = closing.Run([1.0] * SHAPES[0].orders, 1, 1, 1, 1)
    assert not closing._problem(closing.ours("wal2json"), on_time, SHAPES[0], topic)
    topic.count = lambda: 7
    assert "7 of" in closing._problem(closing.ours("wal2json"), on_time, SHAPES[0], topic)


def test_the_program_tells_when_the_heap_has_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the one method that is wrapped: a deadline is told after it was filed."""
    told: list[object] = []
    monkeypatch.setattr(watched, "_apply", lambda _agenda, updates: told.append(updates))
    monkeypatch.setattr("os.write", lambda _descriptor, line: told.append(line))
    watched.apply(None, [(7, 1, 0), (8, None, 0)])
    assert told[0] == [(7, 1, 0), (8, None, 0)]
    (seven, first_us), (eight, second_us) = (line.split() for line in told[1].splitlines())
    assert (seven, eight) == (b"7", b"8")
    assert first_us == second_us
    assert int(first_us) > 1_700_000_000_000_000
    assert Agenda.apply is not watched.apply


def test_lateness_goes_by_the_round_and_tells_what_was_early() -> None:
    shape = SHAPES[0]
    runs = {
        closing.BASELINE: [closing.Run([10.0, 100.0], 1, 1, 1, 30), closing.Run([10.0, 50.0], 1, 1, 1, 30)],
        "cdcwatch": [closing.Run([1.0, 10.0], 2, 3, 4, 60), closing.Run([-1.0, 10.0], 2, 3, 4, 60)],
        "another": [None, closing.Run([25.0], 1, 1, 1, 1)],
    }
    row = lateness._row("cdcwatch", runs["cdcwatch"], runs, shape)
    assert row[1:3] == ["0.15", "-"]
    assert row[6:8] == ["1", f"4/{2 * shape.orders}"]
    assert lateness._row("another", runs["another"], runs, shape)[1] == "0.50"
    assert lateness._row("another", [None], runs, shape)[1:] == ["-"] * (len(lateness.COLUMNS) - 1)


def test_a_rate_of_closes_is_up_to_the_last() -> None:
    assert closing.Run([1.0, 400.0, 2000.0], 1, 1, 1, 1).closes_a_s == 1.5


def test_import_times_are_added_up_without_what_was_imported_within() -> None:
    told = "import time: self [us] | cumulative | imported package\nimport time:  100 |   100 |   zlib\nimport time: 20 | 120 | x\nelse\n"
    assert memory.imports_us(told) == 120


def test_pending_orders_are_those_of_all_tables() -> None:
    told = '# HELP cdcwatch_pending_entries Deadlines.\ncdcwatch_pending_entries{table="a"} 2.0\ncdcwatch_pending_entries{table="b"} 3e+06\nother 9\n'
    assert growth.pending_of(told) == 3_000_002
