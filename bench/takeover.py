"""How long after the active process is killed its hot standby goes on: events that subscribers see, and closes."""

from __future__ import annotations

import contextlib
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import psycopg

from bench import program, servers
from bench.load import SCHEMA
from bench.process import Failure, environment
from bench.report import Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.servers import Database, Topic
    from cdcwatch.local import LocalKafka

LIMIT_S = 5.0
_ORDERS_PER_S = 100
_DUE_S = 0.5
_GIVE_UP_S = 90
_EXPLANATION = """
Two processes on one slot, Kafka with exactly_once, default settings, all on the machine of the servers. Orders come
all the time, {rate} a second, each due after {due} s. The active process is killed (SIGKILL). Counted are the seconds
from there until a read_committed subscriber sees the event of an order that was inserted afterwards, and until an
order is closed that was due afterwards; then how late the latest close was. Two workers (`--role close`) go on
closing beside `--role read`. The last two rows: one worker of three is ended, by SIGKILL or SIGTERM, beside one
reader. A host that dies without a word shows only after the server's wal_sender_timeout, or the worker's
session.timeout.ms.
"""


@dataclass(frozen=True)
class Layout:
    """Two of `role`, of which one is ended, and what else there is."""

    name: str
    role: str
    beside: tuple[str, ...] = ()
    stands_by: str = "standby:"
    """What the second one's log says when it is in its place."""
    signal: signal.Signals = signal.SIGKILL


_SHARES = f"; has {servers.PARTITIONS // 3} of"
LAYOUTS = [
    Layout("two `run`", "all"),
    Layout("two `--role read`, two `--role close`", "read", ("close", "close")),
    Layout("three `--role close`, SIGKILL", "close", ("read", "close"), _SHARES),
    Layout("three `--role close`, SIGTERM", "close", ("read", "close"), _SHARES, signal.SIGTERM),
]


class Taken(NamedTuple):
    """One kill."""

    event_s: float
    close_s: float
    late_s: float


def measure(broker: LocalKafka, *, kills: int, match: str = "") -> list[Table]:
    """One table; a row a layout."""
    table = Table(
        "takeover",
        _EXPLANATION.strip().format(rate=_ORDERS_PER_S, due=_DUE_S),
        ["layout", "kills", "event s: median", "max", "close s: median", "max", "latest close s: median", "max"],
    )
    with servers.postgres(fsync=True) as server:
        for layout in [layout for layout in LAYOUTS if match in layout.name]:
            with servers.database(server, "bench_takeover") as base, tempfile.TemporaryDirectory() as directory:
                base.rows(SCHEMA)
                topic = servers.Topic(broker, f"takeover.{time.time_ns()}")
                base.rows("SELECT pg_create_logical_replication_slot(%s, 'wal2json')", servers.SLOT)
                taken = _killed_again_and_again(layout, base, topic, Path(directory), kills, table)
            table.rows.append(_row(layout, taken))
            worst_s = max((one.event_s for one in taken), default=0.0)
            if layout.role != "close" and worst_s > LIMIT_S:
                table.problems.append(f"{layout.name}: {worst_s:.1f} s, and {LIMIT_S:g} are allowed")
    return [table]


def _killed_again_and_again(
    layout: Layout, base: Database, topic: Topic, directory: Path, kills: int, table: Table
) -> list[Taken]:
    path = program.configuration(directory, base, topic=topic, delivery="exactly_once")
    taken = []
    with contextlib.ExitStack() as stack:
        beside = [stack.enter_context(_Process(path, directory, role)) for role in layout.beside]
        active = stack.enter_context(_Process(path, directory, layout.role))
        for process in (active, *beside):
            process.await_said(" ready")
        seen = stack.enter_context(_Seen(topic))
        orders = stack.enter_context(_Orders(base))
        for number in range(kills):
            standby = stack.enter_context(_Process(path, directory, layout.role))
            standby.await_said(layout.stands_by)
            mark = orders.count
            _await(lambda mark=mark: seen.at_s(mark) is not None, "the active one publishes")
            taken.append(_ended(active, layout, base, orders, seen))
            active = standby
            load = table.note_load()
            print(
                f"takeover {number + 1}/{kills}  {layout.name:40} event {taken[-1].event_s:.2f} s"
                f"  close {taken[-1].close_s:.2f} s  latest {taken[-1].late_s:.2f} s  load {load:.1f}",
                flush=True,
            )
    return taken


def _ended(active: _Process, layout: Layout, base: Database, orders: _Orders, seen: _Seen) -> Taken:
    killed_s = time.time()
    active.end(layout.signal)
    first = orders.count + 2  # the one being inserted may be older than the kill
    event_s = _await(lambda: seen.first_after(first), "the standby publishes") - killed_s
    late = "SELECT count(*) FROM orders WHERE id <= %s AND closed_at IS NULL"
    _await(lambda: base.value(late, first + _ORDERS_PER_S) == 0 and orders.count > first + _ORDERS_PER_S, "closed")
    close_s, late_s = base.rows(
        "SELECT extract(epoch FROM min(closed_at)) - %s::float8, extract(epoch FROM max(closed_at - expires_at))"
        " FROM orders WHERE expires_at >= to_timestamp(%s::float8)",
        killed_s,
        killed_s,
    )[0]
    return Taken(event_s, float(close_s), float(late_s))


class _Process:
    """A `cdcwatch run`, ready or standing by."""

    def __init__(self, path: Path, directory: Path, role: str) -> None:
        self._log = directory / f"{role}-{time.time_ns()}.log"
        with self._log.open("wb") as file:
            self._child = subprocess.Popen(
                program.run_command(path, "--role", role),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=file,
                env=environment(),
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end(signal.SIGKILL)

    def await_said(self, word: str) -> None:
        """Until its log has it."""

        def said() -> bool:
            if self._child.poll() is not None:
                raise Failure(f"ended with status {self._child.returncode}: {self._log.read_text()[-1500:]}")
            return word in self._log.read_text()

        _await(said, word)

    def end(self, number: signal.Signals) -> None:
        self._child.send_signal(number)
        self._child.wait()


class _Orders(threading.Thread):
    """Inserts orders 1, 2, 3 … without end."""

    def __init__(self, base: Database) -> None:
        super().__init__(daemon=True)
        self._dsn = base.dsn
        self._ended = threading.Event()
        self.count = 0

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self._ended.wait(1 / _ORDERS_PER_S):
                connection.execute(
                    "INSERT INTO orders (id, expires_at) VALUES (%s, clock_timestamp() + %s * interval '1 s')",
                    [self.count + 1, _DUE_S],
                )
                self.count += 1


class _Seen(threading.Thread):
    """When a subscriber saw the first event of each order."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(daemon=True)
        self._subscriber: Any = topic.subscriber()
        self._ended = threading.Event()
        self._at_s: dict[int, float] = {}

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()
        self._subscriber.close()

    def run(self) -> None:
        while not self._ended.is_set():
            message = self._subscriber.poll(0.1)
            if message is not None and message.error() is None:
                self._at_s.setdefault(int(message.key()), time.time())

    def at_s(self, order: int) -> float | None:
        return self._at_s.get(order)

    def first_after(self, order: int) -> float | None:
        """When the first of the orders from there on was seen."""
        return min((at_s for number, at_s in list(self._at_s.items()) if number >= order), default=None)


def _await(look: Any, what: str) -> Any:
    give_up_s = time.monotonic() + _GIVE_UP_S
    while not (found := look()):
        if time.monotonic() > give_up_s:
            raise Failure(f"not within {_GIVE_UP_S} s: {what}")
        time.sleep(0.005)
    return found


def _row(layout: Layout, taken: Sequence[Taken]) -> list[str]:
    def both(values: Iterator[float]) -> list[str]:
        listed = list(values)
        return [f"{statistics.median(listed):.2f}", f"{max(listed):.2f}"]

    return [
        layout.name,
        f"{len(taken)}",
        *both(one.event_s for one in taken),
        *both(one.close_s for one in taken),
        *both(one.late_s for one in taken),
    ]
