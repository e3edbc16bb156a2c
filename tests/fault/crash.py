"""Processes that end, break or freeze at failpoints, one after another on one database, and what must be true then."""

from __future__ import annotations

import re
import signal
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from psycopg.conninfo import make_conninfo

from cdcwatch.failpoints import EXIT_CODE, VARIABLE
from tests.oracle.subscriber import assert_nothing_confirmed_early
from tests.oracle.traffic import Traffic
from tests.oracle.world import Process
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.oracle.subscriber import Record
    from tests.oracle.world import World

PATIENCE_OF_SERVER_S = 3
PAUSE = f"pause:{PATIENCE_OF_SERVER_S + 1}"
"""Longer than the server waits for a reader's status and for an idle transaction."""
INSIDE = "inside:1000"
SURVIVED_PREFIXES = ("close.", "window.")
"""Threads that log what they didn't expect and go on: an order that is due must not wait for a restart."""

WINDOW = "[window]\nhorizon_s = 3\n"  # refilled every second
ALSO = '[close]\nbatch_rows = 100\nalso = "INSERT INTO closings SELECT id, expires_at FROM closed"\n'
CLOSINGS = "CREATE TABLE closings (id bigint, expires_at timestamptz, PRIMARY KEY (id, expires_at))"


class CrashPoint(NamedTuple):
    name: str
    action: str
    when: str = "first"

    @property
    def specification(self) -> str:
        return f"{self.name}={self.action}@{self.when}"

    @property
    def exit_code(self) -> int | None:
        """With which the process ends at it; None: it goes on."""
        if self.action == "raise" and self.name.startswith(SURVIVED_PREFIXES):
            return None
        return {"exit": EXIT_CODE, "kill": -signal.SIGKILL, "raise": 1, "term": 0}.get(self.action)


class Crashes:
    """In one world, with traffic going on. What was seen at each crash is judged at the end."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._sightings: list[tuple[str, int, dict[int, int]]] = []
        # Impatient servers: what a pause does to the other side shows within it.
        dsn = world.database.dsn
        sender = f"-c wal_sender_timeout={PATIENCE_OF_SERVER_S}s"
        idle = f"-c idle_in_transaction_session_timeout={PATIENCE_OF_SERVER_S - 1}s"
        world.environment |= {
            "CDCWATCH_POSTGRES__DSN": make_conninfo(dsn, options=idle),
            "CDCWATCH_POSTGRES__REPLICATION_DSN": make_conninfo(dsn, options=sender),
        }

    def crash(
        self,
        *points: CrashPoint,
        provoke: Callable[[Process], Any] = lambda _process: None,
        nudge: Callable[[], Any] | None = None,
        armed_too: Sequence[CrashPoint] = (),
    ) -> str:
        """Starts a process that must come to all of these places; at the last one it may end. What it said.

        `provoke` is called once, `nudge` again and again until it has. `armed_too`: places that it may come to or not.
        """
        world = self._world
        said = Said(world)
        process = world.run(environment={VARIABLE: ",".join(point.specification for point in (*points, *armed_too))})
        try:
            provoke(process)
            for point in points:
                told = f"failpoint {point.name}: {point.action}"

                def is_over(told: str = told) -> bool:
                    if told in said.now() or not process.is_running:
                        return True
                    if nudge is not None:
                        nudge()
                    return False

                wait_until(is_over, 60, f"{point} is reached", every_s=0.01 if nudge is None else 0.3)
                # Else this test could not fail: nothing would have happened to the process.
                assert told in said.now(), f"{point} was not reached: {said.now()[-2000:]}"
            self._ended(process, points, said)
        finally:
            process.kill()
        return said.now()

    def _ended(self, process: Process, points: tuple[CrashPoint, ...], said: Said) -> None:
        codes = [point.exit_code for point in points if point.exit_code is not None]
        if not codes:
            for point in points:
                if point.action == "raise":
                    wait_until(lambda: "FailpointError" in said.now(), 30, "the mistake is told")
            process.wait_ready()
            overdue = "SELECT count(*) FROM orders WHERE status = 'pending' AND expires_at < now() - interval '2 s'"
            wait_until(lambda: self._world.scalar(overdue) == 0, 30, "it closes what is due without a restart")
            process.stop()
            return
        assert process.wait() == codes[0], said.now()[-2000:]
        if codes[0] == 1:
            assert re.search(r"^cdcwatch: .*FailpointError.*\nremedy: ", said.now(), re.MULTILINE), said.now()[-2000:]
        self.sight(str(points))

    def sight(self, at: str) -> None:
        """What is confirmed now, and how far a subscriber can read now."""
        world = self._world
        confirmed_lsn = world.confirmed_lsn()
        self._sightings.append((at, confirmed_lsn, world.sent_ends()))

    def recovered(self, *, exactly_once: bool = True) -> list[Record]:
        """A plain start brings everything in order: the oracle's verdict on all that happened."""
        world = self._world
        with world.running():
            world.wait_nothing_due()
            world.wait_confirmed()
        records = world.judge(exactly_once=exactly_once)
        for at, confirmed_lsn, ends in self._sightings:
            assert_nothing_confirmed_early(records, confirmed_lsn, ends, at=at)
        return records


class Said:
    """What the world's log says from now on."""

    def __init__(self, world: World) -> None:
        self._log = world.log
        self._begin = self._log.stat().st_size if self._log.exists() else 0

    def now(self) -> str:
        if not self._log.exists():
            return ""
        with self._log.open("rb") as log:
            log.seek(self._begin)
            return log.read().decode(errors="replace")


@contextmanager
def crashes_under_load(world: World, seed: int) -> Iterator[Crashes]:
    """The first start is over, and orders come, change and fall due."""
    crashes = Crashes(world)
    with world.running():
        pass
    with Traffic(world.database.dsn, seed=seed, rest_s=0.04).running():
        yield crashes


def terminate_walsender(world: World) -> None:
    world.connection.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = %s", [world.slot]
    )


def stopped(process: Process) -> None:
    """Provokes: once ready, SIGTERM."""
    process.wait_ready()
    process.signal(signal.SIGTERM)


def provocation(world: World, point: CrashPoint) -> dict[str, Any]:
    """What brings a process there, where traffic alone does not."""
    if point.name == "stream.lost" or (point.name, point.when) == ("stream.acquired", "2"):
        return {"provoke": Process.wait_ready, "nudge": lambda: terminate_walsender(world)}
    return {"provoke": stopped} if point.name.startswith("stop.") else {}
