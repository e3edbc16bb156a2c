"""`python -m bench`: measures, prints tables and writes RESULTS.md. Exit status 1 when the figures don't hold."""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from bench import lateness, read, report, scale, servers, takeover, visible
from cdcwatch.local.binaries import find_postgres
from cdcwatch.local.kafka import KAFKA_VERSION

if TYPE_CHECKING:
    from bench.report import Table
    from cdcwatch.local import LocalKafka

RESULTS = Path(__file__).with_name("RESULTS.md")
NAMES = ("read", "lateness", "visible", "scale", "takeover")


def main() -> int:
    """Every measurement in turn, or the one that is named."""
    arguments = _arguments()
    tables: list[Table] = []
    with servers.kafka() as broker:
        for name in NAMES if arguments.only is None else [arguments.only]:
            made = _measure(name, broker, arguments)
            print("\n" + "\n".join(table.text() for table in made), flush=True)
            tables += made
    if not arguments.no_results:
        command = shlex.join(["python", "-m", "bench", *sys.argv[1:]])
        conditions = f"PostgreSQL {find_postgres().major} with wal2json, Apache Kafka {KAFKA_VERSION}"
        RESULTS.write_text(report.document(tables, servers=conditions, command=command))
        print(f"written: {RESULTS}")
    return 1 if any(table.problems for table in tables) else 0


def _measure(name: str, broker: LocalKafka, arguments: argparse.Namespace) -> list[Table]:
    if name == "read":
        return read.measure(broker, events=arguments.events, rounds=arguments.rounds, match=arguments.match)
    if name == "lateness":
        return lateness.measure(broker, rounds=arguments.lateness_rounds, match=arguments.match)
    if name == "scale":
        return scale.measure(broker, rows=arguments.pending, rounds=arguments.scale_rounds)
    if name == "takeover":
        return takeover.measure(broker, kills=arguments.kills, match=arguments.match)
    return visible.measure(broker, rows=arguments.rows)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", choices=NAMES, metavar="NAME", help=f"one of {', '.join(NAMES)}")
    parser.add_argument("--events", type=int, default=450_000, help="read: row changes (default 450000)")
    parser.add_argument("--rounds", type=int, default=3, help="read: rounds (default 3)")
    parser.add_argument("--match", default="", metavar="TEXT", help="only readers, or shapes of load, named so")
    parser.add_argument("--lateness-rounds", type=int, default=1, help="lateness: rounds (default 1)")
    parser.add_argument("--rows", type=int, default=200, help="visible: rows (default 200)")
    parser.add_argument("--pending", type=int, default=10_000_000, help="scale: orders in the table (default 10000000)")
    parser.add_argument("--scale-rounds", type=int, default=1, help="scale: rounds (default 1)")
    parser.add_argument("--kills", type=int, default=20, help="takeover: of each layout (default 20)")
    parser.add_argument("--no-results", action="store_true", help="print only; leave RESULTS.md as it is")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
