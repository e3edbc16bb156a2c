"""The throwaway PostgreSQL and Kafka of a measurement, and what it makes in them."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from psycopg import sql

from cdcwatch.deadline.position import Position
from cdcwatch.handoff.kafka.client import create_topic
from cdcwatch.handoff.kafka.ledger import progress_topic, require_progress_topic
from cdcwatch.handoff.progress import Origin, Progress
from cdcwatch.local import LocalKafka, LocalPostgres
from cdcwatch.lsn import parse_lsn
from cdcwatch.settings import KafkaSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

PARTITIONS = 6
SLOT = "bench_orders"
PUBLICATION = "cdcwatch_orders"
PLUGINS = ("wal2json", "pgoutput")
_PUBLISHED = "(id, status, version, expires_at)"
_COLUMN_LISTS_SINCE = 15
# No checkpoint falls into one run and not into the next; nothing is written by the clock.
_QUIET = {"max_wal_size": "16GB", "checkpoint_timeout": "1h", "autovacuum": "off"}
_RELEASE_TIMEOUT_S = 15
_COUNT_TIMEOUT_S = 60
_WARM_UP_TRANSACTIONS = 100
_WARM_UP_RECORDS = 100


@contextlib.contextmanager
def postgres(*, fsync: bool) -> Iterator[LocalPostgres]:
    """A server in a directory of its own, gone afterwards."""
    with _directory() as directory, LocalPostgres(directory / "postgres", fsync=fsync, settings=_QUIET) as server:
        yield server


@contextlib.contextmanager
def kafka() -> Iterator[LocalKafka]:
    """A broker; a machine that stalls for a while doesn't lose it."""
    with _directory() as directory, LocalKafka(directory / "kafka", session_timeout_ms=18_000) as broker:
        yield broker


def warm_up(broker: LocalKafka) -> None:
    """A broker that has just started compiles more than it writes: who comes first must not pay for that."""
    topic = Topic(broker, f"warm-up.{time.time_ns()}")
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "transactional.id": topic.name,
            "linger.ms": 0,
            "log_level": 0,  # it complains of a coordinator that is still loading, and waits
        }
    )
    producer.init_transactions(30)
    for _ in range(_WARM_UP_TRANSACTIONS):
        producer.begin_transaction()
        for number in range(_WARM_UP_RECORDS):
            producer.produce(topic.name, b"x" * 420, str(number))
        producer.commit_transaction(30)
    topic.count()


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="cdcwatch-bench-"))
    path.chmod(0o755)  # PostgreSQL's own user must get in
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


class Database:
    """One database of the server, with a connection of ours in autocommit."""

    def __init__(self, server: LocalPostgres, name: str) -> None:
        self.server, self.name = server, name
        self.dsn = server.dsn(dbname=name)
        self._connection: psycopg.Connection[Any] = psycopg.connect(self.dsn, autocommit=True)

    def rows(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """What a statement gives; empty where it gives nothing."""
        cursor = self._connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []

    def value(self, statement: str, *values: Any) -> Any:
        """The one value of its one row."""
        ((value,),) = self.rows(statement, *values)
        return value

    def make_slot(self, plugin: str, slot: str = SLOT) -> None:
        """With a publication of what cdcwatch needs, no more: the same for everyone who reads by pgoutput."""
        if plugin == "pgoutput":
            columns = _PUBLISHED if self.server.major >= _COLUMN_LISTS_SINCE else ""
            self.rows(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE orders {columns}")
        self.rows("SELECT pg_create_logical_replication_slot(%s, %s)", slot, plugin)

    def confirmed_lsn(self, slot: str = SLOT) -> int:
        """The server's confirmed_flush_lsn."""
        return parse_lsn(
            self.value("SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", slot)
        )

    def drop_slot(self, slot: str = SLOT) -> None:
        """Once its walsender has let go."""
        give_up_s = time.monotonic() + _RELEASE_TIMEOUT_S
        while True:
            try:
                self.rows("SELECT pg_drop_replication_slot(%s)", slot)
            except psycopg.errors.ObjectInUse:
                if time.monotonic() > give_up_s:
                    raise
                time.sleep(0.05)
            else:
                return

    def close(self) -> None:
        """Our connection."""
        self._connection.close()


@contextlib.contextmanager
def database(server: LocalPostgres, name: str) -> Iterator[Database]:
    """A new database, dropped with its slots afterwards."""
    quoted = sql.Identifier(name)
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(quoted))
        made = Database(server, name)
        try:
            yield made
        finally:
            for (slot,) in made.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"):
                made.drop_slot(slot)
            made.close()
            admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(quoted))


class Topic:
    """A topic with its progress topic."""

    def __init__(self, broker: LocalKafka, name: str) -> None:
        self.broker, self.name = broker, name
        self.settings = KafkaSettings(bootstrap_servers=broker.bootstrap_servers, topic=name, replication_factor=1)
        self._producer = Producer({"bootstrap.servers": broker.bootstrap_servers})
        create_topic(self.settings, name, PARTITIONS, {})
        require_progress_topic(self._producer, self.settings)

    @property
    def server_pid(self) -> int:
        """The broker's."""
        return self.broker.pid or 0

    def sections(self, delivery: str) -> dict[str, dict[str, str]]:
        """What a configuration says of it."""
        servers = self.broker.bootstrap_servers
        return {
            "sink": {"kind": "kafka"},
            "kafka": {"bootstrap_servers": servers, "topic": self.name, "delivery": delivery},
        }

    def begin_at(self, base: Database, slot: str = SLOT) -> None:
        """As if the program had read `slot` as far as it stands: no first start, no snapshot of the table."""
        system_identifier, timeline = base.rows(
            "SELECT system_identifier::text, timeline_id FROM pg_control_system(), pg_control_checkpoint()"
        )[0]
        origin = Origin(system_identifier, timeline, base.name, slot)
        progress = Progress(origin, Position(end_lsn=base.confirmed_lsn(slot)))
        self._producer.produce(progress_topic(self.settings), progress.to_json(), slot.encode(), 0)
        self._producer.flush()

    def subscriber(self) -> Consumer:
        """Reads committed records from the beginning of every partition."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.broker.bootstrap_servers,
                "group.id": "bench",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
            }
        )
        consumer.assign([TopicPartition(self.name, partition, 0) for partition in range(PARTITIONS)])
        return consumer

    def count(self) -> int:
        """How many records a read_committed subscriber finds."""
        consumer = self.subscriber()
        records, ended = 0, set()
        give_up_s = time.monotonic() + _COUNT_TIMEOUT_S
        while len(ended) < PARTITIONS and time.monotonic() < give_up_s:
            for message in consumer.consume(10_000, 0.1):
                error = message.error()
                if error is None:
                    records += 1
                elif error.code() == KafkaError._PARTITION_EOF:  # noqa: SLF001
                    ended.add(message.partition())
        consumer.close()
        return records
