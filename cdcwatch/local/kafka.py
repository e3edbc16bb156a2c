"""A throwaway Apache Kafka broker, run from its Maven artifacts, on the loopback interface."""

from __future__ import annotations

import base64
import os
import signal
import socket
import subprocess
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from cdcwatch.local.binaries import find_java
from cdcwatch.local.errors import LocalServiceError
from cdcwatch.local.jars import bring, reason
from cdcwatch.local.process import OwnedProcess, free_port, launched
from cdcwatch.local.service import LocalService

if TYPE_CHECKING:
    from collections.abc import Mapping

KAFKA_VERSION = "4.4.0"
_POM = Path(__file__).with_name("kafka-pom.xml")
_JAVA_FLAGS = (
    "-Xmx256m",
    "-Xms64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xss512k",
    "-Xshare:auto",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)
_COMMAND_TIMEOUT_S = 120


class LocalKafka(LocalService):
    """A broker that is its own controller."""

    name = "Kafka"

    def __init__(
        self,
        directory: Path,
        *,
        port: int | None = None,
        session_timeout_ms: int = 6000,
        properties: Mapping[str, str] | None = None,
        start_timeout_s: float = 90,
    ) -> None:
        """Choose ports. LocalServiceError without a Java.

        `session_timeout_ms` is how long the controller takes a silent broker for alive: a restart after `kill` waits
        for about that long, and a machine that stalls longer takes the broker off. `properties` are further lines
        of server.properties.
        """
        super().__init__(directory, log="kafka.log", start_timeout_s=start_timeout_s)
        self._java = find_java()
        self.port = port or free_port()
        self._data = self.directory / "log"
        self._configuration = self.directory / "server.properties"
        self._properties = {
            **server_properties(
                listeners=f"PLAINTEXT://127.0.0.1:{self.port}",
                advertised=f"PLAINTEXT://127.0.0.1:{self.port}",
                controller=f"127.0.0.1:{free_port()}",
                session_timeout_ms=session_timeout_ms,
            ),
            "log.dirs": str(self._data),
            **(properties or {}),
        }
        self._metadata = _Metadata(self.port)

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self.port}"

    def _launched(self) -> OwnedProcess:
        """Brings the jars and formats the storage when they are missing."""
        jars = bring_jars()
        self._configuration.write_text("".join(f"{name}={value}\n" for name, value in self._properties.items()))
        self._format(jars)
        self._metadata = _Metadata(self.port)  # a client keeps what it knew of the broker before
        return OwnedProcess(
            self._command(jars, "kafka.Kafka", str(self._configuration)),
            user=None,
            death_signal=signal.SIGKILL,
            directory=self.directory,
            log_path=self.log_path,
            environment=os.environ,
        )

    def _answers(self) -> bool:
        return self._metadata.lists_a_broker()

    def _command(self, jars: Path, main_class: str, *arguments: str) -> list[str]:
        return [str(self._java), *_JAVA_FLAGS, "-cp", f"{jars}/*", main_class, *arguments]

    def _format(self, jars: Path) -> None:
        """Give the storage its cluster id, once."""
        if (self._data / "meta.properties").exists():
            return
        arguments = ["format", "-t", _cluster_id(), "-c", str(self._configuration)]
        done = subprocess.run(
            launched(
                self._command(jars, "kafka.tools.StorageTool", *arguments), user=None, death_signal=signal.SIGKILL
            ),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=_COMMAND_TIMEOUT_S,
            check=False,
        )
        if done.returncode != 0:
            raise LocalServiceError(
                f"Kafka could not format {self._data}: {reason(done.stdout)}", remedy=f"look at {self.directory}"
            )


def server_properties(
    *, listeners: str, advertised: str, controller: str, session_timeout_ms: int = 6000
) -> dict[str, str]:
    """The configuration of one broker that is its own controller; `controller` is its HOST:PORT."""
    return {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@{controller}",
        "listeners": f"{listeners},CONTROLLER://{controller}",
        "advertised.listeners": advertised,
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "offsets.topic.replication.factor": "1",
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "transaction.state.log.num.partitions": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": "1",
        "group.initial.rebalance.delay.ms": "0",
        "auto.create.topics.enable": "false",
        "log.cleaner.dedupe.buffer.size": "8388608",
        "log.cleaner.backoff.ms": "1000",
        "log.initial.task.delay.ms": "1000",
        "broker.session.timeout.ms": str(session_timeout_ms),
        "broker.heartbeat.interval.ms": str(session_timeout_ms // 3),
    }


def bring_jars() -> Path:
    """The directory of the broker's jars, which Maven brings once (43 MB). LocalServiceError as of `bring`."""
    return bring(_POM, f"kafka-{KAFKA_VERSION}", what=f"Apache Kafka {KAFKA_VERSION}")


class _Metadata:
    """Asks the broker for its metadata; connects only once something listens, so that no client complains before."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._client: AdminClient | None = None

    def lists_a_broker(self) -> bool:
        if self._client is None:
            try:
                socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
            except OSError:
                return False
            self._client = AdminClient(
                {
                    "bootstrap.servers": f"127.0.0.1:{self._port}",
                    "log_level": 0,
                    "reconnect.backoff.ms": 50,
                    "reconnect.backoff.max.ms": 100,
                }
            )
        try:
            return bool(self._client.list_topics(timeout=1).brokers)
        except KafkaException:
            return False


def _cluster_id() -> str:
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass  # it would read as an option
    return text
