"""`python -m bench`: measures, prints tables, and writes results.json and what is made of it.

Exit status 1 when the figures don't hold. A part that is measured by itself leaves the results of the others.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench import closes, growth, huge, lateness, memory, read, results, scale, servers, sinks, takeover, visible
from bench.process import Failure
from cdcwatch.local.binaries import find_postgres
from cdcwatch.local.kafka import KAFKA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.report import Table
    from cdcwatch.local import LocalKafka

PARTS: dict[str, Callable[[LocalKafka, argparse.Namespace], list[Table]]] = {
    "read": lambda broker, how: read.measure(
        broker, events=how.events, rounds=how.rounds, match=how.match, flame=how.flame
    ),
    "visible": lambda broker, how: visible.measure(broker, rows=how.rows),
    "lateness": lambda broker, how: lateness.measure(broker, rounds=how.rounds, match=how.match),
    "huge": lambda broker, how: huge.measure(broker, changes=how.huge, match=how.match),
    "closes": lambda broker, how: closes.measure(broker, orders=how.orders, rounds=how.rounds),
    "sinks": lambda broker, how: sinks.measure(
        broker, orders=how.orders // 2, entries=how.entries, rounds=1, match=how.match
    ),
    "memory": lambda broker, how: memory.measure(broker, starts=how.starts),
    "growth": lambda broker, how: growth.measure(broker, most=how.most),
}
BY_NAME_ONLY: dict[str, Callable[[LocalKafka, argparse.Namespace], list[Table]]] = {
    "scale": lambda broker, how: scale.measure(broker, rows=how.pending, rounds=how.scale_rounds),
    "takeover": lambda broker, how: takeover.measure(broker, kills=how.kills, match=how.match),
}


def main() -> int:
    """Every part in turn, or those that are named; 130 where it is interrupted."""
    try:
        return _measured()
    except KeyboardInterrupt:
        print("interrupted: what was measured whole is kept", file=sys.stderr)
        return 130


def _measured() -> int:
    how, load_before = _arguments(), os.getloadavg()[0]
    parts = results.load()
    if how.charts:
        _told(parts)
        return 0
    command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
    versions = f"PostgreSQL {find_postgres().major} with wal2json, Apache Kafka {KAFKA_VERSION}"
    chosen = {name: measure for name, measure in {**PARTS, **BY_NAME_ONLY}.items() if name in (how.only or PARTS)}
    measured: dict[str, results.Part] = {}
    failed: list[str] = []
    with servers.kafka() as broker:
        servers.warm_up(broker)
        for name, measure in chosen.items():
            part = results.made(command, versions, load_before)
            began_s = time.monotonic()
            try:
                part.tables = measure(broker, how)
            except Failure as failure:  # the others are measured all the same
                print(f"! {name}: {failure}", file=sys.stderr, flush=True)
                failed.append(name)
                continue
            part.seconds = round(time.monotonic() - began_s, 1)
            measured[name] = part
            print("\n" + "\n".join(table.text() for table in part.tables), flush=True)
            print(f"{part.conditions()}\n{part.caveat()}", flush=True)
            if how.flame:
                results.describe(how.flame, part)
            if not how.no_results:
                parts[name] = part
                results.save({name: parts[name] for name in (*PARTS, *BY_NAME_ONLY) if name in parts})
    print("seconds: " + ", ".join(f"{name} {part.seconds:.0f}" for name, part in measured.items()))
    if not how.no_results:
        _told(results.load())
    tables = [table for part in measured.values() for table in part.tables]
    if not failed and not _is_named(how.match, tables):
        print(f"nothing is named {how.match!r}", file=sys.stderr)
        return 2
    return 1 if failed or any(table.problems for table in tables) else 0


def _is_named(match: str, tables: list[Table]) -> bool:
    return any(match in name for table in tables for name in (table.title, *(row[0] for row in table.rows)))


def _told(parts: dict[str, results.Part]) -> None:
    for path in results.write(parts):
        print(f"written: {path}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    names = (*PARTS, *BY_NAME_ONLY)
    parser.add_argument(
        "--only",
        nargs="+",
        choices=names,
        metavar="NAME",
        help=f"of {', '.join(names)}; the last two run only when named",
    )
    parser.add_argument("--rounds", type=int, default=2, help="read, lateness at one instant, closes (default 2)")
    parser.add_argument(
        "--match",
        default="",
        metavar="TEXT",
        help="only rows named so: of read, huge, takeover; of lateness shapes of load, of sinks sinks",
    )
    parser.add_argument("--events", type=int, default=300_000, help="read: row changes (default 300000)")
    parser.add_argument("--rows", type=int, default=200, help="visible: rows (default 200)")
    parser.add_argument(
        "--huge",
        type=int,
        default=1_000_000,
        help="huge: changes (default 1000000; with less than 200000 they are read before an order falls due)",
    )
    parser.add_argument(
        "--orders",
        type=int,
        default=100_000,
        help="closes: orders due at once (default 100000); sinks: half of them",
    )
    parser.add_argument("--entries", type=int, default=1_000_000, help="sinks: entries at a start (default 1000000)")
    parser.add_argument("--starts", type=int, default=10, help="memory: starts (default 10)")
    parser.add_argument("--most", type=int, default=10_000_000, help="growth: orders in memory (default 10000000)")
    parser.add_argument("--pending", type=int, default=10_000_000, help="scale: orders in the table (default 10000000)")
    parser.add_argument("--scale-rounds", type=int, default=1, help="scale: rounds (default 1)")
    parser.add_argument("--kills", type=int, default=20, help="takeover: of each layout (default 20)")
    parser.add_argument("--no-results", action="store_true", help="print only; leave the files as they are")
    parser.add_argument(
        "--flame", type=Path, metavar="SVG", help="read: cdcwatch under py-spy, a flame graph into SVG; --no-results"
    )
    parser.add_argument(
        "--charts", action="store_true", help="measure nothing; write the files from results.json again"
    )
    how = parser.parse_args()
    how.no_results |= how.flame is not None
    return how


if __name__ == "__main__":
    sys.exit(main())
