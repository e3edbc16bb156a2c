"""`python -m tests.fault.soak SEED`: order traffic under faults, and the oracle's judgement.

A seed decides which faults come when (tests/fault/course.py); what the machine makes of it is another matter, so that a
seed that failed fails again often, not always.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import signal
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from confluent_kafka import KafkaException

from cdcwatch.local import LocalKafka, LocalPostgres
from cdcwatch.local.kafka import server_properties
from cdcwatch.local.process import free_port
from tests import services
from tests.fault.course import LINKS, Fault, Kind, Round, counted, course
from tests.fault.proxy import Proxy, before, through
from tests.oracle.ledger import closes, read_ledger
from tests.oracle.subscriber import assert_nothing_confirmed_early, sent_ends
from tests.oracle.traffic import Traffic
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from tests.oracle.world import Process
    from tests.services import Database

TOPIC = "orders.deadlines"
_SLOW_S = 0.25
_THROTTLED_BYTES_PER_S = 40_000
_BROKER_START_TIMEOUT_S = 300
_LOG_TAIL_BYTES = 6000
_WORKING_S = 12.0
_AGAIN_S = 0.1
_MOSTLY = 0.8
_ENDING = frozenset({Kind.KILL, Kind.TERMINATE})


class Proxied(NamedTuple):
    """A broker that is reached directly, and by way of a proxy under the address that it advertises there."""

    broker: LocalKafka
    proxy: Proxy

    @property
    def bootstrap_servers(self) -> str:
        return f"127.0.0.1:{self.proxy.port}"


@contextlib.contextmanager
def proxied_kafka(*, session_timeout_ms: int = 3000) -> Iterator[Proxied]:
    """The broker's own traffic takes the direct listener, as does who asks `broker.bootstrap_servers`."""
    direct, behind = free_port(), free_port()
    with services.scratch_directory() as directory, Proxy("127.0.0.1", behind) as proxy:
        properties = {
            **server_properties(
                listeners=f"PLAINTEXT://127.0.0.1:{direct},PROXIED://127.0.0.1:{behind}",
                advertised=f"PLAINTEXT://127.0.0.1:{direct},PROXIED://127.0.0.1:{proxy.port}",
                controller=f"127.0.0.1:{free_port()}",
                session_timeout_ms=session_timeout_ms,
            ),
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,PROXIED:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
        }
        with LocalKafka(
            directory / "kafka", port=direct, properties=properties, start_timeout_s=_BROKER_START_TIMEOUT_S
        ) as broker:
            yield Proxied(broker, proxy)


class Stature(NamedTuple):
    """What a process holds."""

    rss_mib: float
    descriptors: int
    threads: int

    @classmethod
    def of(cls, pid: int) -> Stature:
        """OSError once it is gone."""
        status = Path(f"/proc/{pid}/status").read_text()
        fields = {name: rest.split() for name, _, rest in (line.partition(":") for line in status.splitlines())}
        if "VmRSS" not in fields:
            raise ProcessLookupError(pid)
        return cls(
            int(fields["VmRSS"][0]) / 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())), int(fields["Threads"][0])
        )

    def __str__(self) -> str:
        return f"{self.rss_mib:.0f} MiB, {self.descriptors} descriptors, {self.threads} threads"


class Growth(NamedTuple):
    """Of one process through one or more rounds, measured when all was well."""

    rounds: int
    before: Stature
    after: Stature


@dataclass
class Report:
    """What became of a soak."""

    seed: int
    plugin: str
    delivery: str
    seconds: float = 0.0
    faults: dict[Kind, int] = field(default_factory=dict)
    kills: int = 0
    orders: int = 0
    events: int = 0
    duplicates: int = 0
    closes: int = 0
    lateness_s: list[float] = field(default_factory=list)
    reconnects: int = 0
    reopens: int = 0
    undrained: int = 0
    catch_up_s: list[float] = field(default_factory=list)
    sightings: int = 0
    growth: list[Growth] = field(default_factory=list)

    def __str__(self) -> str:
        lateness = [f"{_quantile(self.lateness_s, part) * 1000:,.0f}" for part in (0.5, 0.99, 1)]
        lines = [
            f"soak: seed {self.seed}, {self.plugin}, {self.delivery}, {self.seconds:.0f} s",
            f"  kills         {self.kills}",
            *(f"  {count:11}   {kind.value}" for kind, count in self.faults.items()),
            f"  orders        {self.orders:,}, closed {self.closes:,}",
            f"  events        {self.events:,}, of these duplicates {self.duplicates:,}",
            f"  lateness ms   p50 {lateness[0]}, p99 {lateness[1]}, max {lateness[2]}, by the database's clock, outages counted in",
            f"  reconnects    {self.reconnects} of the stream, {self.reopens} of the sink",
            f"  SIGTERM       {self.undrained} ended with 4",
            f"  caught up     {', '.join(f'{one:.1f}' for one in self.catch_up_s)} s after all was healed",
            f"  sightings     {self.sightings}, nothing confirmed early",
            *(f"  {one.rounds} round(s)    {one.before} -> {one.after}" for one in self.growth),
        ]
        return "\n".join(lines)


def _quantile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values) or [0.0]
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


class Watched:
    """A cdcwatch, and whether its end was asked for."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.is_stopped = False

    def stop(self) -> None:
        self.process.signal(signal.SIGSTOP)
        self.is_stopped = True

    def go_on(self) -> None:
        if self.is_stopped:
            self.process.signal(signal.SIGCONT)
            self.is_stopped = False


class Soak:
    """One run."""

    def __init__(self, seed: int, minutes: float, *, plugin: str, delivery: str, folder: Path) -> None:
        self._seed, self._minutes, self._folder = seed, minutes, folder
        self._rounds = course(seed, minutes)
        self._report = Report(seed, plugin, delivery, faults=dict(counted(self._rounds)))
        self._alive: list[Watched] = []
        self._links: dict[str, Proxy] = {}
        self._sightings: list[tuple[str, int, dict[int, int]]] = []
        self._postgres_is_up = True

    @property
    def replay(self) -> str:
        report = self._report
        return (
            f"python -m tests.fault.soak {self._seed} --minutes {self._minutes:g}"
            f" --plugin {report.plugin} --delivery {report.delivery}"
        )

    def run(self) -> Report:
        """AssertionError, with a note of how to run it again."""
        print(f"\n{self.replay}", flush=True)
        try:
            with self._servers():
                self._run()
        except BaseException as error:
            log = self._folder / "cdcwatch.log"
            tail = log.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace") if log.exists() else ""
            error.add_note(f"{self._report}\n{tail}\nagain: {self.replay}")
            raise
        print(self._report, flush=True)
        return self._report

    @contextlib.contextmanager
    def _servers(self) -> Iterator[Self]:
        with contextlib.ExitStack() as stack:
            # Synced to disk: what a crash takes back must not have been committed.
            directory = stack.enter_context(services.scratch_directory())
            self._postgres = stack.enter_context(
                LocalPostgres(directory / "postgres", fsync=True, settings={"wal_sender_timeout": "5s"})
            )
            self._kafka = stack.enter_context(proxied_kafka())
            services.create_topic(self._kafka.broker, TOPIC, partitions=3)
            self._database: Database = stack.enter_context(services.fresh_database(self._postgres))
            self._links = {
                "stream": stack.enter_context(before(self._database.dsn)),
                "closing": stack.enter_context(before(self._database.dsn)),
                "kafka": self._kafka.proxy,
            }
            report = self._report
            self._world = stack.enter_context(
                World(
                    self._database,
                    self._kafka.broker.bootstrap_servers,
                    TOPIC,
                    self._folder,
                    kafka={"delivery": report.delivery},
                    plugin=report.plugin,
                )
            )
            self._world.install()
            self._world.environment = {
                "CDCWATCH_POSTGRES__DSN": through(self._links["closing"], self._database.dsn),
                "CDCWATCH_POSTGRES__REPLICATION_DSN": through(self._links["stream"], self._database.dsn),
                "CDCWATCH_KAFKA__BOOTSTRAP_SERVERS": self._kafka.bootstrap_servers,
            }
            stack.callback(self._end_processes)
            yield self

    def _run(self) -> None:
        began_s = time.monotonic()
        with self._world.running():  # the first start finds an empty table: what follows is the stream's alone
            pass
        self._start()
        rest_s = max(0.06, 0.006 * self._minutes)  # the oracle keeps every event
        with Traffic(self._database.dsn, seed=self._seed, rest_s=rest_s, outlives_outages=True).running():
            self._settle()
            marks: list[tuple[Watched, int, Stature]] = [self._stature(0)]
            for number, one in enumerate(self._rounds):
                self._go(one)
                self._settle()
                watched, since, stature = marks[-1]
                now = self._stature(number + 1)
                if now[0] is watched:
                    self._report.growth.append(Growth(number + 1 - since, stature, now[2]))
                else:
                    marks.append(now)
        self._settle()
        self._world.wait_nothing_due()
        self._world.wait_confirmed()
        self._alive.pop().process.stop()
        self._report.seconds = time.monotonic() - began_s
        self._judge()

    # -- faults ------------------------------------------------------------------------------------------------------

    def _go(self, one: Round) -> None:
        began_s = time.monotonic()
        agenda = [(fault.at_s, number, False) for number, fault in enumerate(one.faults)]
        due_s: dict[int, float] = {}
        while agenda:
            at_s, number, heals = heapq.heappop(agenda)
            threading.Event().wait(max(0.0, began_s + at_s - time.monotonic()))
            fault, now_s = one.faults[number], time.monotonic() - began_s
            if heals:
                self._heal(fault)
            elif now_s - due_s.setdefault(number, now_s) < _WORKING_S and not self._is_worth_it(fault):
                heapq.heappush(agenda, (now_s + _AGAIN_S, number, False))  # what heals goes on meanwhile
            else:
                self._tell(f"{now_s:6.1f} s: {fault}")
                self._begin(fault)
                if fault.hold_s:
                    heapq.heappush(agenda, (time.monotonic() - began_s + fault.hold_s, number, True))
            self._require_alive()

    def _tell(self, said: str) -> None:
        """Into the service's log, where one looks for what it did then."""
        with self._world.log.open("a") as log:
            log.write(f"--- {said}\n")

    def _begin(self, fault: Fault) -> None:
        kind = fault.kind
        if kind in _ENDING:
            threading.Event().wait(fault.luck)  # any moment: a signal would always find it at the same place
        if fault.link:
            self._spoil(self._links[fault.link], fault)
        elif kind is Kind.KILL:
            self._kill(self._chosen(fault))
        elif kind is Kind.TERMINATE:
            self._terminate(self._chosen(fault))
        elif kind is Kind.PAUSE:
            self._chosen(fault).stop()
        elif kind is Kind.SECOND:
            self._start()
        elif kind is Kind.POSTGRES:
            self._postgres_is_up = False
            self._world.connection.close()
            self._postgres.stop("immediate")
            self._report.kills += 1
        elif kind is Kind.BROKER:
            self._kafka.broker.kill()
            self._report.kills += 1

    def _heal(self, fault: Fault) -> None:
        kind = fault.kind
        if fault.link:
            self._links[fault.link].heal()
        elif kind is Kind.PAUSE:
            for watched in self._alive:
                watched.go_on()
        elif kind is Kind.SECOND:
            self._kill(self._chosen(fault))
        elif kind is Kind.POSTGRES:
            self._start_postgres()
        elif kind is Kind.BROKER:
            self._kafka.broker.start()

    @staticmethod
    def _spoil(proxy: Proxy, fault: Fault) -> None:
        kind, ways = fault.kind, fault.ways
        if kind is Kind.DELAY:
            proxy.delay(_SLOW_S, ways)
        elif kind is Kind.THROTTLE:
            proxy.throttle(_THROTTLED_BYTES_PER_S, ways)
        elif kind is Kind.STALL:
            proxy.stall(ways)
        elif kind is Kind.BLACK_HOLE:
            proxy.black_hole(ways)
        elif kind is Kind.HALF_OPEN:
            proxy.half_open(ways)
        else:
            proxy.reset()

    def _chosen(self, fault: Fault) -> Watched:
        return self._alive[int(fault.luck * len(self._alive))]

    def _is_worth_it(self, fault: Fault) -> bool:
        """Whether whom it ends works: mostly it should, as a slow machine would see none but beginners killed."""
        ends = fault.kind in _ENDING and fault.luck < _MOSTLY
        return not ends or self._chosen(fault).process.is_ready

    def _start(self) -> None:
        self._alive.append(Watched(self._world.run()))

    def _kill(self, watched: Watched) -> None:
        self._require_alive()
        self._alive.remove(watched)
        watched.process.kill()
        self._report.kills += 1
        self._look(f"kill {self._report.kills}")
        if not self._alive:
            self._start()

    def _terminate(self, watched: Watched) -> None:
        self._require_alive()
        self._alive.remove(watched)
        watched.go_on()
        watched.process.signal(signal.SIGTERM)
        code = watched.process.wait()
        # 4: something that was read could not become durable, or a server was away. The signal's own: it only began.
        expected = {0, 4} if watched.process.is_ready else {0, 4, -signal.SIGTERM}
        assert code in expected, f"SIGTERM ended it with {code}"
        self._report.undrained += code == 4
        self._look("SIGTERM")
        if not self._alive:
            self._start()

    def _require_alive(self) -> None:
        for watched in self._alive:
            assert watched.process.is_running, f"cdcwatch ended by itself with {watched.process.wait()}"

    def _start_postgres(self) -> None:
        self._postgres.start()
        if not self._postgres_is_up:
            self._world.connection = self._database.connect()
            self._postgres_is_up = True

    def _look(self, at: str) -> None:
        """What is confirmed, and how far a subscriber can read: where both can be asked."""
        if not self._postgres_is_up or self._kafka.broker.pid is None:
            return
        confirmed_lsn = self._world.confirmed_lsn()
        with contextlib.suppress(KafkaException):  # a broker that has just come back
            self._sightings.append((at, confirmed_lsn, sent_ends(self._world.bootstrap_servers, TOPIC)))

    # -- when all is well --------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Heals everything, and waits until one process has caught up with what was there then."""
        for link in LINKS:
            self._links[link].heal()
            self._links[link].forget()
        self._start_postgres()
        self._kafka.broker.start()
        for watched in self._alive:
            watched.go_on()
        while len(self._alive) > 1:
            self._kill(self._alive[-1])
        began_s = time.monotonic()
        self._tell("healed")
        target_lsn = self._world.current_lsn()
        wait_until(lambda: self._has_confirmed(target_lsn), 60, "caught up after all was healed", every_s=0.05)
        self._report.catch_up_s.append(time.monotonic() - began_s)
        self._look("settled")

    def _has_confirmed(self, lsn: int) -> bool:
        self._require_alive()
        return self._world.confirmed_lsn() >= lsn

    def _stature(self, rounds: int) -> tuple[Watched, int, Stature]:
        (watched,) = self._alive
        return watched, rounds, Stature.of(watched.process.pid)

    def _end_processes(self) -> None:
        for watched in self._alive:
            if watched.process.is_running:
                watched.process.kill()
        self._alive.clear()
        with contextlib.suppress(psycopg.Error):
            self._start_postgres()  # its database is dropped next

    def _judge(self) -> None:
        report, world = self._report, self._world
        world.wait_topic_committed()
        records = world.judge(exactly_once=report.delivery == "exactly_once")
        for at, confirmed_lsn, ends in self._sightings:
            assert_nothing_confirmed_early(records, confirmed_lsn, ends, at=at)
        ledger = read_ledger(world.connection)
        closed = closes(ledger)
        report.sightings = len(self._sightings)
        report.orders = sum(entry.old_id is None for entry in ledger)
        report.closes = len(closed)
        report.lateness_s = [(one.at - one.new_deadline).total_seconds() for one in closed if one.new_deadline]
        report.events = len(records)
        report.duplicates = len(records) - len({record.id for record in records})
        log = world.log.read_text(errors="replace")
        report.reconnects = sum("reader: " in line and "again in" in line for line in log.splitlines())
        report.reopens = sum("publisher: " in line and "again in" in line for line in log.splitlines())


def main() -> None:
    """Raises what the run meets."""
    parser = argparse.ArgumentParser(prog="python -m tests.fault.soak", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--minutes", type=float, default=3)
    parser.add_argument("--plugin", choices=["wal2json", "pgoutput"], default="wal2json")
    parser.add_argument("--delivery", choices=["exactly_once", "at_least_once"], default="exactly_once")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cdcwatch-soak-"))
    print(f"the service's log: {folder / 'cdcwatch.log'}")
    Soak(arguments.seed, arguments.minutes, plugin=arguments.plugin, delivery=arguments.delivery, folder=folder).run()


if __name__ == "__main__":
    main()
