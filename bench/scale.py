"""How far one process goes: a start, and the window, beside a large table."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench import program, servers
from bench.load import SCHEMA
from bench.process import Failure, service
from bench.report import Table, percentile

if TYPE_CHECKING:
    from bench.servers import Database
    from cdcwatch.local import LocalKafka

_DAY_S = 86_400
_DUE_ROWS_PER_S = 2_500
_DUE_OVER_S = 60
_LEAD_S = 25
_CHUNK_ROWS = 1_000_000
_FILL = """
INSERT INTO orders (id, customer_id, total, expires_at)
SELECT id, id %% 977, 12.50, now() + interval '10 minutes' + (id::float8 / %s) * interval '1 day'
FROM generate_series(%s::bigint, %s) AS id
"""
_NEAR = """
INSERT INTO orders (id, customer_id, total, expires_at)
SELECT id, id %% 977, 12.50, to_timestamp(%s::float8) + (id - %s) * interval '1 s' / %s
FROM generate_series(%s::bigint, %s) AS id
"""
_LATENESS_MS = """
SELECT extract(epoch FROM closed_at - expires_at)::float8 * 1000 FROM orders
WHERE status = 'expired' AND id BETWEEN %s AND %s ORDER BY 1
"""
_START_EXPLANATION = """
The whole program with slot and Kafka (exactly_once) beside a table in which {rows:,} orders are pending, spread
evenly over a day from ten minutes from now; {due:,} more fall due at {rate:,} a second meanwhile. READY: from the
start of the process until it says so. A window of a minute is moved on and read every quarter of a minute, one of an
hour not once meanwhile. Ratio: p99 to that of the window that was not moved.
"""


class Start(NamedTuple):
    """One run beside the large table."""

    ready_s: float
    ready_rss_mb: float
    peak_rss_mb: float
    lateness_ms: list[float]


def measure(broker: LocalKafka, *, rows: int, rounds: int) -> list[Table]:
    """Starts beside `rows` pending orders. The schedule by itself: see growth."""
    return [_starts(broker, rows=rows, rounds=rounds)]


def _starts(broker: LocalKafka, *, rows: int, rounds: int) -> Table:
    due = _DUE_ROWS_PER_S * _DUE_OVER_S
    table = Table(
        f"scale: start and window beside {rows:,} pending orders",
        _START_EXPLANATION.strip().format(rows=rows, due=due, rate=_DUE_ROWS_PER_S),
        ["window", "ratio", "READY s", "RSS MB then", "p50 ms", "p99", "max", "early", "closed", "RSS MB peak"],
    )
    horizons_s = (3600, 60)
    runs: dict[int, list[Start | None]] = {horizon_s: [] for horizon_s in horizons_s}
    with servers.postgres(fsync=True) as server, servers.database(server, "bench_scale") as base:
        _fill(base, rows)
        last_id = rows
        for number in range(rounds):
            for horizon_s in horizons_s if number % 2 == 0 else reversed(horizons_s):
                runs[horizon_s].append(_run(broker, base, last_id, horizon_s, table))
                last_id += due
    for horizon_s, done in runs.items():
        pairs = [(run, still) for run, still in zip(done, runs[horizons_s[0]], strict=True) if run and still]
        table.rows.append(_row(horizon_s, pairs, due * len(done)))
    return table


def _fill(base: Database, rows: int) -> None:
    base.rows(SCHEMA)
    for first in range(1, rows + 1, _CHUNK_ROWS):
        base.rows(_FILL, rows, first, min(rows, first + _CHUNK_ROWS - 1))
    base.rows("VACUUM ANALYZE orders")


def _run(broker: LocalKafka, base: Database, last_id: int, horizon_s: int, table: Table) -> Start | None:
    first, last = last_id + 1, last_id + _DUE_ROWS_PER_S * _DUE_OVER_S
    due_s = time.time() + _LEAD_S
    base.rows(_NEAR, due_s, first, _DUE_ROWS_PER_S, first, last)
    base.rows("SELECT pg_create_logical_replication_slot(%s, 'wal2json')", servers.SLOT)
    topic = servers.Topic(broker, f"scale.{time.time_ns()}")
    topic.begin_at(base, servers.SLOT)
    run, problem = None, ""
    try:
        with tempfile.TemporaryDirectory() as directory:
            path = program.configuration(Path(directory), base, topic=topic, delivery="exactly_once")
            path.write_text(f"{path.read_text()}[window]\nhorizon_s = {horizon_s}\n")
            run = _watched(path, base, due_s, (first, last))
        closed, early = len(run.lateness_ms), sum(late_ms < 0 for late_ms in run.lateness_ms)
        if closed <= last - first or early:
            problem = f"closed {closed:,} orders, {early} of them early"
    except Failure as failure:
        problem = str(failure)
    base.drop_slot()
    base.rows("DELETE FROM orders WHERE id BETWEEN %s AND %s", first, last)
    load = table.note_load()
    if problem:
        table.problems.append(f"window of {horizon_s} s: {problem}")
    said = f"READY after {run.ready_s:.1f} s, p99 {percentile(run.lateness_ms, 0.99):.1f} ms" if run else problem
    print(f"scale  window {horizon_s:5} s  {said}  load {load:.1f}", flush=True)
    return run


def _watched(path: Path, base: Database, due_s: float, ids: tuple[int, int]) -> Start:
    began_s = time.monotonic()
    with service(program.run_command(path), ready_s=120) as running:
        ready_s, ready_rss_mb = time.monotonic() - began_s, running.peak_rss_mb
        if time.time() > due_s:
            raise Failure("READY after the first deadline: this machine is too busy")
        time.sleep(max(0.0, due_s + _DUE_OVER_S - time.time()) + 2)
        running.require_running()
        lateness_ms = [late_ms for (late_ms,) in base.rows(_LATENESS_MS, *ids)]
        run = Start(ready_s, ready_rss_mb, running.peak_rss_mb, lateness_ms)
        running.stop()
    return run


def _row(horizon_s: int, pairs: list[tuple[Start, Start]], orders: int) -> list[str]:
    name = f"{horizon_s} s"
    if not pairs:
        return [name, *["-"] * 9]
    median, done = statistics.median, [run for run, _ in pairs]
    ratios = [percentile(run.lateness_ms, 0.99) / percentile(still.lateness_ms, 0.99) for run, still in pairs]
    return [
        name,
        f"{median(ratios):.2f}",
        f"{median(run.ready_s for run in done):.1f}",
        f"{median(run.ready_rss_mb for run in done):.0f}",
        f"{median(percentile(run.lateness_ms, 0.5) for run in done):.1f}",
        f"{median(percentile(run.lateness_ms, 0.99) for run in done):.1f}",
        f"{max(run.lateness_ms[-1] for run in done):.1f}",
        f"{sum(late_ms < 0 for run in done for late_ms in run.lateness_ms)}",
        f"{sum(len(run.lateness_ms) for run in done)}/{orders}",
        f"{median(run.peak_rss_mb for run in done):.0f}",
    ]
