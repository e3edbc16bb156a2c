"""PostgreSQL, Kafka and Redis in containers, for machines where a Docker engine answers."""

from __future__ import annotations

import os
import socket
import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import psycopg
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import make_conninfo
from redis import Redis, RedisError

from cdcwatch.local.kafka import KAFKA_VERSION, server_properties
from cdcwatch.local.process import free_port
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

_START_TIMEOUT_S = 120
_DOCKERFILE = """\
FROM postgres:15
RUN apt-get update && apt-get install -y --no-install-recommends postgresql-15-wal2json && rm -rf /var/lib/apt/lists/*
"""
_POSTGRES_SETTINGS = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "40",
    "max_connections": "200",
    "fsync": "off",
}


def docker_answers(timeout_s: float = 1.0) -> bool:
    """Whether a Docker engine answers where DOCKER_HOST, or its absence, says it is."""
    address = urlsplit(os.environ.get("DOCKER_HOST") or "unix:///var/run/docker.sock")
    try:
        if address.scheme == "unix":
            with socket.socket(socket.AF_UNIX) as engine:
                engine.settimeout(timeout_s)
                engine.connect(address.path)
                engine.sendall(b"GET /_ping HTTP/1.0\r\nHost: docker\r\n\r\n")
                return b" 200 " in engine.recv(64)
        with socket.create_connection((address.hostname or "localhost", address.port or 2375), timeout_s):
            return True
    except OSError:
        return False


class ContainerPostgres:
    """The server in a container."""

    def __init__(self, host: str, port: int) -> None:
        self._host = host
        self._port = port

    def dsn(self, dbname: str = "postgres", user: str = "postgres") -> str:
        return make_conninfo(host=self._host, port=self._port, user=user, dbname=dbname)


class ContainerKafka:
    """The broker in a container."""

    def __init__(self, bootstrap_servers: str) -> None:
        self.bootstrap_servers = bootstrap_servers


@contextmanager
def postgres_container() -> Iterator[ContainerPostgres]:
    """PostgreSQL 15 with wal2json, allowed where the server asks for it."""
    with warnings.catch_warnings(), tempfile.TemporaryDirectory() as context:
        warnings.simplefilter("ignore")
        from testcontainers.core.container import DockerContainer
        from testcontainers.core.image import DockerImage

        Path(context, "Dockerfile").write_text(_DOCKERFILE)
        image = str(DockerImage(path=context, tag="cdcwatch-test-postgres:15", clean_up=False).build())
        options = " ".join(f"-c {name}={value}" for name, value in _POSTGRES_SETTINGS.items())
        container = (
            DockerContainer(image)
            .with_env("POSTGRES_HOST_AUTH_METHOD", "trust")
            .with_exposed_ports(5432)
            .with_command(f"postgres {options}")
            .start()
        )
    try:
        server = ContainerPostgres(container.get_container_host_ip(), int(container.get_exposed_port(5432)))
        dsn = server.dsn().encode()
        wait_until(
            lambda: psycopg.pq.PGconn.ping(dsn) == psycopg.pq.Ping.OK,
            _START_TIMEOUT_S,
            "PostgreSQL's container",
            every_s=0.1,
        )
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            if (
                connection.execute("SELECT FROM pg_settings WHERE name = 'output_plugin_libraries'").fetchone()
                is not None
            ):
                connection.execute("ALTER SYSTEM SET output_plugin_libraries = 'pgoutput', 'test_decoding', 'wal2json'")
                connection.execute("SELECT pg_reload_conf()")
        yield server
    finally:
        container.stop()


@contextmanager
def kafka_container() -> Iterator[ContainerKafka]:
    """The same broker as the local one, on a port chosen beforehand since it has to advertise it."""
    port = free_port()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from testcontainers.core.container import DockerContainer

        container = DockerContainer(f"apache/kafka:{KAFKA_VERSION}").with_bind_ports(port, port)
        host = container.get_container_host_ip()
        properties = server_properties(
            listeners=f"PLAINTEXT://:{port}", advertised=f"PLAINTEXT://{host}:{port}", controller="localhost:9093"
        )
        for name, value in properties.items():
            container.with_env("KAFKA_" + name.upper().replace(".", "_"), value)
        container.start()
    try:
        bootstrap_servers = f"{host}:{port}"
        client = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0, "reconnect.backoff.max.ms": 200})

        def lists_a_broker() -> bool:
            try:
                return bool(client.list_topics(timeout=1).brokers)
            except KafkaException:
                return False

        wait_until(lists_a_broker, _START_TIMEOUT_S, "Kafka's container", every_s=0.1)
        yield ContainerKafka(bootstrap_servers)
    finally:
        container.stop()


class ContainerRedis:
    """The server in a container."""

    def __init__(self, url: str) -> None:
        self.url = url


@contextmanager
def redis_container() -> Iterator[ContainerRedis]:
    """Redis 7, with every write on its disk before it is acknowledged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from testcontainers.core.container import DockerContainer

        container = (
            DockerContainer("redis:7")
            .with_exposed_ports(6379)
            .with_command("redis-server --appendonly yes --appendfsync always --save ''")
            .start()
        )
    try:
        server = ContainerRedis(
            f"redis://{container.get_container_host_ip()}:{int(container.get_exposed_port(6379))}/0"
        )

        def answers() -> bool:
            try:
                with Redis.from_url(server.url, socket_timeout=1, socket_connect_timeout=1) as client:
                    return bool(client.ping())
            except RedisError:
                return False

        wait_until(answers, _START_TIMEOUT_S, "Redis' container", every_s=0.1)
        yield server
    finally:
        container.stop()
