"""Fixtures: servers for the whole run, servers for one test, and a database or topic for one test."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from tests import registry, services
from tests.command import ORDERS, write_configuration
from tests.slots import QUIET

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cdcwatch.local import LocalKafka, LocalPostgres, LocalRedis


def pytest_configure() -> None:
    """Ctrl-C as in a terminal: who was started in the background ignores it, and so would the processes of tests."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def postgres() -> Iterator[services.Postgres]:
    """A server shared by all tests: don't stop or reconfigure it."""
    with services.any_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[services.Kafka]:
    """A broker shared by all tests: don't stop it."""
    with services.any_kafka() as broker:
        yield broker


@pytest.fixture(scope="session")
def redis_server() -> Iterator[services.Redis]:
    """A server shared by all tests, with `url`: don't stop or reconfigure it."""
    with services.any_redis() as server:
        yield server


@pytest.fixture
def own_redis() -> Iterator[LocalRedis]:
    """A server of this test alone, to be killed, stopped, restarted (it keeps its data), reconfigured."""
    with services.local_redis() as server:
        yield server


@pytest.fixture
def redis_8() -> Iterator[LocalRedis]:
    """A server of Redis 8 that flushes once a second."""
    with services.newer_redis() as server:
        yield server


@pytest.fixture
def stream(redis_server: services.Redis) -> Iterator[str]:
    """A name for keys on the shared Redis; what begins with it is deleted afterwards."""
    with services.fresh_stream(redis_server) as name:
        yield name


@pytest.fixture(scope="session")
def schema_registry() -> Iterator[registry.SchemaRegistry]:
    """A schema registry shared by all tests, with `url`: don't stop it."""
    with registry.any_registry() as server:
        yield server


@pytest.fixture
def own_postgres() -> Iterator[LocalPostgres]:
    """A server of this test alone, to be killed, stopped, restarted, reconfigured."""
    with services.local_postgres() as server:
        yield server


@pytest.fixture
def sparing(own_postgres: LocalPostgres) -> LocalPostgres:
    """One that keeps hardly any WAL for a slot."""
    own_postgres.settings |= {"max_slot_wal_keep_size": "1MB", "max_wal_size": "32MB", "wal_keep_size": "0"}
    own_postgres.restart()
    return own_postgres


@pytest.fixture(scope="session")
def postgres_18() -> Iterator[LocalPostgres]:
    """A server of PostgreSQL 18 or later, shared: don't stop it; what is reconfigured is set back."""
    with services.newer_postgres() as server:
        yield server


@pytest.fixture
def database_18(postgres_18: LocalPostgres) -> Iterator[services.Database]:
    """A new database there."""
    with services.fresh_database(postgres_18) as database:
        yield database


@pytest.fixture
def own_kafka() -> Iterator[LocalKafka]:
    """A broker of this test alone, to be killed, stopped, restarted."""
    with services.local_kafka(session_timeout_ms=3000) as broker:
        yield broker


@pytest.fixture
def database(postgres: services.Postgres) -> Iterator[services.Database]:
    """A new database on the shared server."""
    with services.fresh_database(postgres) as database:
        yield database


@pytest.fixture
def topic(kafka: services.Kafka) -> Iterator[str]:
    """The name of a new topic of 3 partitions on the shared broker."""
    with services.fresh_topic(kafka) as name:
        yield name


@pytest.fixture
def slot(database: services.Database) -> str:
    """A slot's name of this test's own, in a database with an orders table."""
    with database.connect() as connection:
        connection.execute(ORDERS)
    return f"slot_{database.name}"


@pytest.fixture
def shop(database: services.Database, slot: str, tmp_path: Path) -> Path:
    return write_configuration(tmp_path / "shop.toml", database.dsn, f'[slot]\nname = "{slot}"\n' + QUIET)


@pytest.fixture
def role(database: services.Database) -> Iterator[str]:
    """A role that may log in and nothing more."""
    name = f"role_{database.name}"
    with database.connect() as connection:
        connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(name)))
        yield name
        connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(name)))
