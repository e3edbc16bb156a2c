"""Fixtures: servers for the whole run, servers for one test, and a database or topic for one test."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import services

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdcwatch.local import LocalKafka, LocalPostgres


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


@pytest.fixture
def own_postgres() -> Iterator[LocalPostgres]:
    """A server of this test alone, to be killed, stopped, restarted, reconfigured."""
    with services.local_postgres() as server:
        yield server


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
