"""How late orders are closed: closed_at minus expires_at, closed_at being written by the closing UPDATE itself."""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench import program, servers
from bench.load import SCHEMA, SHAPES
from bench.process import Failure, process_cpu_s, service, tree_cpu_s
from bench.report import Table
from cdcwatch.lsn import parse_lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.load import Shape
    from bench.process import Service
    from bench.servers import Database, Topic
    from cdcwatch.local import LocalKafka, LocalPostgres

BASELINE = "one UPDATE every 0.1 s"
_CLOSERS = Path(__file__).with_name("closers.py")
_CLOSE_TIMEOUT_S = 60
_CONFIRM_TIMEOUT_S = 20
_LATENESS_MS = """
SELECT extract(epoch FROM closed_at - expires_at)::float8 * 1000 FROM orders WHERE status = 'expired' ORDER BY 1
"""
_EXPLANATION = """
cdcwatch runs whole: slot, Kafka with exactly_once, close; what it is compared with has neither stream nor topic. Every
closer gets an empty table of its own. fsync is on. Ratio: p99 to that of `{baseline}` in the same round. CPU seconds
are from the first insert to the last close. Closes/s: those due at one instant, by when the last was closed. For
cdcwatch complete also means: two events an order in the topic, and all of the WAL confirmed.
"""


@dataclass(frozen=True)
class Closer:
    """A service that closes orders by itself; says READY, ends with SIGTERM."""

    name: str
    command: Callable[[Database, Topic, Path], Sequence[str]]
    reads_slot: bool = False


class Run(NamedTuple):
    """One closer, one shape, one round."""

    lateness_ms: list[float]
    cpu_s: float
    server_cpu_s: float
    broker_cpu_s: float
    peak_rss_mb: float

    @property
    def p99_ms(self) -> float:
        return percentile(self.lateness_ms, 0.99)


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def closers() -> list[Closer]:
    """The baseline first. Another service to be measured beside them is another entry."""

    def bare(kind: str) -> Callable[[Database, Topic, Path], list[str]]:
        return lambda base, _topic, _directory: [sys.executable, str(_CLOSERS), kind, base.dsn]

    def ours(base: Database, topic: Topic, directory: Path) -> list[str]:
        path = program.configuration(directory, base, topic=topic, delivery="exactly_once")
        return program.run_command(path)

    return [
        Closer(BASELINE, bare("poll")),
        Closer("heap and batch UPDATE, nothing else", bare("heap")),
        Closer("cdcwatch", ours, reads_slot=True),
    ]


def measure(broker: LocalKafka, *, rounds: int, match: str = "") -> list[Table]:
    """One table a shape whose name holds `match`; every closer in every round, every other round backwards."""
    tables = []
    chosen = closers()
    with servers.postgres(fsync=True) as server:
        for shape in [shape for shape in SHAPES if match in shape.name]:
            table = Table(
                f"lateness: {shape.name}",
                _EXPLANATION.strip().format(baseline=BASELINE),
                [
                    "closer",
                    "ratio",
                    "p50 ms",
                    "p99",
                    "max",
                    "early",
                    "closed",
                    "closes/s",
                    "CPU s",
                    "PostgreSQL",
                    "Kafka",
                    "RSS MB",
                ],
            )
            runs: dict[str, list[Run | None]] = {closer.name: [] for closer in chosen}
            for number in range(rounds):
                for closer in chosen if number % 2 == 0 else reversed(chosen):
                    runs[closer.name].append(_run(closer, server, broker, shape, (number, rounds), table))
            table.rows += [_row(name, done, runs[BASELINE], shape) for name, done in runs.items()]
            tables.append(table)
    return tables


def _run(
    closer: Closer, server: LocalPostgres, broker: LocalKafka, shape: Shape, place: tuple[int, int], table: Table
) -> Run | None:
    number, rounds = place
    label = f"{closer.name}, round {number + 1}"
    try:
        with servers.database(server, "bench_lateness") as base, tempfile.TemporaryDirectory() as directory:
            base.rows(SCHEMA)
            topic = servers.Topic(broker, f"lateness.{time.time_ns()}")
            if closer.reads_slot:
                base.rows("SELECT pg_create_logical_replication_slot(%s, 'wal2json')", servers.SLOT)
            with service(closer.command(base, topic, Path(directory))) as running:
                run = _watched(running, base, broker, shape, phase=(number + 0.5) / rounds)
                if closer.reads_slot:
                    _await_confirmed(base)
                running.stop()
            problem = _problem(run, shape, topic if closer.reads_slot else None)
    except Failure as failure:
        run, problem = None, str(failure)
    load = table.note_load()
    if problem:
        table.problems.append(f"{label}: {problem}")
    said = f"p99 {run.p99_ms:8.1f} ms  cpu {run.cpu_s:5.2f} s" if run else problem
    print(f"lateness {number + 1}/{rounds}  {shape.name:44} {closer.name:36} {said}  load {load:.1f}", flush=True)
    return run


def _watched(running: Service, base: Database, broker: LocalKafka, shape: Shape, *, phase: float) -> Run:
    """The load, and what it cost until the last close."""

    def costs_s() -> tuple[float, float, float]:
        return running.cpu_s, tree_cpu_s(base.server.pid or 0), process_cpu_s(broker.pid or 0)

    before_s = costs_s()
    last_deadline_s = shape.insert(base, shape, phase)
    time.sleep(max(0.0, last_deadline_s - time.time()))
    give_up_s = time.monotonic() + _CLOSE_TIMEOUT_S
    while base.rows("SELECT 1 FROM orders WHERE status = 'pending' LIMIT 1") and time.monotonic() < give_up_s:
        running.require_running()
        time.sleep(0.1)
    spent_s = [after - before for before, after in zip(before_s, costs_s(), strict=True)]
    lateness_ms = [late_ms for (late_ms,) in base.rows(_LATENESS_MS)]
    if not lateness_ms:
        raise Failure("closed nothing")
    return Run(lateness_ms, spent_s[0], spent_s[1], spent_s[2], running.peak_rss_mb)


def _await_confirmed(base: Database) -> None:
    end_lsn = parse_lsn(base.value("SELECT pg_current_wal_insert_lsn()::text"))
    give_up_s = time.monotonic() + _CONFIRM_TIMEOUT_S
    while base.confirmed_lsn() < end_lsn:
        if time.monotonic() > give_up_s:
            raise Failure("confirmed_flush_lsn is short of the end")
        time.sleep(0.1)


def _problem(run: Run, shape: Shape, topic: Topic | None) -> str:
    """Why this run doesn't count; empty when it does."""
    closed = len(run.lateness_ms)
    if run.lateness_ms[0] < 0:
        return f"closed {sum(late_ms < 0 for late_ms in run.lateness_ms)} orders early"
    if closed < shape.orders:
        return f"closed {closed:,} of {shape.orders:,} orders"
    if topic is not None and (found := topic.count()) != 2 * shape.orders:
        return f"{found:,} of {2 * shape.orders:,} events in the topic"
    return ""


def _row(name: str, runs: list[Run | None], baseline: list[Run | None], shape: Shape) -> list[str]:
    pairs = [(run, base) for run, base in zip(runs, baseline, strict=True) if run and base]
    if not pairs:
        return [name, *["-"] * 11]
    median, done = statistics.median, [run for run, _ in pairs]
    return [
        name,
        f"{median(run.p99_ms / base.p99_ms for run, base in pairs):.2f}",
        f"{median(percentile(run.lateness_ms, 0.5) for run in done):.1f}",
        f"{median(run.p99_ms for run in done):.1f}",
        f"{max(run.lateness_ms[-1] for run in done):.1f}",
        f"{sum(late_ms < 0 for run in done for late_ms in run.lateness_ms)}",
        f"{sum(len(run.lateness_ms) for run in done)}/{shape.orders * len(runs)}",
        "-" if shape.over_s else f"{median(shape.orders / run.lateness_ms[-1] * 1000 for run in done):,.0f}",
        f"{median(run.cpu_s for run in done):.2f}",
        f"{median(run.server_cpu_s for run in done):.2f}",
        f"{median(run.broker_cpu_s for run in done):.2f}",
        f"{median(run.peak_rss_mb for run in done):.0f}",
    ]
