"""One database, topic and configuration with which `cdcwatch run` is started, killed and judged."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from cdcwatch.local.process import free_port
from cdcwatch.lsn import parse_lsn
from tests.command import cdcwatch, write_configuration
from tests.oracle.ledger import CLAIMED, OPEN, SCHEMA, assert_closes, expected_events, read_ledger
from tests.oracle.subscriber import Record, assert_topic, read_topic, sent_ends
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import Self

    from tests.services import Database

READY_TIMEOUT_S = 60
SLOT = "orders"


class Process:
    """A running `cdcwatch run`."""

    def __init__(
        self, configuration: Path, log: Path, *arguments: str, environment: Mapping[str, str] | None = None
    ) -> None:
        self._log = log.open("ab")
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "cdcwatch", "run", "-c", str(configuration), "--debug", *arguments],
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self._ready = threading.Event()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            if line.strip() == "READY":
                self._ready.set()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    @property
    def is_ready(self) -> bool:
        """Whether it has said READY."""
        return self._ready.is_set()

    def wait_ready(self) -> None:
        """Until it says READY; AssertionError when it ends before."""
        wait_until(lambda: self._ready.is_set() or not self.is_running, READY_TIMEOUT_S, "READY")
        assert self._ready.is_set(), f"cdcwatch ended with {self._popen.returncode}"

    def kill(self) -> None:
        """SIGKILL."""
        self._popen.kill()
        self.wait()

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    def stop(self, *, exit_code: int = 0) -> None:
        """SIGTERM, and the exit code it must end with."""
        self.signal(signal.SIGTERM)
        assert self.wait() == exit_code

    def wait(self, timeout_s: float = 180) -> int:
        """Its exit code."""
        code = self._popen.wait(timeout_s)
        self._listener.join()
        if self._popen.stdout is not None:
            self._popen.stdout.close()
        self._log.close()
        return code


class World:
    """Everything around the service."""

    def __init__(
        self,
        database: Database,
        bootstrap_servers: str,
        topic: str,
        folder: Path,
        extra: str = "",
        *,
        kafka: Mapping[str, str] | None = None,
        plugin: str = "wal2json",
    ) -> None:
        self.database, self.bootstrap_servers, self.topic, self._folder = database, bootstrap_servers, topic, folder
        self.slot = f"{SLOT}_{database.name}"[:63].lower()
        self.connection = database.connect()
        self.environment: dict[str, str] = {}
        """Of every service that is started here: the oracle and the commands go by the configuration."""
        self.log = folder / "cdcwatch.log"
        self.configuration = write_configuration(
            folder / "cdcwatch.toml",
            database.dsn,
            f'[slot]\nname = "{self.slot}"\nplugin = "{plugin}"\n'
            f'[kafka]\nbootstrap_servers = "{bootstrap_servers}"\ntopic = "{topic}"\n'
            + "".join(f'{name} = "{value}"\n' for name, value in (kafka or {}).items())
            + '[telemetry]\nlisten = ""\n'
            + extra,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.connection.close()

    def install(self, schema: str = SCHEMA) -> None:
        """Table, ledger and slot."""
        self.connection.execute(schema)  # type: ignore[call-overload]
        self.create_slot()

    def create_slot(self) -> None:
        created = cdcwatch("slot", "create", "-c", self.configuration)
        assert created.code == 0, created.said

    def listen(self) -> None:
        """From the next start on the service shows its metrics."""
        self._port = free_port()
        text = self.configuration.read_text()
        self.configuration.write_text(text.replace('listen = ""', f'listen = "127.0.0.1:{self._port}"'))

    @property
    def address(self) -> str:
        """Of the port, once `listen` was called."""
        return f"http://127.0.0.1:{self._port}"

    def metric(self, name: str) -> float:
        """Of the running service, the sum over its labels."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/metrics", timeout=5) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))

    def readiness(self) -> dict[str, Any]:
        """What the service says at /readyz, once it listens."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/readyz", timeout=5) as answer:
                return dict(json.load(answer))
        except urllib.error.HTTPError as error:
            with error:
                return dict(json.load(error))
        except urllib.error.URLError:
            return {"ready": False, "sink": {}, "closer": {}}

    def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> Process:
        """Starts the service, with more in its environment."""
        return Process(
            self.configuration, self.log, *arguments, environment={**self.environment, **(environment or {})}
        )

    @contextlib.contextmanager
    def running(
        self, *arguments: str, gets_ready: bool = True, environment: Mapping[str, str] | None = None
    ) -> Iterator[Process]:
        """A service that is ready, unless it can't be; stopped at the end, killed where the test failed."""
        process = self.run(*arguments, environment=environment)
        try:
            if gets_ready:
                process.wait_ready()
            yield process
        except BaseException:
            process.kill()
            raise
        if process.is_running:
            process.stop()

    def confirmed_lsn(self) -> int:
        """The slot's confirmed_flush_lsn."""
        ((text,),) = self.connection.execute(
            "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s", [self.slot]
        )
        return parse_lsn(text)

    def current_lsn(self) -> int:
        ((text,),) = self.connection.execute("SELECT pg_current_wal_insert_lsn()::text")
        return parse_lsn(text)

    def wait_confirmed(self, lsn: int | None = None, timeout_s: float = 60) -> None:
        """Until the slot is confirmed up to there (now)."""
        target = self.current_lsn() if lsn is None else lsn
        wait_until(lambda: self.confirmed_lsn() >= target, timeout_s, f"confirmed_flush_lsn >= {target:X}")

    def wait_nothing_due(self, timeout_s: float = 60) -> None:
        """Until no order is pending."""
        self.wait_nothing_due_but(0, timeout_s)

    def wait_nothing_due_but(self, left: int, timeout_s: float = 60) -> None:
        """Until so many orders are pending, which are due later."""
        wait_until(
            lambda: self.scalar("SELECT count(*) FROM orders WHERE status = 'pending'") == left, timeout_s, "closed"
        )

    def scalar(self, query: str, *values: Any) -> Any:
        row = self.connection.execute(query, values or None).fetchone()  # type: ignore[call-overload]
        assert row is not None
        return row[0]

    def records(self) -> list[Record]:
        return read_topic(self.bootstrap_servers, self.topic)

    def events(self) -> list[Record]:
        """Its records but for those of gaps."""
        return [record for record in self.records() if not record.is_gap]

    def sent_ends(self) -> dict[int, int]:
        """As of `sent_ends`: of the topic's partitions."""
        return sent_ends(self.bootstrap_servers, self.topic)

    def wait_topic_committed(self) -> None:
        """Until no transaction of the topic is open, so that a subscriber sees all there is."""
        options = {"bootstrap.servers": self.bootstrap_servers, "group.id": "ends"}
        committed = Consumer({**options, "isolation.level": "read_committed"})
        all_there = Consumer({**options, "isolation.level": "read_uncommitted"})
        try:
            for partition in committed.list_topics(self.topic, timeout=10).topics[self.topic].partitions:
                place = TopicPartition(self.topic, partition)

                def is_closed(place: TopicPartition = place) -> bool:
                    try:
                        ends = [c.get_watermark_offsets(place, timeout=5)[1] for c in (committed, all_there)]
                    except KafkaException:
                        return False
                    return ends[0] == ends[1]

                wait_until(is_closed, 30, "no open transaction")
        finally:
            committed.close()
            all_there.close()

    def judge(self, *, exactly_once: bool = True) -> list[Record]:
        """The oracle, once everything is closed, confirmed and stopped; the topic's records."""
        ledger = read_ledger(self.connection)
        told = OPEN | ({CLAIMED} if 'action = "claim"' in self.configuration.read_text() else set())
        assert_closes(ledger, self.connection, told)
        self.wait_topic_committed()
        records = self.records()
        assert_topic(records, expected_events(ledger, told), exactly_once=exactly_once)
        return records
