"""How soon a committed row is where it is waited for, one at a time: in cdcwatch's heap; in Debezium's handler."""

from __future__ import annotations

import queue
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench import program, servers
from bench.load import SCHEMA
from bench.peers import Missing, debezium
from bench.process import Failure, service
from bench.report import Table, percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.process import Service
    from bench.servers import Database
    from cdcwatch.local import LocalKafka, LocalPostgres

_WATCHED = Path(__file__).with_name("watched.py")
_SEEN_TIMEOUT_S = 30
_WARM_UP_ROWS = 100
_DEBEZIUM = f"Debezium {debezium.VERSION}, poll 1 ms, in the handler"
_EXPLANATION = """
From COMMIT, by the client that inserted the row, until the order is in the heap of deadlines (cdcwatch whole: slot,
Kafka with exactly_once, close), or until its JSON is in the handler of Debezium's embedded engine (poll 1 ms, no
sink). Both note the time themselves, by the clock of the same machine; of cdcwatch the method that files deadlines is
watched from outside (`bench/watched.py`). Sent: from sending COMMIT, which the server makes durable first; fsync is
on. Returned: from its answer, which can come after the row was seen: then it is less than nothing. The next row
follows 5 to 30 ms after the last.
"""


class Delay(NamedTuple):
    """Of one row."""

    from_sent_ms: float
    from_returned_ms: float


@dataclass(frozen=True)
class Watcher:
    """A program that prints READY, and then of every row the key and when it saw it."""

    name: str
    plugin: str
    command: Callable[[Database, Path], Sequence[str]]
    ends_itself: bool = True
    """With status 0 when it is sent SIGTERM."""


def measure(broker: LocalKafka, server: LocalPostgres, *, rows: int) -> Table:
    """Every watcher once."""
    table = Table(
        f"From commit to the heap, {rows:,} rows one at a time",
        _EXPLANATION.strip(),
        ["where", "sent: p50 ms", "p99", "max", "returned: p50 ms", "p99", "max", "seen"],
    )

    def ours(plugin: str) -> Watcher:
        def command(base: Database, directory: Path) -> list[str]:
            topic = servers.Topic(broker, f"heap.{time.time_ns()}")
            path = program.configuration(directory, base, topic=topic, plugin=plugin)
            return [sys.executable, str(_WATCHED), "run", "-c", str(path)]

        return Watcher(f"cdcwatch, {plugin}, in the heap", plugin, command)

    watchers = [ours(plugin) for plugin in servers.PLUGINS]
    lacks: dict[str, Missing] = {}
    try:
        engine = debezium.Debezium()
    except Missing as why:
        lacks[_DEBEZIUM] = why
    else:
        watchers.append(
            Watcher(
                _DEBEZIUM,
                "pgoutput",
                lambda base, _: engine.command(base, servers.SLOT, 0, *debezium.AT_ONCE),
                ends_itself=False,
            )
        )
    for watcher in watchers:
        delays: list[Delay] = []
        try:
            delays = _delays(watcher, server, rows)
        except Failure as failure:
            table.problems.append(f"{watcher.name}: {failure}")
        load = table.note_load()
        table.rows.append(_row(watcher.name, delays, rows))
        print(f"visible  {'  '.join(table.rows[-1])}  load {load:.1f}", flush=True)
    for name, why in lacks.items():
        table.lack(name, why)
    return table


def _delays(watcher: Watcher, server: LocalPostgres, rows: int) -> list[Delay]:
    delays = []
    with servers.database(server, "bench_heap") as base, tempfile.TemporaryDirectory() as directory:
        base.rows(SCHEMA)
        base.make_slot(watcher.plugin)
        with service(watcher.command(base, Path(directory))) as running:
            seen = _Seen(running)
            for key in range(1, rows + _WARM_UP_ROWS + 1):
                base.rows("BEGIN")
                base.rows("INSERT INTO orders (id, expires_at) VALUES (%s, clock_timestamp() + interval '30 min')", key)
                sent_us = time.time_ns() // 1000
                base.rows("COMMIT")
                returned_us = time.time_ns() // 1000
                seen_us = seen.await_key(key)
                if key > _WARM_UP_ROWS:
                    delays.append(Delay((seen_us - sent_us) / 1000, (seen_us - returned_us) / 1000))
                time.sleep(random.uniform(0.005, 0.030))
            if watcher.ends_itself:
                running.stop()
    return delays


class _Seen(threading.Thread):
    """Reads what a service prints."""

    def __init__(self, running: Service) -> None:
        super().__init__(daemon=True)
        self._running = running
        self._lines: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
        self.start()

    def run(self) -> None:
        for line in self._running.lines():
            key, at_us = line.split()
            self._lines.put((int(key), int(at_us)))

    def await_key(self, key: int) -> int:
        """When it was seen first, microseconds since 1970."""
        while True:
            try:
                seen, at_us = self._lines.get(timeout=_SEEN_TIMEOUT_S)
            except queue.Empty:
                self._running.require_running()
                raise Failure(f"row {key} was not seen within {_SEEN_TIMEOUT_S} s") from None
            if seen == key:
                return at_us


def _row(name: str, delays: Sequence[Delay], rows: int) -> list[str]:
    if not delays:
        return [name, *["-"] * 6, f"0/{rows}"]
    figures = []
    for values in (sorted(delay.from_sent_ms for delay in delays), sorted(delay.from_returned_ms for delay in delays)):
        figures += [f"{percentile(values, 0.5):.2f}", f"{percentile(values, 0.99):.2f}", f"{values[-1]:.2f}"]
    return [name, *figures, f"{len(delays)}/{rows}"]
