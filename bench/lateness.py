"""How late orders are closed: closed_at minus expires_at, closed_at being written by the closing UPDATE itself."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from bench import charts, closing, servers
from bench.load import SHAPES
from bench.report import Table, percentile

if TYPE_CHECKING:
    from bench.closing import Run
    from bench.load import Shape
    from cdcwatch.local import LocalKafka

COLUMNS = (
    "closer",
    "p99 to an UPDATE every 0.1 s",
    "p99 to River",
    "p50 ms",
    "p99",
    "max",
    "early",
    "closed",
    "CPU s",
    "PostgreSQL",
    "Kafka",
    "RSS MB",
)
_EXPLANATION = f"""
cdcwatch runs whole: slot, Kafka with exactly_once, close; what it is compared with has neither stream nor topic.
Every closer gets an empty table of its own. fsync is on. River has one job an order, stored before it is due, and
closes one row a statement; {{river}}. Ratio: p99 to that of `{closing.BASELINE}` in the same round; to River: p99 to
River's. CPU seconds are from the first insert to the last close. Closed: of all rounds together. Lateness ends when the
UPDATE writes the row, so the time of its commit is in nobody's figure. One UPDATE every 0.1 s closes all that is due in
one statement; heap and batch UPDATE polls the table for new rows, keeps them in a heap and closes them in batches: the
least that a process can do. For cdcwatch complete also means: two events an order in the topic, and all of the WAL
confirmed.
"""
_NO_JOBS = "its jobs are made before the first deadline, so it has no row where orders come all the time"


def measure(broker: LocalKafka, *, rounds: int, match: str = "") -> list[Table]:
    """One table a shape whose name holds `match`; every closer in every round, every other round backwards."""
    tables = []
    found, missing = closing.closers()
    with servers.postgres(fsync=True) as server:
        for shape in [shape for shape in SHAPES if match in shape.name]:
            chosen = [closer for closer in found if closer.enqueue is None or shape.has_jobs]
            count = rounds if shape.varies else 1
            table = Table(
                f"Lateness: {shape.name}",
                _EXPLANATION.strip().format(
                    river="its jobs are made while the closer runs" if shape.has_jobs else _NO_JOBS
                ),
                COLUMNS,
            )
            runs: dict[str, list[Run | None]] = {closer.name: [] for closer in chosen}
            for number in range(count):
                for closer in chosen if number % 2 == 0 else reversed(chosen):
                    runs[closer.name].append(closing.run(closer, server, broker, shape, (number, count), table))
            table.rows += [_row(name, done, runs, shape) for name, done in runs.items()]
            for name, why in missing.items():
                if shape.has_jobs:
                    table.lack(name, why)
            table.series = charts.lateness(
                f"lateness-{shape.chart}",
                f"Lateness: {shape.name}",
                "Share of the orders that were closed so late at most. Left of the scale: 0.1 ms or less.",
                {name: sorted(late for run in done if run for late in run.lateness_ms) for name, done in runs.items()},
            )
            tables.append(table)
    return tables


def _ratio(runs: list[Run | None], to: list[Run | None]) -> str:
    ratios = [run.p99_ms / other.p99_ms for run, other in zip(runs, to, strict=False) if run and other]
    return f"{statistics.median(ratios):.2f}" if ratios else "-"


def _row(name: str, runs: list[Run | None], by_name: dict[str, list[Run | None]], shape: Shape) -> list[str]:
    done = [run for run in runs if run]
    if not done:
        return [name, *["-"] * (len(COLUMNS) - 1)]
    median = statistics.median
    return [
        name,
        _ratio(runs, by_name[closing.BASELINE]),
        _ratio(runs, by_name.get(closing.RIVER, [])),
        f"{median(percentile(run.lateness_ms, 0.5) for run in done):.1f}",
        f"{median(run.p99_ms for run in done):.1f}",
        f"{max(run.lateness_ms[-1] for run in done):.1f}",
        f"{sum(late_ms < 0 for run in done for late_ms in run.lateness_ms)}",
        f"{sum(len(run.lateness_ms) for run in done)}/{shape.orders * len(runs)}",
        f"{median(run.cpu_s for run in done):.2f}",
        f"{median(run.server_cpu_s for run in done):.2f}",
        f"{median(run.broker_cpu_s for run in done):.2f}",
        f"{median(run.peak_rss_mb for run in done):.0f}",
    ]
