"""What each sink costs and gives: closes a second, lateness, a start with a million entries."""

from __future__ import annotations

import contextlib
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench import charts, closing, program, servers
from bench.closing import Closer
from bench.load import SCHEMA, Shape, at_once
from bench.places import Journal, Nowhere, Stream
from bench.process import Failure, service
from bench.report import Table, percentile
from cdcwatch.local import LocalRedis

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.closing import Run
    from bench.places import Place
    from bench.servers import Database
    from cdcwatch.local import LocalKafka, LocalPostgres

_PLUGIN = "pgoutput"
_READY_S = 180
_EXPLANATION = """
cdcwatch whole on {plugin}: slot, sink, close; fsync is on, also of the journal and of Redis (appendfsync always).
Closes a second: {orders:,} orders fall due at one instant, each close comes back by the slot and is published.
Lateness: {shape}. Server: CPU of Kafka or Redis. Ratios are to Kafka in the same round. Designs of this kind
have been published with 3,000 closes a second (polling), 8,000 (Redis Streams), 12,000 (a timing wheel): what they
claim, not measured here.
"""
_START_EXPLANATION = """
From the start of a process until READY: {entries:,} open orders fall due within the window and are loaded into the
heap, and their {entries:,} events stand in the sink. Nothing new is in the slot.
"""
_ORDERS = """
INSERT INTO orders (id, customer_id, total, expires_at)
SELECT id, id %% 977, 12.50, now() + interval '40 minutes' + id * interval '1 millisecond'
FROM generate_series(%s::bigint, %s) AS id
"""
_ROWS_A_COMMIT = 10_000


def measure(broker: LocalKafka, *, orders: int, entries: int, rounds: int, match: str = "") -> list[Table]:
    """Closing with every sink, and starts with a full journal."""
    with _redis() as stream_server:

        def topic(_broker: LocalKafka, _directory: Path) -> Place:
            return servers.Topic(broker, f"sinks.{time.time_ns()}")

        def stream(_broker: LocalKafka, _directory: Path) -> Place:
            return Stream(stream_server, f"sinks.{time.time_ns()}")

        places: dict[str, Callable[[LocalKafka, Path], Place]] = {
            "kafka, exactly once": topic,
            "redis": stream,
            "file": lambda _broker, directory: Journal(directory),
            "none": lambda _broker, _directory: Nowhere(),
        }
        chosen = {name: place for name, place in places.items() if match in name}
        with servers.postgres(fsync=True) as server:
            return [
                _closing(server, broker, chosen, orders=orders, rounds=rounds),
                *([_starts(server, entries)] if entries and "file" in chosen else []),
            ]


@contextlib.contextmanager
def _redis() -> Iterator[LocalRedis]:
    with tempfile.TemporaryDirectory(prefix="cdcwatch-bench-") as directory, LocalRedis(Path(directory)) as server:
        yield server


def _closing(
    server: LocalPostgres,
    broker: LocalKafka,
    places: dict[str, Callable[[LocalKafka, Path], Place]],
    *,
    orders: int,
    rounds: int,
) -> Table:
    spread = Shape("2,000 deadlines over 10 s", 2_000, at_once, 10.0)
    table = Table(
        "Sinks side by side",
        _EXPLANATION.strip().format(plugin=_PLUGIN, orders=orders, shape=spread.name),
        ["sink", "closes/s", "to Kafka", "p50 ms", "p99 ms", "CPU s", "server CPU s", "RSS MB"],
    )
    shape = Shape(f"{orders:,} deadlines at one instant", orders, at_once)
    bulk: dict[str, list[Run | None]] = {name: [] for name in places}
    late: dict[str, list[Run | None]] = {name: [] for name in places}
    for number in range(rounds):
        for name, place in places.items() if number % 2 == 0 else reversed(places.items()):
            closer = Closer(f"sink {name}", closing.ours(_PLUGIN).command, _PLUGIN, place=place)
            bulk[name].append(closing.run(closer, server, broker, shape, (number, rounds), table))
            if number == 0:
                late[name].append(closing.run(closer, server, broker, spread, (number, 1), table))
    first = next(iter(bulk))
    for name in places:
        table.rows.append([name, *_row(bulk[name], bulk[first], [run for run in late[name] if run])])
    table.series = charts.bars(
        "sinks",
        "Orders closed a second, by sink",
        f"{orders:,} due at one instant; {charts.rounds_said(rounds)}; cdcwatch whole, {_PLUGIN}",
        {
            name: round(statistics.median(run.closes_a_s for run in done if run))
            for name, done in bulk.items()
            if any(done)
        },
    )
    return table


def _row(bulk: list[Run | None], kafka: list[Run | None], late: list[Run]) -> list[str]:
    done, median = [run for run in bulk if run], statistics.median
    if not done or not late:
        return ["-"] * 7
    ratios = [run.closes_a_s / other.closes_a_s for run, other in zip(bulk, kafka, strict=True) if run and other]
    return [
        f"{median(run.closes_a_s for run in done):,.0f}",
        f"{median(ratios):.2f}" if ratios else "-",
        f"{percentile(late[0].lateness_ms, 0.5):.1f}",
        f"{late[0].p99_ms:.1f}",
        f"{median(run.cpu_s for run in done):.2f}",
        f"{median(run.broker_cpu_s for run in done):.2f}",
        f"{median(run.peak_rss_mb for run in done):.0f}",
    ]


def _starts(server: LocalPostgres, entries: int) -> Table:
    table = Table(
        f"Start with {entries:,} entries",
        _START_EXPLANATION.strip().format(entries=entries),
        ["sink", "start s", "CPU s", "RSS MB"],
    )
    with servers.database(server, "bench_restart") as base, tempfile.TemporaryDirectory() as directory:
        base.rows(SCHEMA)
        for first in range(1, entries + 1, _ROWS_A_COMMIT):
            base.rows(_ORDERS, first, min(entries, first + _ROWS_A_COMMIT - 1))
        base.rows("ANALYZE")
        base.make_slot(_PLUGIN)
        journal = Journal(Path(directory))
        path = program.configuration(Path(directory), base, topic=journal, plugin=_PLUGIN)
        with service(program.run_command(path), ready_s=_READY_S) as first_run:  # publishes them all
            closing.await_confirmed(base)
            first_run.stop()
        if journal.count() != entries:
            table.problems.append(f"{journal.count():,} events of {entries:,} in the journal")
        taken = [_started(path, base) for _ in range(3)]
    table.note_load()
    seconds, cpu_s, rss_mb = (statistics.median(column) for column in zip(*taken, strict=True))
    table.rows.append(["file", f"{seconds:.1f}", f"{cpu_s:.1f}", f"{rss_mb:.0f}"])
    print(f"sinks  start with {entries:,}: {seconds:.1f} s", flush=True)
    return table


def _started(path: Path, base: Database) -> tuple[float, float, float]:
    """Seconds until READY, of them on a processor, and the peak of its memory."""
    began_s = time.monotonic()
    with service(program.run_command(path), ready_s=_READY_S) as running:
        ready_s = time.monotonic() - began_s
        took = (ready_s, running.cpu_s, running.peak_rss_mb)
        if base.value("SELECT count(*) FROM orders WHERE status <> 'pending'"):
            raise Failure("orders fell due: this machine is too slow")
        running.stop()
    return took
