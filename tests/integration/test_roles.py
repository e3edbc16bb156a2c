"""`--role read` and `--role close` as processes of their own: what each needs, and how it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.command import ORDERS, cdcwatch, run_to_the_end, write_configuration
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.services import Database, Kafka


@pytest.fixture
def users(database: Database) -> Iterator[tuple[str, str]]:
    """One that reads and one that closes, each with its rights and no more."""
    reader, closer = (f"{what}_{database.name}" for what in ("reader", "closer"))
    with database.connect() as connection:
        connection.execute(f"CREATE ROLE {reader} LOGIN REPLICATION; CREATE ROLE {closer} LOGIN")  # type: ignore[call-overload]
    yield reader, closer
    with database.connect() as connection:
        for name in (reader, closer):
            connection.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")  # type: ignore[call-overload]


@pytest.mark.parametrize("plugin", ["wal2json", "pgoutput"])
def test_the_reader_writes_nothing_and_the_worker_needs_no_slot(
    database: Database,
    kafka: Kafka,
    topic: str,
    tmp_path: Path,
    users: tuple[str, str],
    plugin: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, closer = users
    with World(database, kafka.bootstrap_servers, topic, tmp_path, plugin=plugin) as world:
        world.install()
        world.connection.execute(
            f"GRANT SELECT ON orders TO {reader}; GRANT SELECT, UPDATE ON orders TO {closer};"  # type: ignore[call-overload]
            f" GRANT INSERT ON ledger TO {closer}; GRANT USAGE ON SEQUENCE ledger_seq_seq TO {closer}"
        )

        def as_user(name: str) -> dict[str, str]:
            return {"CDCWATCH_POSTGRES__DSN": psycopg.conninfo.make_conninfo(database.dsn, user=name)}

        started = []
        for role, name in (("read", reader), ("close", closer)):
            with monkeypatch.context() as patch:
                for key, value in as_user(name).items():
                    patch.setenv(key, value)
                checked = cdcwatch("check", "--role", role, "-c", world.configuration)
            assert checked.code == 0, checked
            assert ("replication" in checked.out) == (role == "read")
            started.append(world.run("--role", role, environment=as_user(name)))
        for process in started:
            process.wait_ready()
        world.connection.execute(
            "INSERT INTO orders (id, expires_at) SELECT id, clock_timestamp() + interval '500 ms' FROM generate_series(1, 50) id"
        )
        world.wait_nothing_due()
        world.wait_confirmed()
        for process in started:
            process.stop()
        world.judge()


def test_workers_delete(database: Database, kafka: Kafka, topic: str, tmp_path: Path) -> None:
    """The rows are gone at their deadline, each told as expired by the reader."""
    extra = '[close]\naction = "delete"\n[sweep]\ninterval_s = 0\n'
    with World(database, kafka.bootstrap_servers, topic, tmp_path, extra) as world:
        world.install()
        with world.running("--role", "read"), world.running("--role", "close"), world.running("--role", "close"):
            world.connection.execute(
                "INSERT INTO orders (id, expires_at)"
                " SELECT id, clock_timestamp() + id * interval '5 ms' FROM generate_series(1, 200) id"
            )
            wait_until(lambda: world.scalar("SELECT count(*) FROM orders") == 0, 30, "deleted")
            world.wait_confirmed()
        types = [record.event["type"] for record in world.judge()]
        assert sorted(types) == ["deadline.expired"] * 200 + ["deadline.scheduled"] * 200


def test_a_worker_without_a_topic_is_told_how_it_is_made(database: Database, kafka: Kafka, tmp_path: Path) -> None:
    with database.connect() as connection:
        connection.execute(ORDERS)
    shop = write_configuration(
        tmp_path / "shop.toml",
        database.dsn,
        f'[kafka]\nbootstrap_servers = "{kafka.bootstrap_servers}"\ntopic = "nowhere"\n[telemetry]\nlisten = ""\n',
    )
    ended = run_to_the_end("run", "--role", "close", "-c", shop)
    assert ended.code == 3, ended
    assert "Kafka has no topic 'nowhere'" in ended.err
    assert "kafka-topics.sh" in ended.err
    assert "Traceback" not in ended.said


@pytest.mark.parametrize(
    ("keys", "arguments", "said"),
    [
        ('[sink]\nkind = "none"\n', (), "hears of orders by the topic"),
        ('[close]\naction = "none"\n', (), "would close nothing"),
        ("", ("--until", "current"), "which --role close doesn't read"),
        ("", ("--accept-gap",), "which --role close doesn't read"),
    ],
)
def test_what_makes_no_sense_for_a_worker_is_refused(
    tmp_path: Path, keys: str, arguments: tuple[str, ...], said: str
) -> None:
    shop = write_configuration(tmp_path / "shop.toml", "", keys)
    refused = cdcwatch("run", "--role", "close", *arguments, "-c", shop)
    assert refused.code == 2
    assert said in refused.err
