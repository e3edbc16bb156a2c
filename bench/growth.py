"""What a change costs with more and more orders pending in memory: the whole program, and the schedule by itself."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import orjson

from bench import charts, program, servers
from bench.load import SCHEMA
from bench.process import Failure, environment, service
from bench.report import Table
from cdcwatch.local.process import free_port
from cdcwatch.lsn import parse_lsn

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.servers import Database
    from cdcwatch.local import LocalKafka, LocalPostgres

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
MOST_WHOLE = 1_000_000
_SCHEDULE = Path(__file__).with_name("schedule.py")
_CHANGES = 100_000
_ROWS_A_COMMIT = 1_000
_GIVE_UP_S = 120
_ORDERS = """
INSERT INTO orders (id, customer_id, total, expires_at)
SELECT id, id %% 977, 12.50, now() + interval '20 minutes' + id * interval '30 minutes' / %s
FROM generate_series(1, %s) AS id
"""
_MOVE = """
UPDATE orders SET expires_at = expires_at + interval '1 s', version = version + 1 WHERE id BETWEEN %s AND %s
"""
_PENDING = b"\ncdcwatch_pending_entries"
_WHOLE_EXPLANATION = """
The whole program with slot and close, without a sink, which would cost more than what is looked at. So many orders
are pending, all of them in its window; then {changes:,} changes move deadlines of some of them, {rows:,} a commit, as
fast as one client can. CPU: of the program. Wall: from the first of them until all is confirmed, which the writing
client and the server bound too. Ratio: CPU to that at the first size. More than {most:,} are in the table below only:
to fill a database with them and to read them takes longer than the rest of the bench.
"""
_ALONE_EXPLANATION = """
The schedule alone, in a process of its own: keys are bigint, deadlines spread over an hour, versions 0. Bytes: growth
of the resident set. A change is a deadline moved; due: taken out in order, 500 at a time; CPU time. Ratio: a change
to one at the first size.
"""


class Cost(NamedTuple):
    """Of a change, microseconds."""

    cpu_us: float
    wall_us: float
    rss_mb: float


def measure(_broker: LocalKafka, *, most: int) -> list[Table]:
    """Both, up to so many orders."""
    alone, schedules = _alone([size for size in SIZES if size <= most])
    whole, costs = _whole([size for size in SIZES if size <= min(most, MOST_WHOLE)])
    whole.series = charts.growth(
        "growth",
        "Microseconds a change, with so many orders pending in memory",
        "The whole program without a sink, CPU and wall; and the part of it that files deadlines, CPU.",
        {
            "cdcwatch, CPU": [(size, cost.cpu_us) for size, cost in costs.items()],
            "cdcwatch, wall": [(size, cost.wall_us) for size, cost in costs.items()],
            "the schedule alone, CPU": [(size, figures["change_us"]) for size, figures in schedules.items()],
        },
    )
    return [whole, alone]


def schedule(orders: int) -> dict[str, float]:
    """What so many cost in a process of their own: `bytes_each`, `change_us`, `due_us`."""
    ended = subprocess.run(
        [sys.executable, str(_SCHEDULE), str(orders)], env=environment(), capture_output=True, check=True
    )
    figures: dict[str, float] = orjson.loads(ended.stdout)
    return figures


def _alone(sizes: list[int]) -> tuple[Table, dict[int, dict[str, float]]]:
    table = Table(
        "A change, in the schedule alone",
        _ALONE_EXPLANATION.strip(),
        ["orders", "to the first", "bytes each", "us a change", "us an order due"],
    )
    measured: dict[int, dict[str, float]] = {}
    for size in sizes:
        figures = measured[size] = schedule(size)
        load = table.note_load()
        print(f"growth  alone {size:11,}  {figures['change_us']:6.2f} us a change  load {load:.1f}", flush=True)
        table.rows.append(
            [
                f"{size:,}",
                f"{figures['change_us'] / measured[sizes[0]]['change_us']:.2f}",
                f"{figures['bytes_each']:.0f}" if size >= 100_000 else "-",
                f"{figures['change_us']:.2f}",
                f"{figures['due_us']:.2f}",
            ]
        )
    return table, measured


def _whole(sizes: list[int]) -> tuple[Table, dict[int, Cost]]:
    table = Table(
        "A change, with so many orders pending",
        _WHOLE_EXPLANATION.strip().format(changes=_CHANGES, rows=_ROWS_A_COMMIT, most=MOST_WHOLE),
        ["orders", "CPU to the first", "CPU us a change", "wall us a change", "RSS MB"],
    )
    costs: dict[int, Cost] = {}
    with servers.postgres(fsync=False) as server:
        for size in sizes:
            try:
                cost = costs[size] = _run(server, size)
            except Failure as failure:
                table.problems.append(f"{size:,}: {failure}")
                continue
            load = table.note_load()
            print(f"growth  whole {size:11,}  {cost.cpu_us:6.2f} us of CPU a change  load {load:.1f}", flush=True)
            table.rows.append(
                [
                    f"{size:,}",
                    f"{cost.cpu_us / next(iter(costs.values())).cpu_us:.2f}",
                    f"{cost.cpu_us:.1f}",
                    f"{cost.wall_us:.1f}",
                    f"{cost.rss_mb:.0f}",
                ]
            )
    return table, costs


def _run(server: LocalPostgres, size: int) -> Cost:
    with servers.database(server, "bench_growth") as base, tempfile.TemporaryDirectory() as directory:
        base.rows(SCHEMA)
        base.rows(_ORDERS, size, size)
        base.rows("VACUUM ANALYZE orders")
        base.make_slot("wal2json")
        listen = f"127.0.0.1:{free_port()}"
        path = program.configuration(Path(directory), base, topic=None, listen=listen)
        with service(program.run_command(path), ready_s=_GIVE_UP_S) as running:
            _await(lambda: _pending(listen) >= size, "the window is in memory")
            before_s, began_s = running.cpu_s, time.monotonic()
            _move(base, size)
            end_lsn = parse_lsn(base.value("SELECT pg_current_wal_insert_lsn()::text"))
            _await(lambda: base.confirmed_lsn() >= end_lsn, "all is confirmed")
            wall_s, cpu_s = time.monotonic() - began_s, running.cpu_s - before_s
            rss_mb = running.peak_rss_mb
            running.stop()
    return Cost(cpu_s / _CHANGES * 1e6, wall_s / _CHANGES * 1e6, rss_mb)


def _move(base: Database, size: int) -> None:
    """So many changes, going round the orders as often as it takes."""
    for done in range(0, _CHANGES, _ROWS_A_COMMIT):
        first = done % size + 1
        base.rows(_MOVE, first, first + _ROWS_A_COMMIT - 1)


def _pending(listen: str) -> float:
    with urllib.request.urlopen(f"http://{listen}/metrics", timeout=10) as answer:
        return pending_of(answer.read().decode())


def pending_of(metrics: str) -> float:
    """The deadlines in memory, of all tables."""
    return sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith("cdcwatch_pending_entries"))


def _await(look: Callable[[], bool], what: str) -> None:
    give_up_s = time.monotonic() + _GIVE_UP_S
    while not look():
        if time.monotonic() > give_up_s:
            raise Failure(f"not within {_GIVE_UP_S} s: {what}")
        time.sleep(0.05)
