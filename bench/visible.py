"""How soon a committed row is a record that a read_committed subscriber sees, one row at a time."""

from __future__ import annotations

import contextlib
import queue
import random
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from confluent_kafka import Producer

from bench import heap, program, servers
from bench.load import SCHEMA
from bench.process import Failure, service
from bench.report import Table, percentile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bench.servers import Topic
    from cdcwatch.local import LocalKafka, LocalPostgres

DELIVERIES = ("exactly_once", "at_least_once")
_SEEN_TIMEOUT_S = 20
_WARM_UP_ROWS = 20
_EXPLANATION = """
cdcwatch whole: from the return of COMMIT, by the client that inserted the row, to the record in the hands of a
read_committed subscriber; fsync is on. Bare: from handing a producer one record of the same size, in a transaction of
its own or idempotent without one. The next row follows 5 to 30 ms after the last was seen. Ratio: p50 to the bare one
of the same delivery.
"""


class _Subscriber(threading.Thread):
    """Notes when each key came."""

    def __init__(self, topic: Topic) -> None:
        super().__init__(daemon=True)
        self._consumer = topic.subscriber()
        self._ended = threading.Event()
        self._seen: queue.SimpleQueue[tuple[int, float]] = queue.SimpleQueue()

    def run(self) -> None:
        while not self._ended.is_set():
            message = self._consumer.poll(0.2)
            if message is not None and message.error() is None:
                self._seen.put((int(message.key()), time.monotonic()))
        self._consumer.close()

    def await_key(self, key: int) -> float:
        """When it came. Failure when it doesn't, or another does."""
        try:
            seen, seen_s = self._seen.get(timeout=_SEEN_TIMEOUT_S)
        except queue.Empty:
            raise Failure(f"record {key} was not seen within {_SEEN_TIMEOUT_S} s") from None
        if seen != key:
            raise Failure(f"saw record {seen} in place of {key}")
        return seen_s

    def end(self) -> None:
        self._ended.set()
        self.join()


def measure(broker: LocalKafka, *, rows: int) -> list[Table]:
    """Both deliveries and plugins, and beside each delivery what Kafka alone takes; then the way to the heap."""
    table = Table(
        f"From commit to subscriber, {rows} rows one at a time",
        _EXPLANATION.strip(),
        ["sender", "p50 to bare", "p50 ms", "p99", "max", "seen"],
    )
    with servers.postgres(fsync=True) as server:
        for delivery in DELIVERIES:
            bare = _delays_ms(f"bare, {delivery}", partial(_bare, delivery=delivery), broker, rows, table)
            for plugin in servers.PLUGINS:
                name = f"cdcwatch, {plugin}, {delivery}"
                ours = _delays_ms(
                    name, partial(_cdcwatch, server, delivery=delivery, plugin=plugin), broker, rows, table
                )
                table.rows.append(_row(name, ours, bare, rows))
            table.rows.append(_row(f"bare, {delivery}", bare, bare, rows))
        return [table, heap.measure(broker, server, rows=rows)]


def _delays_ms(
    name: str,
    sender: Callable[[Topic], contextlib.AbstractContextManager[Callable[[int], float]]],
    broker: LocalKafka,
    rows: int,
    table: Table,
) -> list[float]:
    """Ordered. The sender sends the record with a key and says from when on the time counts."""
    topic = servers.Topic(broker, f"visible.{time.time_ns()}")
    subscriber = _Subscriber(topic)
    subscriber.start()
    delays_ms: list[float] = []
    try:
        with sender(topic) as send:
            for key in range(1, rows + _WARM_UP_ROWS + 1):
                sent_s = send(key)
                seen_s = subscriber.await_key(key)
                if key > _WARM_UP_ROWS:
                    delays_ms.append((seen_s - sent_s) * 1000)
                time.sleep(random.uniform(0.005, 0.030))
    except Failure as failure:
        table.problems.append(f"{name}: {failure}")
    finally:
        subscriber.end()
    load = table.note_load()
    delays_ms.sort()
    said = f"p50 {percentile(delays_ms, 0.5):6.1f} ms" if delays_ms else "nothing"
    print(f"visible  {name:40} {said}  load {load:.1f}", flush=True)
    return delays_ms


@contextlib.contextmanager
def _cdcwatch(server: LocalPostgres, topic: Topic, *, delivery: str, plugin: str) -> Iterator[Callable[[int], float]]:
    with servers.database(server, "bench_visible") as base, tempfile.TemporaryDirectory() as directory:
        base.rows(SCHEMA)
        base.make_slot(plugin)
        path = program.configuration(Path(directory), base, topic=topic, delivery=delivery, plugin=plugin)

        def insert(key: int) -> float:
            base.rows("INSERT INTO orders (id, expires_at) VALUES (%s, clock_timestamp() + interval '1 day')", key)
            return time.monotonic()

        with service(program.run_command(path)) as running:
            yield insert
            running.stop()


@contextlib.contextmanager
def _bare(topic: Topic, *, delivery: str) -> Iterator[Callable[[int], float]]:
    is_transactional = delivery == "exactly_once"
    identity = {"transactional.id": f"bench.{topic.name}"} if is_transactional else {}
    producer = Producer(
        {
            "bootstrap.servers": topic.broker.bootstrap_servers,
            "partitioner": "murmur2_random",
            "enable.idempotence": True,
            "linger.ms": 0,
            **identity,
        }
    )
    value = b"x" * 420

    def send(key: int) -> float:
        began_s = time.monotonic()
        producer.produce(topic.name, value, str(key))
        producer.poll(0)
        return began_s

    def send_transaction(key: int) -> float:
        began_s = time.monotonic()
        producer.begin_transaction()
        producer.produce(topic.name, value, str(key))
        producer.commit_transaction(10)
        return began_s

    if is_transactional:
        producer.init_transactions(20)
    yield send_transaction if is_transactional else send
    producer.flush(5)


def _row(name: str, delays_ms: list[float], bare: list[float], rows: int) -> list[str]:
    if not delays_ms or not bare:
        return [name, "-", "-", "-", "-", f"0/{rows}"]
    p50_ms = percentile(delays_ms, 0.5)
    return [
        name,
        f"{p50_ms / percentile(bare, 0.5):.2f}",
        f"{p50_ms:.1f}",
        f"{percentile(delays_ms, 0.99):.1f}",
        f"{delays_ms[-1]:.1f}",
        f"{len(delays_ms)}/{rows}",
    ]
