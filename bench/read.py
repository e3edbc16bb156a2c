"""How fast a slot is read: every reader gets a fresh copy of one template slot, and so the same WAL."""

from __future__ import annotations

import re
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench import charts, servers
from bench.essentials import SAME_PLUGIN
from bench.process import process_cpu_s, run_to_end, tree_cpu_s
from bench.readers import BASELINE, DEBEZIUM, DEBEZIUM_WARM, Place, baseline_of, readers
from bench.report import Table
from cdcwatch.lsn import parse_lsn

if TYPE_CHECKING:
    from bench.readers import Reader
    from bench.servers import Database
    from cdcwatch.local import LocalKafka

ROWS_A_COMMIT = 10
_TEMPLATE = "bench_template_"
_SCHEMA = """
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer_id bigint, total numeric(12,2), status text NOT NULL, version int NOT NULL,
    expires_at timestamptz, created_at timestamptz, updated_at timestamptz, closed_at timestamptz
);
CREATE PROCEDURE place_orders(count int, rows_a_commit int) LANGUAGE plpgsql AS $$
BEGIN
    FOR start_id IN 1 .. count BY rows_a_commit LOOP
        INSERT INTO orders (id, customer_id, total, status, version, expires_at, created_at, updated_at)
        SELECT id, id::bigint * 6007 % 90001, id % 250000 / 100.0, 'pending', 1, day + id * interval '1.7 s',
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
_SECOND_PART = re.compile(r"second part ([1-9]\d*) events ([1-9]\d*) ns")
_EXPLANATION = """
Row changes of an orders table, two thirds inserts and one third updates, {rows} a commit, behind a slot of either
plugin. Each reader is a process, measured from start to exit, which is when everything is durable and confirmed.
pg_recvlogical writes the bytes to /dev/null and parses nothing; psycopg2 is its replication cursor and json.loads;
Debezium is the embedded engine, tuned for a backlog, which makes JSON and gives it to nobody. All who read by
pgoutput read the same publication, of the four columns that cdcwatch needs. Ratio: events/s to `{baseline}` of the
same round; to it with the same plugin: to pg_recvlogical of the reader's plugin; to Debezium: of those that publish
to Kafka, to Debezium without a sink, once its virtual machine is warm. CPU: seconds a 100,000 events, of the reader,
of PostgreSQL and of Kafka. A start is part of the time of every row but one: with few changes it is most of it, and
of Debezium's it always is much, so that there is a row of the second half of its events alone. pg_recvlogical is no
upper limit: it takes every message at once, whereby the server sends one after the other; cdcwatch lets the socket
fill and takes large bites, which costs the server half of the time. fsync of PostgreSQL is off here, so that only
reading is measured. One run into Kafka comes before the first round and isn't counted.
"""


class Run(NamedTuple):
    """One reader in one round."""

    events_a_s: float
    client_cpu_s: float
    server_cpu_s: float
    broker_cpu_s: float
    peak_rss_mb: float
    is_confirmed: bool
    problem: str
    warm_events_a_s: float = 0.0
    """Of the second part of its events, where the reader tells; else 0."""


def measure(broker: LocalKafka, *, events: int, rounds: int, match: str = "", flame: Path | None = None) -> list[Table]:
    """Every reader in every round, every other backwards. `match`: those whose name holds it, and the baseline."""
    table = Table(
        f"Reading {events:,} changes from a slot",
        _EXPLANATION.strip().format(rows=ROWS_A_COMMIT, baseline=BASELINE),
        [
            "reader",
            "to pg_recvlogical wal2json",
            SAME_PLUGIN,
            "to Debezium",
            "events/s",
            "client CPU s/100k",
            "PostgreSQL",
            "Kafka",
            "peak RSS MB",
            "confirmed",
        ],
    )
    chosen, missing = readers(match, flame)
    runs: dict[Reader, list[Run]] = {reader: [] for reader in chosen}
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
                runs[reader].append(run)
                print(
                    f"read {number + 1}/{rounds}  {reader.name:44}{run.events_a_s:10,.0f} events/s"
                    f"  cpu {run.client_cpu_s:5.2f} + {run.server_cpu_s:5.2f} + {run.broker_cpu_s:5.2f} s"
                    f"  load {load:.1f}",
                    flush=True,
                )
                if run.problem:
                    table.problems.append(f"{reader.name}, round {number + 1}: {run.problem}")
    by_name = {reader.name: done for reader, done in runs.items()}
    by_name[DEBEZIUM_WARM] = [run._replace(events_a_s=run.warm_events_a_s) for run in by_name.get(DEBEZIUM, [])]
    table.rows += [_row(reader, done, by_name, events) for reader, done in runs.items()]
    if DEBEZIUM in by_name:
        table.rows.append(_warm_row(by_name))
    for name, why in missing.items():
        table.lack(name, why)
    table.series = charts.bars(
        "read",
        "Changes read from a slot, a second",
        f"{events:,} changes; {charts.rounds_said(rounds)}; from start to exit",
        {name: rate for name, done in by_name.items() if (rate := _rate(done))},
    )
    return [table]


def _prepare(base: Database, events: int) -> str:
    """The template slot with the changes behind it; where a reader is done."""
    base.rows(_SCHEMA)
    for plugin in servers.PLUGINS:
        base.make_slot(plugin, _TEMPLATE + plugin)
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
    base.rows("SELECT pg_copy_logical_replication_slot(%s, %s)", _TEMPLATE + reader.plugin, slot)
    topic = None
    if reader.publishes:
        topic = servers.Topic(broker, f"read.{number + 1}.{''.join(c for c in reader.name if c.isalnum())}")
        topic.begin_at(base, slot)
    postmaster, kafka = base.server.pid or 0, broker.pid or 0
    with tempfile.TemporaryDirectory(prefix="cdcwatch-bench-") as directory:
        command = reader.command(Place(base, slot, end_lsn, events, Path(directory), topic))
        server_before_s, broker_before_s = tree_cpu_s(postmaster), process_cpu_s(kafka)
        ended = run_to_end(command, limit_s=_LIMIT_S)
        is_confirmed = base.confirmed_lsn(slot) >= parse_lsn(end_lsn)
        base.drop_slot(slot)  # returns once the walsender has let go: its time counts whole
        server_cpu_s = tree_cpu_s(postmaster) - server_before_s
        broker_cpu_s = process_cpu_s(kafka) - broker_before_s
    problem = ""
    if ended.status != 0:
        problem = f"exit status {ended.status}: {ended.complaint.strip()}"
    elif not is_confirmed and not reader.may_lag:
        problem = "confirmed_flush_lsn is short of the end"
    elif topic is not None and (found := topic.count()) != events:
        problem = f"{found:,} of {events:,} events in the topic"
    return Run(
        events / ended.wall_s,
        ended.cpu_s,
        server_cpu_s,
        broker_cpu_s,
        ended.peak_rss_mb,
        is_confirmed,
        problem,
        warm_events_a_s(ended.complaint),
    )


def warm_events_a_s(said: str) -> float:
    """What a reader said on standard error of the second part of its events; 0 where it said nothing."""
    found = _SECOND_PART.search(said)
    return int(found[1]) / int(found[2]) * 1e9 if found else 0.0


def _rate(runs: list[Run]) -> float:
    """The median of the runs that count; 0 without one."""
    rates = [run.events_a_s for run in runs if not run.problem and run.events_a_s]
    return round(statistics.median(rates), 1) if rates else 0.0


def _ratio(runs: list[Run], to: list[Run]) -> str:
    ratios = [
        run.events_a_s / other.events_a_s
        for run, other in zip(runs, to, strict=False)
        if not (run.problem or other.problem) and run.events_a_s and other.events_a_s
    ]
    return f"{statistics.median(ratios):.2f}" if ratios else "-"


def _row(reader: Reader, runs: list[Run], by_name: dict[str, list[Run]], events: int) -> list[str]:
    done = [run for run in runs if not run.problem]
    if not done:
        return [reader.name, *["-"] * 8, "no"]
    median, per_100k = statistics.median, 100_000 / events
    return [
        reader.name,
        _ratio(runs, by_name[BASELINE]),
        _ratio(runs, by_name[baseline_of(reader.plugin)]),
        _ratio(runs, by_name.get(DEBEZIUM_WARM, [])) if reader.publishes else "-",
        f"{_rate(runs):,.0f}",
        f"{median(run.client_cpu_s for run in done) * per_100k:.2f}",
        f"{median(run.server_cpu_s for run in done) * per_100k:.2f}",
        f"{median(run.broker_cpu_s for run in done) * per_100k:.2f}",
        f"{median(run.peak_rss_mb for run in done):.0f}",
        "yes" if all(run.is_confirmed for run in done) else "no",
    ]


def _warm_row(by_name: dict[str, list[Run]]) -> list[str]:
    """Debezium without its start and warm-up."""
    runs = by_name[DEBEZIUM_WARM]
    ratios = [_ratio(runs, by_name[BASELINE]), _ratio(runs, by_name[baseline_of("pgoutput")])]
    return [DEBEZIUM_WARM, *ratios, "-", f"{_rate(runs):,.0f}", *["-"] * 5]
