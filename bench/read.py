"""How fast a slot is read: every reader gets a fresh copy of one template slot, and so the same WAL."""

from __future__ import annotations

import functools
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench import program, servers
from bench.process import process_cpu_s, run_to_end, tree_cpu_s
from bench.report import Table
from cdcwatch.lsn import parse_lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.servers import Database, Topic
    from cdcwatch.local import LocalKafka

ROWS_A_COMMIT = 10
BASELINE = "pg_recvlogical"
_TEMPLATE = "bench_template"
_SCHEMA = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer_id bigint, total numeric(12,2), status text NOT NULL, version int NOT NULL,
    expires_at timestamptz, created_at timestamptz, updated_at timestamptz, closed_at timestamptz
);
CREATE PROCEDURE place_orders(count int, rows_a_commit int) LANGUAGE plpgsql AS $$
BEGIN
    FOR start_id IN 1 .. count BY rows_a_commit LOOP
        INSERT INTO orders (id, customer_id, total, status, version, expires_at, created_at, updated_at)
        SELECT id, id * 6007 % 90001, id % 250000 / 100.0, 'pending', 1, day + id * interval '1.7 s',
               day + id * interval '1.3 s', day + id * interval '1.3 s'
        FROM generate_series(start_id, least(start_id + rows_a_commit - 1, count)) AS id,
             CAST('2026-03-01 00:00+00' AS timestamptz) AS day;
        COMMIT;
    END LOOP;
END $$;
CREATE PROCEDURE settle_orders(count int, rows_a_commit int) LANGUAGE plpgsql AS $$
BEGIN
    FOR start_id IN 1 .. count BY rows_a_commit LOOP
        UPDATE orders SET status = CASE id % 4 WHEN 0 THEN 'cancelled' ELSE 'paid' END, version = version + 1,
               updated_at = created_at + interval '90 s'
        WHERE id BETWEEN start_id AND least(start_id + rows_a_commit - 1, count);
        COMMIT;
    END LOOP;
END $$;
"""
_LIMIT_S = 240
_EXPLANATION = """
Row changes of an orders table, two thirds inserts and one third updates, {rows} a commit, behind a wal2json slot.
Each reader is a process, measured from start to exit, which is when everything is durable and confirmed; pg_recvlogical
writes the bytes to /dev/null and parses nothing. Ratio: events/s to `{baseline}` of the same round. The server's
fsync is off here, so that only reading is measured. One run into Kafka comes before the first round and isn't counted.
"""


@dataclass(frozen=True)
class Place:
    """What a reader is told."""

    base: Database
    slot: str
    end_lsn: str
    directory: Path
    topic: Topic | None


@dataclass(frozen=True)
class Reader:
    """A program that reads the slot to the end and exits."""

    name: str
    command: Callable[[Place], Sequence[str | Path]]
    publishes: bool = False
    """Whether the topic must hold every event afterwards."""


class Run(NamedTuple):
    """One reader in one round."""

    events_a_s: float
    client_cpu_s: float
    server_cpu_s: float
    broker_cpu_s: float
    peak_rss_mb: float
    is_confirmed: bool
    problem: str


def readers() -> list[Reader]:
    """The baseline first. Another program to be measured beside them is another entry."""
    own_options = ("include-lsn=true", "include-xids=true", "include-timestamp=true", "include-types=false")
    return [
        Reader(BASELINE, functools.partial(_pg_recvlogical, options=())),
        Reader(f"{BASELINE}, cdcwatch's plugin options", functools.partial(_pg_recvlogical, options=own_options)),
        Reader("cdcwatch, no sink", functools.partial(_cdcwatch, delivery="")),
        Reader("cdcwatch, Kafka exactly_once", functools.partial(_cdcwatch, delivery="exactly_once"), publishes=True),
        Reader("cdcwatch, Kafka at_least_once", functools.partial(_cdcwatch, delivery="at_least_once"), publishes=True),
    ]


def _pg_recvlogical(place: Place, *, options: Sequence[str]) -> list[str | Path]:
    chosen = ("format-version=2", "add-tables=public.orders", *options)
    return [
        place.base.server.binaries / "pg_recvlogical",
        *("-d", place.base.dsn, "-S", place.slot, "--start", "--no-loop", f"--endpos={place.end_lsn}"),
        *("-f", "/dev/null", *(part for option in chosen for part in ("-o", option))),
    ]


def _cdcwatch(place: Place, *, delivery: str) -> list[str]:
    path = program.configuration(
        place.directory, place.base, slot=place.slot, topic=place.topic if delivery else None, delivery=delivery
    )
    return program.run_command(path, "--role", "read", "--until", place.end_lsn)


def measure(broker: LocalKafka, *, events: int, rounds: int, match: str = "") -> list[Table]:
    """Every reader in every round, every other backwards. `match`: those whose name holds it, and the baseline."""
    chosen = [reader for reader in readers() if reader.name == BASELINE or match in reader.name]
    table = Table(
        f"read: {events:,} changes from a slot",
        _EXPLANATION.strip().format(rows=ROWS_A_COMMIT, baseline=BASELINE),
        ["reader", "ratio", "events/s", "client CPU s/100k", "PostgreSQL", "Kafka", "peak RSS MB", "confirmed"],
    )
    runs: dict[str, list[Run]] = {reader.name: [] for reader in chosen}
    with servers.postgres(fsync=False) as server, servers.database(server, "bench_read") as base:
        print(f"read: writing {events:,} changes", flush=True)
        end_lsn = _prepare(base, events)
        for reader in chosen:
            if reader.publishes:  # not counted: a broker that has just started compiles more than it writes
                _run(reader, base, broker, end_lsn, events, -1)
                break
        for number in range(rounds):
            for reader in chosen if number % 2 == 0 else reversed(chosen):
                run = _run(reader, base, broker, end_lsn, events, number)
                load = table.note_load()
                runs[reader.name].append(run)
                print(
                    f"read {number + 1}/{rounds}  {reader.name:44}{run.events_a_s:10,.0f} events/s"
                    f"  cpu {run.client_cpu_s:5.2f} + {run.server_cpu_s:5.2f} + {run.broker_cpu_s:5.2f} s"
                    f"  load {load:.1f}",
                    flush=True,
                )
                if run.problem:
                    table.problems.append(f"{reader.name}, round {number + 1}: {run.problem}")
    table.rows += [_row(name, done, runs[BASELINE], events) for name, done in runs.items()]
    return [table]


def _prepare(base: Database, events: int) -> str:
    """The template slot with the changes behind it; where a reader is done."""
    base.rows(_SCHEMA)
    base.rows("SELECT pg_create_logical_replication_slot(%s, 'wal2json')", _TEMPLATE)
    inserts = events * 2 // 3
    base.rows("CALL place_orders(%s, %s)", inserts, ROWS_A_COMMIT)
    base.rows("CALL settle_orders(%s, %s)", events - inserts, ROWS_A_COMMIT)
    end_lsn: str = base.value("SELECT pg_current_wal_insert_lsn()::text")
    # One commit more: a reader that looks at commits alone finds one that ends behind end_lsn.
    base.rows("INSERT INTO orders (id, status, version) VALUES (0, 'no order', 1)")
    base.rows("CHECKPOINT")
    return end_lsn


def _run(reader: Reader, base: Database, broker: LocalKafka, end_lsn: str, events: int, number: int) -> Run:
    slot = servers.SLOT
    base.rows("SELECT pg_copy_logical_replication_slot(%s, %s)", _TEMPLATE, slot)
    topic = None
    if reader.publishes:
        topic = servers.Topic(broker, f"read.{number + 1}.{''.join(c for c in reader.name if c.isalnum())}")
        topic.begin_at(base, slot)
    postmaster, kafka = base.server.pid or 0, broker.pid or 0
    with tempfile.TemporaryDirectory(prefix="cdcwatch-bench-") as directory:
        command = reader.command(Place(base, slot, end_lsn, Path(directory), topic))
        server_before_s, broker_before_s = tree_cpu_s(postmaster), process_cpu_s(kafka)
        ended = run_to_end(command, limit_s=_LIMIT_S)
        is_confirmed = base.confirmed_lsn(slot) >= parse_lsn(end_lsn)
        base.drop_slot(slot)  # returns once the walsender has let go: its time counts whole
        server_cpu_s = tree_cpu_s(postmaster) - server_before_s
        broker_cpu_s = process_cpu_s(kafka) - broker_before_s
    problem = ""
    if ended.status != 0:
        problem = f"exit status {ended.status}: {ended.complaint.strip()}"
    elif not is_confirmed:
        problem = "confirmed_flush_lsn is short of the end"
    elif topic is not None and (found := topic.count()) != events:
        problem = f"{found:,} of {events:,} events in the topic"
    return Run(events / ended.wall_s, ended.cpu_s, server_cpu_s, broker_cpu_s, ended.peak_rss_mb, is_confirmed, problem)


def _row(name: str, runs: list[Run], baseline: list[Run], events: int) -> list[str]:
    pairs = [(run, base) for run, base in zip(runs, baseline, strict=True) if not run.problem and not base.problem]
    if not pairs:
        return [name, "-", "-", "-", "-", "-", "-", "no"]
    median, done = statistics.median, [run for run, _ in pairs]
    per_100k = 100_000 / events
    return [
        name,
        f"{median(run.events_a_s / base.events_a_s for run, base in pairs):.2f}",
        f"{median(run.events_a_s for run in done):,.0f}",
        f"{median(run.client_cpu_s for run in done) * per_100k:.2f}",
        f"{median(run.server_cpu_s for run in done) * per_100k:.2f}",
        f"{median(run.broker_cpu_s for run in done) * per_100k:.2f}",
        f"{median(run.peak_rss_mb for run in done):.0f}",
        "yes" if all(run.is_confirmed for run in done) else "no",
    ]
