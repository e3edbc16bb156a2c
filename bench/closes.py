"""How many orders a second the whole program closes, beside the closing statement and nothing else."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from bench import charts, closing, program, servers
from bench.load import SCHEMA, Shape, at_once
from bench.process import environment
from bench.report import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bench.closing import Run
    from cdcwatch.local import LocalKafka, LocalPostgres

_RAW = Path(__file__).with_name("raw.py")
_RAW_TIMEOUT_S = 300
_ALONE = {
    "a plain UPDATE alone, one connection": ("1", "plain"),
    "our statement alone, one connection": ("1",),
    "our statement alone, two connections": ("2",),
}
_ROWS_A_COMMIT = 5_000
_INSERT = """
INSERT INTO orders (id, customer_id, total, expires_at)
SELECT id, id %% 977, 12.50, now() - interval '1 s' FROM generate_series(%s::bigint, %s) AS id
"""
_EXPLANATION = """
All orders fall due at one instant. cdcwatch whole: slot, Kafka with exactly_once, close; closes/s from that instant
to the last close, while each close comes back by the slot and is published. Our statement alone: the same in batches
of the same size over orders that are due already, nothing else in the process, no slot. A plain UPDATE: one by key and
version instead, which neither locks in order nor skips what others hold nor tells what it closed. fsync is on. Ratios
are to those of the same round; to it on two: to our statement on two connections. Closed: of all rounds together. CPU
seconds of cdcwatch are from the first insert to the last close. Designs of this kind have been published with 3,000
closes a second (polling), 8,000 (Redis Streams), 12,000 (a timing wheel): what they claim, not measured here.
"""


def measure(broker: LocalKafka, *, orders: int, rounds: int) -> list[Table]:
    """One table; every other round backwards."""
    table = Table(
        f"Closing {orders:,} orders due at one instant",
        _EXPLANATION.strip(),
        [
            "what",
            "closes/s",
            "to the plain UPDATE",
            "to our statement",
            "to it on two",
            "last close s",
            "closed",
            "CPU s",
            "PostgreSQL",
            "Kafka",
            "RSS MB",
        ],
    )
    shape = Shape(f"{orders:,} deadlines at one instant", orders, at_once)
    ours = [closing.ours(plugin) for plugin in servers.PLUGINS]
    raw: dict[str, list[float]] = {name: [] for name in _ALONE}
    runs: dict[str, list[Run | None]] = {closer.name: [] for closer in ours}
    with servers.postgres(fsync=True) as server:
        for number in range(rounds):
            for name in _ALONE:
                raw[name].append(_raw(server, orders, name, table))
            for closer in ours if number % 2 == 0 else reversed(ours):
                runs[closer.name].append(closing.run(closer, server, broker, shape, (number, rounds), table))
    ours_rates = {name: [run.closes_a_s if run else 0.0 for run in done] for name, done in runs.items()}
    for name, done in raw.items():
        table.rows.append([name, *_rates(done, raw), *["-"] * 6])
    for name, done in runs.items():
        table.rows.append([name, *_rates(ours_rates[name], raw), *_costs(done, orders)])
    table.series = charts.bars(
        "closes",
        "Orders closed a second",
        f"{orders:,} due at one instant; {charts.rounds_said(rounds)}; cdcwatch with slot and Kafka",
        {name: round(statistics.median(done)) for name, done in {**raw, **ours_rates}.items()},
    )
    return [table]


def _raw(server: LocalPostgres, orders: int, name: str, table: Table) -> float:
    """Closes a second; 0 when it failed."""
    with servers.database(server, "bench_raw") as base, tempfile.TemporaryDirectory() as directory:
        base.rows(SCHEMA)
        for first in range(1, orders + 1, _ROWS_A_COMMIT):
            base.rows(_INSERT, first, min(orders, first + _ROWS_A_COMMIT - 1))
        base.rows("ANALYZE")
        path = program.configuration(Path(directory), base, topic=None)
        ended = subprocess.run(
            [sys.executable, str(_RAW), str(path), *_ALONE[name]],
            env=environment(),
            capture_output=True,
            timeout=_RAW_TIMEOUT_S,
            check=False,
        )
        load = table.note_load()
        said = orjson.loads(ended.stdout) if not ended.returncode else {"closed": 0, "seconds": 1.0}
        if said["closed"] != orders:
            complaint = ended.stderr.decode(errors="replace")[-500:]
            table.problems.append(f"{name}: closed {said['closed']:,} of {orders:,} {complaint}")
        rate: float = said["closed"] / said["seconds"]
    print(f"closes  {name:40}{rate:10,.0f} closes/s  load {load:.1f}", flush=True)
    return rate


def _rates(done: Sequence[float], raw: dict[str, list[float]]) -> list[str]:
    """The rate, and its ratio to each of the raw ones."""
    ratios = [[rate / other for rate, other in zip(done, others, strict=True) if other] for others in raw.values()]
    return [f"{statistics.median(done):,.0f}", *(f"{statistics.median(r):.2f}" if r else "-" for r in ratios)]


def _costs(runs: Sequence[Run | None], orders: int) -> list[str]:
    done = [run for run in runs if run]
    if not done:
        return ["-"] * 6
    median = statistics.median
    return [
        f"{median(run.lateness_ms[-1] for run in done) / 1000:.1f}",
        f"{sum(len(run.lateness_ms) for run in done)}/{orders * len(runs)}",
        f"{median(run.cpu_s for run in done):.2f}",
        f"{median(run.server_cpu_s for run in done):.2f}",
        f"{median(run.broker_cpu_s for run in done):.2f}",
        f"{median(run.peak_rss_mb for run in done):.0f}",
    ]
