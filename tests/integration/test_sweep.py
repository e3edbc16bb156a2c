"""The sweep on PostgreSQL: its plan, `sweep --once`, several instances, a standby that lags, and beside a stream."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import cdcwatch as package
from cdcwatch.close.instances import Instances
from cdcwatch.close.statements import CloseStatements
from cdcwatch.database import Instant, register_instants
from cdcwatch.local import LocalPostgres
from cdcwatch.pipeline.beginning import StartOverError
from cdcwatch.pipeline.sweeper import Sweeper
from cdcwatch.settings import PostgresSettings, Settings, SweepSettings, TableSettings, TelemetrySettings
from tests.command import ORDERS, cdcwatch, run_to_the_end, write_configuration
from tests.oracle.world import World
from tests.orders import Orders
from tests.services import fresh_database
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdcwatch.table import WatchedTable
    from tests.services import Database, Kafka

QUIET = '[telemetry]\nlisten = ""\n'
_SCRIPT = (Path(package.__file__).parent.parent / "sql" / "install.sql").read_text()
INSTANCES = (
    "CREATE SCHEMA cdcwatch;" + re.search(r"CREATE TABLE IF NOT EXISTS cdcwatch\.instances .*?;", _SCRIPT, re.DOTALL)[0]  # type: ignore[index]
)


@pytest.fixture
def shop(database: Database, tmp_path: Path) -> Path:
    """Orders, their index and a configuration."""
    with database.connect() as connection:
        connection.execute(ORDERS)
        connection.execute("CREATE INDEX due ON orders (expires_at) WHERE status = 'pending'")
    return write_configuration(tmp_path / "shop.toml", database.dsn, QUIET)


def put(connection: psycopg.Connection[Any], first: int, last: int, ago: str = "1 hour") -> None:
    connection.execute(
        "INSERT INTO orders SELECT id, 'pending', clock_timestamp() - %s::interval FROM generate_series(%s::int, %s) id",
        [ago, first, last],
    )


def watched(database: Database) -> WatchedTable:
    orders = Orders(database)
    orders.connection.close()
    return orders.watched


def open_keys(connection: psycopg.Connection[Any]) -> list[int]:
    return [key for (key,) in connection.execute("SELECT id FROM orders WHERE status = 'pending' ORDER BY id")]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for inner in plan.get("Plans", ()):
        yield from nodes(inner)


@pytest.mark.parametrize(
    ("kind", "zone"),
    [("timestamp with time zone", ""), ("timestamp without time zone", "Europe/Amsterdam"), ("date", "Asia/Kolkata")],
)
def test_no_order_of_the_future_is_looked_at(database: Database, kind: str, zone: str) -> None:
    orders = Orders(database, deadline_type=kind, zone=zone)
    orders.connection.execute("CREATE INDEX due ON orders (expires_at) WHERE status = 'pending'")
    orders.connection.execute(
        "INSERT INTO orders SELECT id, now() + interval '3 days' + id * interval '1 s', 'pending', 0"
        " FROM generate_series(1, 100000) id"
    )
    orders.connection.execute(
        "INSERT INTO orders SELECT -id, now() - interval '3 days', 'pending', 0 FROM generate_series(1, 50) id"
    )
    orders.connection.execute("VACUUM ANALYZE orders")
    register_instants(orders.connection)
    statements = CloseStatements(orders.watched, changes={}, has_also=False, page_rows=10)
    bounds = {"grace_us": 5_000_000, "limit": 1000, "mark": Instant(0), "since": Instant(0)}
    for statement in (statements.overdue, statements.overdue_from_mark, statements.overdue_since):
        ((plan,),) = orders.connection.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {statement}", bounds).fetchall()
        found = list(nodes(plan[0]["Plan"]))
        assert sum(node.get("Rows Removed by Filter", 0) for node in found) == 0
        scans = [node for node in found if "Relation Name" in node]
        assert [node.get("Index Name") for node in scans] == ["due"], plan
        assert found[0]["Actual Rows"] == 50
    orders.connection.close()


def test_once_closes_all_that_is_overdue_and_ends(database: Database, shop: Path) -> None:
    with database.connect() as connection:
        put(connection, 1, 2500)
        put(connection, 2501, 2510, "1 ms")
        connection.execute("INSERT INTO orders VALUES (3000, 'pending', '2999-01-01'), (3001, 'paid', '2000-01-01')")
        connection.execute("INSERT INTO orders VALUES (3002, 'pending', '-infinity'), (3003, 'pending', 'infinity')")
        ended = run_to_the_end("sweep", "--once", "--json", "-c", shop)
        assert ended.code == 0, ended
        assert json.loads(ended.out) == {"closed": 2511, "left": 0}
        assert open_keys(connection) == [3000, 3003]
        again = run_to_the_end("sweep", "--once", "-c", shop)
        assert (again.code, again.out) == (0, "closed: 0\n")


def test_once_tells_what_it_could_not_close(database: Database, shop: Path) -> None:
    with database.connect() as connection, database.connect(autocommit=False) as payer:
        connection.execute("ALTER TABLE orders ADD CHECK (status <> 'expired' OR id <> 3)")
        put(connection, 1, 10)
        payer.execute("SELECT FROM orders WHERE id = 7 FOR UPDATE")
        ended = run_to_the_end("sweep", "--once", "-c", shop)
        assert ended.code == 1, ended
        assert ended.out == "closed: 8, left: 2\n"
        assert "2 overdue, and not closed" in ended.err
        assert open_keys(connection) == [3, 7]


def test_once_without_a_database_ends(tmp_path: Path) -> None:
    nowhere = write_configuration(tmp_path / "nowhere.toml", "host=127.0.0.1 port=1 connect_timeout=2", QUIET)
    assert run_to_the_end("sweep", "--once", "-c", nowhere).code == 3


@pytest.mark.parametrize(
    ("arguments", "rest", "said"),
    [
        (["sweep"], "[sweep]\ninterval_s = 0\n", "sweep.interval_s = 0"),
        (["run", "--role", "sweep"], "[sweep]\ninterval_s = 0\n", "sweep.interval_s = 0"),
        (["sweep", "--once"], '[close]\naction = "none"\n', 'close.action = "none"'),
        (["sweep", "--json"], "", "--json belongs to --once"),
        (
            ["sweep", "--once"],
            '[close]\naction = "claim"\n[close.claim]\nurl = "http://localhost:1/"\n',
            "outlast a sweep",
        ),
        (["run", "--role", "sweep", "--until", "current"], "", "--until and --accept-gap"),
    ],
)
def test_what_makes_no_sense_is_told(tmp_path: Path, arguments: list[str], rest: str, said: str) -> None:
    ended = cdcwatch(*arguments, "-c", write_configuration(tmp_path / "shop.toml", "host=127.0.0.1 port=1", rest))
    assert (ended.code, said in ended.err) == (2, True), ended


# -- instances -----------------------------------------------------------------------------------------------------------


@contextmanager
def sweeping(configuration: Path, log: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """`cdcwatch sweep` as a process, killed where it still runs at the end."""
    with (
        log.open("w") as file,
        subprocess.Popen(
            [sys.executable, "-m", "cdcwatch", *(arguments or ("sweep",)), "-c", str(configuration)],
            stdout=subprocess.DEVNULL,
            stderr=file,
            text=True,
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


def test_three_instances_of_which_one_is_killed_and_one_paused(database: Database, shop: Path, tmp_path: Path) -> None:
    shop.write_text(shop.read_text() + "[sweep]\ninterval_s = 0.5\ngrace_ms = 0\nrows_per_s = 2000\n")
    with database.connect() as connection:
        connection.execute(INSTANCES)
        connection.execute("CREATE TABLE done (id bigint, pid int, at timestamptz, expires_at timestamptz)")
        connection.execute(
            "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN"
            " INSERT INTO done VALUES (NEW.id, pg_backend_pid(), clock_timestamp(), NEW.expires_at); RETURN NEW; END $$;"
            "CREATE TRIGGER note AFTER UPDATE ON orders FOR EACH ROW EXECUTE FUNCTION note()"
        )

        def shares(expected: int) -> bool:
            alive = "SELECT count(*) FROM cdcwatch.instances WHERE seen_at > clock_timestamp() - interval '7 s'"
            return connection.execute(alive).fetchone() == (expected,)

        def all_closed() -> bool:
            return open_keys(connection) == []

        logs = [tmp_path / f"sweep{number}.log" for number in range(3)]
        with sweeping(shop, logs[0]) as one, sweeping(shop, logs[1]) as two, sweeping(shop, logs[2]) as three:
            wait_until(lambda: shares(3), 30, "three are registered")
            wait_until(lambda: all("shared by 3 instances" in log.read_text() for log in logs), 30, "all know of all")
            put(connection, 1, 3000)
            wait_until(all_closed, 30, "every share is closed")
            ((backends,),) = connection.execute("SELECT count(DISTINCT pid) FROM done").fetchall()
            assert backends >= 3

            two.kill()
            os.kill(three.pid, signal.SIGSTOP)
            put(connection, 3001, 6000)
            wait_until(all_closed, 60, "the shares of who is gone are closed by who is left")
            assert shares(1)

            os.kill(three.pid, signal.SIGCONT)
            wait_until(lambda: shares(2), 30, "the paused one is back")
            put(connection, 6001, 7000)
            put(connection, 7001, 7100, "-2 s")
            wait_until(all_closed, 60, "both go on")
            for process in (one, three):
                process.send_signal(signal.SIGTERM)
            assert [one.wait(60), three.wait(60)] == [0, 0]
        ((done, once, early),) = connection.execute(
            "SELECT count(*), count(DISTINCT id), count(*) FILTER (WHERE at < expires_at) FROM done"
        ).fetchall()
        assert (done, once, early) == (7100, 7100, 0)
        left = connection.execute("SELECT count(*) FROM cdcwatch.instances").fetchone()
        assert left == (1,), "who was killed could not take its leave; the others did"


def test_instances_see_each_other_by_the_tables_clock_and_take_their_leave(database: Database) -> None:
    with database.connect() as connection:
        connection.execute(INSTANCES)
        table = watched(database)
        one, two = (Instances(database.dsn, table, weight=weight) for weight in (1, 2.5))
        for instance in (one, two):
            instance.connect()
            instance.beat()
        assert sorted(one.beat()) == sorted([(one.id, 1.0), (two.id, 2.5)])
        dead = [str(uuid.uuid4()), "10 s", str(uuid.uuid4()), "2 days", str(uuid.uuid4()), "0 s"]
        for number in (0, 2):
            connection.execute(
                "INSERT INTO cdcwatch.instances VALUES (%s, 0, 1, 'x', clock_timestamp() - %s::interval)",
                dead[number : number + 2],
            )
        connection.execute(
            "INSERT INTO cdcwatch.instances VALUES (%s, 99, 1, 'other table', clock_timestamp())", dead[4:5]
        )
        assert len(one.beat()) == 2
        two.withdraw()
        assert [member.id for member in one.beat()] == [one.id]
        two.beat()
        assert connection.execute("SELECT count(*) FROM cdcwatch.instances").fetchone() == (4,), "the oldest is buried"
        for instance in (one, two):
            instance.disconnect()


def test_without_the_table_an_instance_is_alone_and_says_so_once(
    database: Database, role: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = watched(database)
    with caplog.at_level("INFO", logger="cdcwatch"):
        lonely = Instances(database.dsn, table, weight=1)
        lonely.connect()
        assert [lonely.beat(), lonely.beat(), lonely.beat()] == [[], [], []]
        assert caplog.text.count("cdcwatch.instances is not there") == 1
        with database.connect() as connection:
            connection.execute(INSTANCES)
        wait_until(lambda: [member.id for member in lonely.beat()] == [lonely.id], 5, "it is seen when it is made")
        lonely.withdraw()
        lonely.disconnect()
        barred = Instances(psycopg.conninfo.make_conninfo(database.dsn, user=role), table, weight=1)
        barred.connect()
        assert barred.beat() == []
        barred.disconnect()
        assert "may not be written by this role" in caplog.text


# -- beside a stream -----------------------------------------------------------------------------------------------------


def test_run_recovers_what_the_stream_did_not_tell_and_counts_nothing_else(
    database: Database, kafka: Kafka, topic: str, tmp_path: Path
) -> None:
    rest = "[sweep]\ninterval_s = 0.5\ngrace_ms = 300\n"
    with World(database, kafka.bootstrap_servers, topic, tmp_path, rest) as world:
        world.listen()
        world.install()
        world.connection.execute(INSTANCES)
        with world.running():
            for number in range(0, 200, 20):
                world.connection.execute(
                    "INSERT INTO orders (id, expires_at) SELECT id, clock_timestamp() + (id %% 3 - 1) * interval '0.4 s'"
                    " FROM generate_series(%s::int, %s) id",
                    [number, number + 19],
                )
            # Held for longer than the grace: known, and tried again.
            with database.connect(autocommit=False) as payer:
                world.connection.execute(
                    "INSERT INTO orders (id, expires_at) VALUES (500, clock_timestamp() + interval '0.2 s')"
                )
                payer.execute("SELECT FROM orders WHERE id = 500 FOR UPDATE")
                world.wait_nothing_due_but(1)
                looked = world.metric("cdcwatch_sweep_looks_total")
                wait_until(lambda: world.metric("cdcwatch_sweep_looks_total") > looked + 2, 20, "looks")
                payer.rollback()
            world.wait_nothing_due()
            assert world.metric("cdcwatch_recovered_total") == 0

            # DDL writes every row anew, and the stream tells of none.
            world.connection.execute(
                "INSERT INTO orders (id, expires_at) SELECT id, '2999-01-01' FROM generate_series(1000, 1009) id"
            )
            world.wait_confirmed()
            world.connection.execute(
                "ALTER TABLE orders ALTER expires_at TYPE timestamptz USING expires_at - interval '980 years'"
            )
            wait_until(lambda: world.metric("cdcwatch_recovered_total") == 10, 60, "recovered")
            assert world.scalar("SELECT count(*) FROM orders WHERE status = 'pending'") == 0
        assert "the sweep recovered 10 orders" in world.log.read_text()


# -- a standby -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def standby(own_postgres: LocalPostgres) -> Iterator[LocalPostgres]:
    folder = own_postgres.directory / "standby"
    folder.mkdir(mode=0o755)
    if own_postgres._user is not None:
        shutil.chown(folder, own_postgres._user)
    server = LocalPostgres(folder, fsync=False)
    data = str(folder / "data")
    done = own_postgres._run("pg_basebackup", "-D", data, "-d", own_postgres.dsn(), "-R", "-c", "fast", "--no-sync")
    assert done.returncode == 0, done.stdout
    server.start()
    yield server
    server.close()


def test_a_standby_is_scanned_until_it_lags(
    own_postgres: LocalPostgres, standby: LocalPostgres, tmp_path: Path
) -> None:
    with fresh_database(own_postgres) as database, database.connect() as connection:
        connection.execute(ORDERS)
        there = standby.dsn(dbname=database.name)
        configuration = write_configuration(
            tmp_path / "shop.toml",
            database.dsn,
            f'[telemetry]\nlisten = ""\n[sweep]\ninterval_s = 0.5\ngrace_ms = 0\nmax_delay_ms = 2000\ndsn = "{there}"\n',
        )
        world = World(database, "", "", tmp_path)
        world.configuration = configuration
        world.listen()
        with world.running("--role", "sweep"), psycopg.connect(standby.dsn(), autocommit=True) as replica:

            def scanned() -> int:
                ((count,),) = replica.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'cdcwatch sweep' AND query LIKE '%expires_at%'"
                ).fetchall()
                return int(count)

            put(connection, 1, 500)
            world.wait_nothing_due()
            wait_until(scanned, 20, "the standby was asked for orders")
            assert world.metric("cdcwatch_sweep_fallbacks_total") == 0

            replica.execute("SELECT pg_wal_replay_pause()")
            put(connection, 501, 600)
            world.wait_nothing_due()
            assert world.metric("cdcwatch_sweep_fallbacks_total") > 0
            assert "it did not keep up within 2000 ms" in world.log.read_text()
            replica.execute("SELECT pg_wal_replay_resume()")
            wait_until(lambda: "scans the standby again" in world.log.read_text(), 30, "the standby is scanned again")
            before = world.metric("cdcwatch_sweep_fallbacks_total")
            put(connection, 601, 700)
            world.wait_nothing_due()
            assert world.metric("cdcwatch_sweep_fallbacks_total") == before

            standby.stop()
            put(connection, 701, 800)
            world.wait_nothing_due()
            assert world.metric("cdcwatch_sweep_fallbacks_total") > before
        world.connection.close()


def test_another_server_or_database_is_no_standby(database: Database, shop: Path, tmp_path: Path) -> None:
    other = psycopg.conninfo.make_conninfo(database.dsn, dbname="postgres")
    shop.write_text(shop.read_text() + f'[sweep]\ninterval_s = 0.5\ngrace_ms = 0\ndsn = "{other}"\n')
    log = tmp_path / "sweep.log"
    with database.connect() as connection, sweeping(shop, log, "run", "--role", "sweep") as process:
        put(connection, 1, 10)
        wait_until(lambda: open_keys(connection) == [], 30, "closed by the primary's word")
        assert "no standby of the server and database of postgres.dsn" in log.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_it_begins_anew_where_the_table_is_another(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdcwatch.pipeline.sweeper.LOOK_S", 0.1)
    settings = Settings(
        postgres=PostgresSettings(dsn=database.dsn),
        table=TableSettings(status="status|state"),
        sweep=SweepSettings(interval_s=0.2, grace_ms=0),
        telemetry=TelemetrySettings(listen=""),
    )
    with database.connect() as connection:
        connection.execute(ORDERS)
        for column in ("state", "status"):
            sweeper = Sweeper(settings, announce_ready=lambda to=column: rename(connection, to))
            with pytest.raises(StartOverError, match="has changed"):
                sweeper.run()


def rename(connection: psycopg.Connection[Any], to: str) -> None:
    connection.execute(f"ALTER TABLE orders RENAME {'status' if to == 'state' else 'state'} TO {to}")
