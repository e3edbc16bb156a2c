"""What a process takes at rest and under load, what a pending order takes, and how long a start is."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from bench import growth, program, servers
from bench.closing import await_confirmed
from bench.load import SCHEMA
from bench.process import Failure, environment, service
from bench.report import Table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.servers import Database
    from cdcwatch.local import LocalKafka, LocalPostgres

PENDING = (100_000, 1_000_000)
_CHANGES = 200_000
_ROWS_A_COMMIT = 1_000
_REST_S = 5.0
_STREAMING_TIMEOUT_S = 30.0
_STREAMING = "SELECT 1 FROM pg_stat_replication WHERE state IN ('catchup', 'streaming')"
_INSERT = """
INSERT INTO orders (id, customer_id, total, expires_at)
SELECT id, id %% 977, 12.50, now() + interval '1 day' FROM generate_series(%s::bigint, %s) AS id
"""
_PROCESS_EXPLANATION = """
cdcwatch whole: slot, Kafka with exactly_once, close. Idle: {rest:g} s after READY, nothing happens. Full load: the
peak once {changes:,} orders more were inserted as fast as one client can, and all of them were published and
confirmed. They are due in a day, beyond the window: no order is pending in memory, and what orders take there comes
on top. RSS: the resident set, shared libraries included.
"""
_PENDING_EXPLANATION = """
Growth of the resident set of a process in which the schedule holds so many orders: keys are bigint, deadlines spread
over an hour, versions 0.
"""
_START_EXPLANATION = """
From the start of a process, files in the page cache and modules compiled. Streaming: the server's walsender has begun
to stream, as pg_stat_replication tells, asked every two milliseconds. READY: the slot is taken and streams, the topic
is fenced and its record read, orders are closed; an empty table, and one start before that isn't counted.
Imports: the sum of `python -X importtime`, which itself takes some of it. To python: to `python -c pass`, the median.
"""


def measure(broker: LocalKafka, *, starts: int) -> list[Table]:
    """Three tables."""
    with servers.postgres(fsync=True) as server:
        return [_processes(server, broker), _pending(), _starts(server, broker, starts)]


def _processes(server: LocalPostgres, broker: LocalKafka) -> Table:
    explanation = _PROCESS_EXPLANATION.strip().format(rest=_REST_S, changes=_CHANGES)
    table = Table("Memory of the process", explanation, ["process", "idle RSS MB", "full load RSS MB"])
    for plugin in servers.PLUGINS:
        with servers.database(server, "bench_memory") as base, tempfile.TemporaryDirectory() as directory:
            path = _prepared(base, broker, Path(directory), plugin)
            with service(program.run_command(path)) as running:
                time.sleep(_REST_S)
                idle_mb = running.rss_mb
                for first in range(1, _CHANGES + 1, _ROWS_A_COMMIT):
                    base.rows(_INSERT, first, first + _ROWS_A_COMMIT - 1)
                await_confirmed(base)
                peak_mb = running.peak_rss_mb
                running.stop()
        load = table.note_load()
        table.rows.append([f"cdcwatch, {plugin}", f"{idle_mb:.0f}", f"{peak_mb:.0f}"])
        print(f"memory  {'  '.join(table.rows[-1])}  load {load:.1f}", flush=True)
    return table


def _prepared(base: Database, broker: LocalKafka, directory: Path, plugin: str) -> Path:
    base.rows(SCHEMA)
    base.make_slot(plugin)
    topic = servers.Topic(broker, f"memory.{time.time_ns()}")
    topic.begin_at(base)
    return program.configuration(directory, base, topic=topic, plugin=plugin)


def _pending() -> Table:
    table = Table("Memory of pending orders", _PENDING_EXPLANATION.strip(), ["orders", "bytes each", "MB"])
    for size in PENDING:
        bytes_each = growth.schedule(size)["bytes_each"]
        load = table.note_load()
        table.rows.append([f"{size:,}", f"{bytes_each:.0f}", f"{bytes_each * size / 1e6:.1f}"])
        print(f"memory  {'  '.join(table.rows[-1])}  load {load:.1f}", flush=True)
    return table


def _starts(server: LocalPostgres, broker: LocalKafka, starts: int) -> Table:
    table = Table("Start", _START_EXPLANATION.strip(), ["what", "to python", "median s", "least", "most", "times"])
    taken: dict[str, list[float]] = {}

    def note(name: str, measured: Callable[[], float], times: int = starts) -> None:
        measured()
        taken[name] = [measured() for _ in range(times)]
        load = table.note_load()
        print(f"memory  start: {name:44} {statistics.median(taken[name]):.3f} s  load {load:.1f}", flush=True)

    note("python -c pass", lambda: _run_s([sys.executable, "-c", "pass"]))
    note("cdcwatch --help", lambda: _run_s([program.run_command(Path())[0], "--help"]))
    for plugin in servers.PLUGINS:
        with servers.database(server, "bench_start") as base, tempfile.TemporaryDirectory() as directory:
            path = _prepared(base, broker, Path(directory), plugin)
            note(f"cdcwatch run until streaming, {plugin}", lambda path=path, base=base: _streaming_s(path, base))
            note(f"cdcwatch run until READY, {plugin}", lambda path=path: _ready_s(path))
            if plugin == "wal2json":
                note("the imports of cdcwatch run", lambda path=path: _imports_s(path), times=3)
    python_s = statistics.median(taken["python -c pass"])
    for name, seconds in taken.items():
        median_s = statistics.median(seconds)
        figures = (f"{median_s:.3f}", f"{min(seconds):.3f}", f"{max(seconds):.3f}", f"{len(seconds)}")
        table.rows.append([name, f"{median_s / python_s:.1f}", *figures])
    return table


def _run_s(command: Sequence[str]) -> float:
    began_s = time.monotonic()
    subprocess.run(command, env=environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
    return time.monotonic() - began_s


def _ready_s(path: Path) -> float:
    began_s = time.monotonic()
    with service(program.run_command(path)) as running:
        ready_s = time.monotonic() - began_s
        running.stop()
    return ready_s


def _streaming_s(path: Path, base: Database) -> float:
    while base.rows(_STREAMING):  # the one before is on its way out
        time.sleep(0.01)
    seen: list[float] = []
    streams = threading.Thread(target=lambda: seen.append(_begun_s(base)))
    began_s = time.monotonic()
    streams.start()
    with service(program.run_command(path)) as running:
        streams.join()
        running.stop()
    return seen[0] - began_s


def _begun_s(base: Database) -> float:
    """When a walsender streams, by the monotonic clock; one that ends doesn't count."""
    give_up_s = time.monotonic() + _STREAMING_TIMEOUT_S
    with psycopg.connect(base.dsn, autocommit=True) as connection:
        while not connection.execute(_STREAMING).fetchone():
            if time.monotonic() > give_up_s:
                raise Failure("no walsender streams")
            time.sleep(0.002)
    return time.monotonic()


def _imports_s(path: Path) -> float:
    """Of a run that ends by itself when it has caught up."""
    script, *arguments = program.run_command(path, "--until", "current")
    ended = subprocess.run(
        [sys.executable, "-X", "importtime", script, *arguments],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=True,
    )
    return imports_us(ended.stderr.decode(errors="replace")) / 1e6


def imports_us(told: str) -> int:
    """What the modules took by themselves, in all. `-X importtime` tells `import time: self | cumulative | name`."""
    lines = [
        line.partition("import time:")[2].split("|") for line in told.splitlines() if line.startswith("import time:")
    ]
    return sum(int(columns[0]) for columns in lines if columns[0].strip().isdigit())
