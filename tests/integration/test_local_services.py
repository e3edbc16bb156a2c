"""The local services start, survive crashes with their data, and leave no process behind, however we end."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from redis import Redis

from cdcwatch.local import LocalKafka, LocalPostgres, LocalRedis, LocalServiceError
from cdcwatch.local.process import children_of, is_alive
from tests import services
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

REPOSITORY = Path(__file__).resolve().parents[2]

PARENT = """
import signal, sys
from pathlib import Path
from cdcwatch.local import LocalKafka, LocalPostgres, LocalRedis
service = {"postgres": LocalPostgres, "kafka": LocalKafka, "redis": LocalRedis}[sys.argv[1]](Path(sys.argv[2]))
service.start()
print(service.pid, flush=True)
signal.pause()
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    with services.scratch_directory() as path:
        yield path


def tree(pid: int) -> list[int]:
    return [pid, *children_of(pid)]


def gone(pids: list[int]) -> bool:
    return not any(is_alive(pid) for pid in pids)


def select(dsn: str, query: str) -> object:
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(query).fetchone()
    assert row is not None
    return row[0]


def produce(broker: LocalKafka, topic: str, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "acks": "all", "log_level": 0})
    producer.produce(topic, value)
    assert producer.flush(20) == 0


def first_value(broker: LocalKafka, topic: str) -> bytes | None:
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "look", "log_level": 0})
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        return message.value()
    finally:
        consumer.close()


def test_postgres_decodes_with_every_plugin(database: services.Database) -> None:
    with database.connect() as connection:
        for plugin in ("pgoutput", "test_decoding", "wal2json"):
            connection.execute(
                "SELECT pg_create_logical_replication_slot(%s, %s)", [f"{database.name}_{plugin}", plugin]
            )
        assert connection.execute("SHOW wal_level").fetchone() == ("logical",)


def test_a_database_goes_with_its_slots_and_their_owners(postgres: services.Postgres) -> None:
    slot = f"held_{uuid.uuid4().hex[:8]}"
    with services.fresh_database(postgres) as database:
        reader = psycopg.pq.PGconn.connect(f"{database.dsn} replication=database".encode())
        reader.exec_(f"CREATE_REPLICATION_SLOT {slot} LOGICAL pgoutput".encode())
        options = "proto_version '1', publication_names 'none'"
        started = reader.exec_(f"START_REPLICATION SLOT {slot} LOGICAL 0/0 ({options})".encode())
        assert started.status == psycopg.pq.ExecStatus.COPY_BOTH
    reader.finish()
    assert select(postgres.dsn(), f"SELECT count(*) FROM pg_replication_slots WHERE slot_name = '{slot}'") == 0
    assert select(postgres.dsn(), f"SELECT count(*) FROM pg_database WHERE datname = '{database.name}'") == 0


def test_a_topic_takes_records(kafka: services.Kafka, topic: str) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    for partition in range(3):
        producer.produce(topic, b"here", partition=partition)
    assert producer.flush(20) == 0


def test_postgres_keeps_committed_data_over_kill_and_restart(own_postgres: LocalPostgres) -> None:
    with psycopg.connect(own_postgres.dsn()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 7 AS value")
    first = own_postgres.pid
    assert first is not None
    pids = tree(first)
    own_postgres.kill()
    assert own_postgres.pid is None
    assert gone(pids)
    own_postgres.start()
    assert own_postgres.pid != first
    assert select(own_postgres.dsn(), "SELECT value FROM kept") == 7
    own_postgres.restart("immediate")
    assert select(own_postgres.dsn(), "SELECT value FROM kept") == 7


def test_postgres_reads_changed_settings_on_reload(own_postgres: LocalPostgres) -> None:
    own_postgres.settings["application_name"] = "it's read"
    own_postgres.reload()
    wait_until(
        lambda: select(own_postgres.dsn(), "SHOW application_name") == "it's read", 10, "the setting that was reloaded"
    )


@pytest.mark.parametrize("mode", ["smart", "fast", "immediate"])
def test_postgres_stop_leaves_no_process(own_postgres: LocalPostgres, mode: str) -> None:
    assert own_postgres.pid is not None
    pids = tree(own_postgres.pid)
    assert len(pids) > 1
    own_postgres.stop(mode)
    wait_until(lambda: gone(pids), 10, "PostgreSQL's processes are gone")
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(own_postgres.dsn())


def test_postgres_smart_stop_waits_for_clients(own_postgres: LocalPostgres) -> None:
    with psycopg.connect(own_postgres.dsn()):
        with pytest.raises(LocalServiceError, match="did not stop"):
            own_postgres.stop("smart", timeout_s=0.5)
        assert own_postgres.pid is not None
    wait_until(lambda: own_postgres.pid is None, 10, "the end of the server after its last client's")


def test_postgres_stale_pid_file_is_no_obstacle(directory: Path) -> None:
    with LocalPostgres(directory, fsync=False) as server:
        server.kill()
        pid_file = directory / "data" / "postmaster.pid"
        lines = pid_file.read_text().split("\n")
        bystander = subprocess.Popen(["/bin/sleep", "60"])
        try:
            pid_file.write_text("\n".join([str(bystander.pid), *lines[1:]]))
            server.start()
            assert select(server.dsn(), "SELECT 1") == 1
            assert bystander.poll() is None
        finally:
            bystander.kill()
            bystander.wait()


def test_postgres_running_in_the_directory_is_left_alone(directory: Path) -> None:
    with LocalPostgres(directory, fsync=False) as server:
        with pytest.raises(LocalServiceError, match=f"pid {server.pid} already runs"):
            LocalPostgres(directory).start()
        assert select(server.dsn(), "SELECT 1") == 1


def test_postgres_outlives_the_thread_that_started_it(directory: Path) -> None:
    server = LocalPostgres(directory, fsync=False)
    try:
        starter = threading.Thread(target=server.start)
        starter.start()
        starter.join()
        wait_until(
            lambda: not Path(f"/proc/self/task/{starter.native_id}").exists(), 10, "the kernel's end of the thread"
        )
        assert select(server.dsn(), "SELECT 1") == 1
        assert server.pid is not None
    finally:
        server.close()


def test_postgres_that_cannot_start_says_why_and_leaves_nothing(directory: Path) -> None:
    server = LocalPostgres(directory, settings={"shared_buffers": "no number"})
    with pytest.raises(LocalServiceError, match="ended while starting") as caught:
        server.start()
    assert "postgres.log" in caught.value.remedy
    assert "configuration file" in str(caught.value)
    assert server.pid is None


def test_missing_binaries_are_said_with_a_remedy(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDCWATCH_PG_BIN", str(directory))
    with pytest.raises(LocalServiceError, match="holds no initdb"):
        LocalPostgres(directory)


def test_missing_maven_is_said_with_a_remedy(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = LocalKafka(directory / "kafka")
    monkeypatch.setenv("CDCWATCH_CACHE", str(directory / "cache"))
    monkeypatch.setenv("PATH", str(directory))
    with pytest.raises(LocalServiceError, match="no Maven") as caught:
        broker.start()
    assert "apt-get install maven" in caught.value.remedy


def test_kafka_keeps_acknowledged_records_over_kill_stop_and_restart(own_kafka: LocalKafka) -> None:
    services.create_topic(own_kafka, "kept", partitions=1)
    produce(own_kafka, "kept", b"acknowledged")
    first = own_kafka.pid
    assert first is not None
    own_kafka.kill()
    assert gone([first])
    assert own_kafka.pid is None
    own_kafka.start()
    assert first_value(own_kafka, "kept") == b"acknowledged"
    second = own_kafka.pid
    assert second is not None
    own_kafka.stop()
    assert gone([second])
    own_kafka.start()
    assert first_value(own_kafka, "kept") == b"acknowledged"


def test_redis_keeps_acknowledged_data_over_kill_stop_and_restart(own_redis: LocalRedis) -> None:
    first = own_redis.pid
    with Redis.from_url(own_redis.url, socket_timeout=10) as client:
        client.set("kept", "acknowledged")
    for end in (own_redis.kill, own_redis.stop):
        end()
        assert own_redis.pid is None
        own_redis.restart()
        with Redis.from_url(own_redis.url, socket_timeout=10) as client:
            assert client.get("kept") == b"acknowledged"
    assert own_redis.pid != first


def test_keys_of_a_stream_are_deleted_afterwards(redis_server: services.Redis) -> None:
    with Redis.from_url(redis_server.url, socket_timeout=10) as client:
        with services.fresh_stream(redis_server) as name:
            client.set(f"{name}.progress", "1")
        assert not client.exists(f"{name}.progress")


def test_a_missing_redis_is_said_with_a_remedy(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CDCWATCH_REDIS_SERVER", str(directory / "none"))
    with pytest.raises(LocalServiceError, match=r"no .*none") as caught:
        LocalRedis(directory)
    assert "redis-server" in caught.value.remedy


@pytest.mark.parametrize(
    ("service", "death"),
    [
        ("redis", signal.SIGKILL),
        ("postgres", signal.SIGKILL),
        ("postgres", signal.SIGTERM),
        ("postgres", signal.SIGINT),
        ("kafka", signal.SIGKILL),
    ],
)
def test_however_the_parent_ends_no_process_is_left(directory: Path, service: str, death: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, service, directory / service],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        pids = tree(int(parent.stdout.readline()))
        assert not gone(pids)
        parent.send_signal(death)
        parent.wait(120)
    wait_until(lambda: gone(pids), 15, f"{service} is gone after its parent")
