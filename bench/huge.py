"""How late orders are closed while the reader has a transaction, or a backlog, of a million changes to read."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psycopg

from bench import charts, program, servers
from bench.load import SCHEMA
from bench.process import Failure, service
from bench.report import Table, percentile
from cdcwatch.lsn import parse_lsn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.process import Service
    from bench.servers import Database
    from cdcwatch.local import LocalKafka, LocalPostgres

SITUATIONS = ("one transaction", "a backlog")
_ORDERS_PER_S = 100
_OVER_S = 180
_LEAD_S = 4.0
_ROWS_A_COMMIT = 1_000
_GIVE_UP_S = 300
_FIRST_CHANGE = 1_000_000_000
_ORDERS = """
INSERT INTO orders (id, customer_id, total, expires_at)
SELECT id, id %% 977, 12.50, to_timestamp(%s::float8) + id * interval '1 s' / %s FROM generate_series(1, %s) AS id
"""
_CHANGES = """
INSERT INTO orders (id, customer_id, total, expires_at)
SELECT id, id %% 977, 12.50, now() + interval '1 day' FROM generate_series(%s::bigint, %s) AS id
"""
_LATENESS_MS = """
SELECT extract(epoch FROM closed_at - expires_at)::float8 * 1000 FROM orders
WHERE expires_at >= to_timestamp(%s::float8) AND expires_at < to_timestamp(%s::float8) AND id < %s ORDER BY 1
"""
_EXPLANATION = """
cdcwatch whole: slot, Kafka with exactly_once, close; fsync is on. {rate} orders a second fall due all the time. One
transaction: it runs, and {changes:,} orders are inserted in one commit. A backlog: {changes:,} orders are inserted,
{rows:,} a commit, before it starts. Those are due in a day. Counted are the orders that fell due from the commit, or
from READY, until the slot's confirmed position had passed all of it: the seconds of reading. Read: events that were
published meanwhile, a second. Bare: what one UPDATE of one row and its commit took meanwhile, in another database of
the same server, {probes} a second: the disk's and the processors' share of the lateness, which no reader can go below.
"""
_PROBES_PER_S = 20
_PROBED = "CREATE TABLE IF NOT EXISTS bench_probed AS SELECT 1 AS id, 0 AS number"
_PROBE = "UPDATE bench_probed SET number = number + 1"


class Chewed(NamedTuple):
    """What one run showed."""

    lateness_ms: list[float]
    seconds: float
    peak_rss_mb: float
    bare_ms: list[float]
    """In order."""


def measure(broker: LocalKafka, *, changes: int, match: str = "") -> list[Table]:
    """Both situations on both plugins."""
    table = Table(
        f"Lateness while {changes:,} changes are read",
        _EXPLANATION.strip().format(rate=_ORDERS_PER_S, changes=changes, rows=_ROWS_A_COMMIT, probes=_PROBES_PER_S),
        [
            *("what is read", "orders due", "p50 ms", "p99", "max", "bare: p50 ms", "p99", "max"),
            *("early", "open", "seconds", "read/s", "RSS MB"),
        ],
    )
    lateness_ms: dict[str, list[float]] = {}
    with servers.postgres(fsync=True) as server:
        for situation in SITUATIONS:
            for plugin in servers.PLUGINS:
                name = f"cdcwatch, {plugin}, {situation}"
                if match not in name:
                    continue
                try:
                    chewed = _run(server, broker, situation, plugin, changes)
                except Failure as failure:
                    chewed = None
                    table.problems.append(f"{name}: {failure}")
                load = table.note_load()
                table.rows.append(_row(name, chewed, changes))
                lateness_ms[name] = _closed(chewed)
                print(f"huge  {'  '.join(table.rows[-1])}  load {load:.1f}", flush=True)
                if chewed and any(late_ms is None for late_ms in chewed.lateness_ms):
                    table.problems.append(f"{name}: orders were left open")
    table.series = charts.lateness(
        "lateness-huge",
        f"Lateness while {changes:,} changes are read",
        "Share of the orders that were closed so late at most. Left of the scale: 0.1 ms or less.",
        lateness_ms,
    )
    return [table]


def _run(server: LocalPostgres, broker: LocalKafka, situation: str, plugin: str, changes: int) -> Chewed:
    is_backlog = situation == SITUATIONS[1]
    with servers.database(server, "bench_huge") as base, tempfile.TemporaryDirectory() as directory:
        base.rows(SCHEMA)
        base.make_slot(plugin)
        topic = servers.Topic(broker, f"huge.{time.time_ns()}")
        topic.begin_at(base)
        if is_backlog:
            for first in range(_FIRST_CHANGE, _FIRST_CHANGE + changes, _ROWS_A_COMMIT):
                base.rows(_CHANGES, first, min(first + _ROWS_A_COMMIT, _FIRST_CHANGE + changes) - 1)
            _place_orders(base)
        path = program.configuration(Path(directory), base, topic=topic, plugin=plugin)
        with service(program.run_command(path), ready_s=120) as running:
            if not is_backlog:
                _place_orders(base)
                base.rows(_CHANGES, _FIRST_CHANGE, _FIRST_CHANGE + changes - 1)
            began_s = time.time()
            end_lsn = parse_lsn(base.value("SELECT pg_current_wal_insert_lsn()::text"))
            with _probed(server) as bare_ms:
                _await_confirmed(base, running, end_lsn)
            ended_s = time.time()
            time.sleep(1)
            rows = base.rows(_LATENESS_MS, began_s, ended_s, _FIRST_CHANGE)
            peak_rss_mb = running.peak_rss_mb
            running.stop()
    if not rows:
        raise Failure("nothing fell due while it was read: too few changes, or the load was too slow")
    return Chewed([late_ms for (late_ms,) in rows], ended_s - began_s, peak_rss_mb, sorted(bare_ms))


@contextlib.contextmanager
def _probed(server: LocalPostgres) -> Iterator[list[float]]:
    """What a bare UPDATE takes while the block runs; whole once it has left."""
    taken_ms: list[float] = []
    ended = threading.Event()

    def probe() -> None:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(_PROBED)
            while not ended.wait(1 / _PROBES_PER_S):
                began_s = time.perf_counter()
                connection.execute(_PROBE)
                taken_ms.append((time.perf_counter() - began_s) * 1000)

    thread = threading.Thread(target=probe)
    thread.start()
    try:
        yield taken_ms
    finally:
        ended.set()
        thread.join()


def _place_orders(base: Database) -> None:
    base.rows(_ORDERS, time.time() + _LEAD_S, _ORDERS_PER_S, _ORDERS_PER_S * _OVER_S)
    base.rows("ANALYZE orders")


def _await_confirmed(base: Database, running: Service, end_lsn: int) -> None:
    give_up_s = time.monotonic() + _GIVE_UP_S
    while base.confirmed_lsn() < end_lsn:
        running.require_running()
        if time.monotonic() > give_up_s:
            raise Failure(f"it was not read within {_GIVE_UP_S} s")
        time.sleep(0.1)


def _closed(chewed: Chewed | None) -> list[float]:
    """In order; those that were left open come last, as None."""
    return [late_ms for late_ms in chewed.lateness_ms if late_ms is not None] if chewed else []


def _row(name: str, chewed: Chewed | None, changes: int) -> list[str]:
    closed = _closed(chewed)
    if chewed is None or not closed:
        return [name, *["-"] * 12]
    return [
        name,
        f"{len(chewed.lateness_ms):,}",
        f"{percentile(closed, 0.5):.1f}",
        f"{percentile(closed, 0.99):.1f}",
        f"{closed[-1]:.1f}",
        *(f"{percentile(chewed.bare_ms, share):.1f}" for share in (0.5, 0.99, 1)),
        f"{sum(late_ms < 0 for late_ms in closed)}",
        f"{len(chewed.lateness_ms) - len(closed)}",
        f"{chewed.seconds:.1f}",
        f"{changes / chewed.seconds:,.0f}",
        f"{chewed.peak_rss_mb:.0f}",
    ]
