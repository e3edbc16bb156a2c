"""Services that close orders, and what one of them does with one load, from the first insert to the last close."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench import program, servers
from bench.load import SCHEMA
from bench.peers import Missing, river
from bench.process import Failure, process_cpu_s, service, tree_cpu_s
from bench.report import percentile
from cdcwatch.lsn import parse_lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.load import Shape
    from bench.places import Place
    from bench.process import Service
    from bench.report import Table
    from bench.servers import Database
    from cdcwatch.local import LocalKafka, LocalPostgres

BASELINE = "one UPDATE every 0.1 s"
RIVER = f"River {river.VERSION}, tuned"
_CLOSERS = Path(__file__).with_name("peers") / "closers.py"
_CLOSE_TIMEOUT_S = 90
_CONFIRM_TIMEOUT_S = 60
_LATENESS_MS = """
SELECT extract(epoch FROM closed_at - expires_at)::float8 * 1000 FROM orders WHERE status = 'expired' ORDER BY 1
"""


@dataclass(frozen=True)
class Closer:
    """A service that closes orders by itself; says READY, ends with SIGTERM."""

    name: str
    command: Callable[[Database, Place, Path], Sequence[str]]
    plugin: str = ""
    """Of its slot, where it reads one; then it publishes too."""
    enqueue: Callable[[Database], Sequence[str]] | None = None
    """What makes its jobs, once the orders are in the table."""
    place: Callable[[LocalKafka, Path], Place] = lambda broker, _: servers.Topic(broker, f"closing.{time.time_ns()}")
    """Where its events go."""


class Run(NamedTuple):
    """One closer, one shape, one round."""

    lateness_ms: list[float]
    """In order."""
    cpu_s: float
    server_cpu_s: float
    broker_cpu_s: float
    peak_rss_mb: float

    @property
    def p99_ms(self) -> float:
        return percentile(self.lateness_ms, 0.99)

    @property
    def closes_a_s(self) -> float:
        """Of orders that were due at one instant."""
        return len(self.lateness_ms) / self.lateness_ms[-1] * 1000


def ours(plugin: str) -> Closer:
    """cdcwatch, whole."""

    def command(base: Database, topic: Place, directory: Path) -> list[str]:
        return program.run_command(program.configuration(directory, base, topic=topic, plugin=plugin))

    return Closer(f"cdcwatch, {plugin}", command, plugin)


def closers() -> tuple[list[Closer], dict[str, str]]:
    """The baseline first, and what is missing. Another service to be measured beside them is another entry."""

    def bare(kind: str) -> Callable[[Database, Place, Path], list[str]]:
        return lambda base, _topic, _directory: [sys.executable, str(_CLOSERS), kind, base.dsn]

    found = [Closer(BASELINE, bare("poll")), Closer("heap and batch UPDATE, nothing else", bare("heap"))]
    missing = {}
    try:
        queue = river.River()
    except Missing as why:
        missing[RIVER] = str(why)
    else:
        found.append(
            Closer(
                RIVER,
                lambda base, _topic, _directory: queue.work(_uri(base)),
                enqueue=lambda base: queue.enqueue(_uri(base)),
            )
        )
    return [*found, *(ours(plugin) for plugin in servers.PLUGINS)], missing


def _uri(base: Database) -> str:
    return f"postgresql://postgres@127.0.0.1:{base.server.port}/{base.name}"


def run(
    closer: Closer, server: LocalPostgres, broker: LocalKafka, shape: Shape, place: tuple[int, int], table: Table
) -> Run | None:
    """None when it doesn't count: the table then says why. `place`: which round of how many."""
    number, rounds = place
    done = None
    try:
        with servers.database(server, "bench_closing") as base, tempfile.TemporaryDirectory() as directory:
            base.rows(SCHEMA)
            topic = closer.place(broker, Path(directory))
            if closer.plugin:
                base.make_slot(closer.plugin)
            with service(closer.command(base, topic, Path(directory))) as running:
                done = _watched(closer, running, base, topic, shape, phase=(number + 0.5) / rounds)
                if closer.plugin:
                    await_confirmed(base)
                running.stop()
            problem = _problem(closer, done, shape, topic)
    except Failure as failure:
        done, problem = None, str(failure)
    load = table.note_load()
    if problem:
        table.problems.append(f"{closer.name}, round {number + 1}: {problem}")
    said = f"p99 {done.p99_ms:8.1f} ms  cpu {done.cpu_s:5.2f} s" if done else problem
    print(f"closing {number + 1}/{rounds}  {shape.name:44} {closer.name:36} {said}  load {load:.1f}", flush=True)
    return done


def _watched(closer: Closer, running: Service, base: Database, place: Place, shape: Shape, *, phase: float) -> Run:
    """The load, and what it cost until the last close."""

    def costs_s() -> tuple[float, float, float]:
        keeps_s = process_cpu_s(place.server_pid) if place.server_pid else 0.0
        return running.cpu_s, tree_cpu_s(base.server.pid or 0), keeps_s

    def enqueue() -> None:
        if closer.enqueue is not None:
            subprocess.run(closer.enqueue(base), check=True)

    before_s = costs_s()
    last_deadline_s = shape.insert(base, shape, phase, enqueue)
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


def await_confirmed(base: Database) -> None:
    """Until the slot stands where the WAL ends now."""
    end_lsn = parse_lsn(base.value("SELECT pg_current_wal_insert_lsn()::text"))
    give_up_s = time.monotonic() + _CONFIRM_TIMEOUT_S
    while base.confirmed_lsn() < end_lsn:
        if time.monotonic() > give_up_s:
            raise Failure("confirmed_flush_lsn is short of the end")
        time.sleep(0.1)


def _problem(closer: Closer, run: Run, shape: Shape, place: Place) -> str:
    """Why this run doesn't count; empty when it does. That a peer was early is told in its row."""
    closed = len(run.lateness_ms)
    if closer.plugin and run.lateness_ms[0] < 0:
        return f"closed {sum(late_ms < 0 for late_ms in run.lateness_ms)} orders early"
    if closed < shape.orders:
        return f"closed {closed:,} of {shape.orders:,} orders"
    if closer.plugin and (found := place.count()) not in {None, 2 * shape.orders}:
        return f"{found:,} of {2 * shape.orders:,} events in the topic"
    return ""
