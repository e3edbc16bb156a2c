"""The scheduler: a seed decides what happens next, and what breaks. The same seed gives the same run."""

from __future__ import annotations

import random
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from tests.fakes.sink import FakeBroker
from tests.fakes.table import WATCHED, FakeDatabase, FakeRow
from tests.simulation.oracle import (
    PARTITIONS,
    ConfirmationJudge,
    SnapshotTaken,
    WrongError,
    judge_closes,
    judge_nothing_due,
    judge_topic,
)
from tests.simulation.process import SimProcess
from tests.simulation.server import Server
from tests.simulation.sink import SimSink

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.simulation.server import RowChange

_SECOND_US: Final = 1_000_000
_HOUR_US: Final = 3600 * _SECOND_US
_SETTLING_TURNS: Final = 600
_QUIET_TURNS: Final = 10
"""Longer than a clock that was set stays unnoticed."""
_MOST_ROWS: Final = 25


class World:
    """One server, one broker, one or two processes of cdcwatch, and what happens to them."""

    def __init__(self, seed: int) -> None:
        self.random = chance = random.Random(seed)
        # Every fourth world's closes delete.
        database = FakeDatabase(replace(WATCHED, deletes=seed % 4 == 3))
        self.server = Server(is_full=chance.random() < 0.5, database=database)
        self.broker = FakeBroker(PARTITIONS)
        self.is_exact = chance.random() < 0.7
        self.checks_epoch = self.checks_delivery = True
        self.snapshot: SnapshotTaken | None = None
        self.trace: Callable[[str], None] | None = None
        self._monotonic_us = 1_000_000_000
        self._key = 0
        self._judged_closures = 0
        for _ in range(chance.randrange(6)):
            self.trade()
        self.server.confirmed_lsn = self.server.kept_lsn = self.server.lsn
        self.confirming = ConfirmationJudge(self.server, self.broker.records)
        self.confirming.skip_to(len(self.server.log))
        self._before_slot = len(self.server.log)
        self.server.confirming = self.confirming
        self.processes: list[SimProcess] = []
        self.start_process()

    @classmethod
    def weighted_actions(cls) -> list[tuple[Callable[[World], None], float]]:
        """What can happen, and how often it does."""
        return [
            (cls.trade, 14),
            (cls.trade_elsewhere, 3),
            (cls.send, 18),
            (cls.keep_alive, 5),
            (cls.read, 20),
            (cls.publish, 16),
            (cls.look_at_window, 3),
            (cls.take_batch, 7),
            (cls.close_batch, 7),
            (cls.pass_time, 8),
            (cls.checkpoint, 1),
            (cls.trade_in_bulk, 0.2),
            (cls.cut_stream, 0.7),
            (cls.crash_server, 0.3),
            (cls.crash_process, 0.7),
            (cls.start_process, 0.8),
            (cls.stop_process, 0.3),
            (cls.toggle_broker, 0.8),
            (cls.toggle_database, 0.3),
            (cls.lose_commit, 0.7),
            (cls.lose_commit_answer, 0.7),
            (cls.lose_close_answer, 0.5),
            (cls.jump_clock, 0.3),
        ]

    def run(self, steps: int) -> None:
        """So many steps, and then until all is quiet. WrongError when a guarantee was broken."""
        actions, weights = zip(*self.weighted_actions(), strict=True)
        for action in self.random.choices(actions, weights, k=steps):
            self.step(partial(action, self))
        self.settle()

    def step(self, action: Callable[[], None]) -> None:
        """One step, and what can be judged at once."""
        if self.trace is not None:
            self.trace(getattr(action, "func", action).__name__)
        action()
        if len(self.server.closures) > self._judged_closures:
            self._judged_closures = len(self.server.closures)
            judge_closes(self.server)

    # -- orders ------------------------------------------------------------------------------------------------------

    def trade(self) -> None:
        """A transaction of the shop's."""
        if not self.server.database.is_up:
            return
        touched: set[int] = set()
        changes: list[RowChange] = []
        for _ in range(self.random.choice((1, 1, 1, 2, 4))):
            change = self._change(touched)
            if change is not None:
                changes.append(change)
        self.server.commit(changes)

    def trade_in_bulk(self) -> None:
        """A transaction of many rows, most of them far from due."""
        if self.server.database.is_up:
            self.server.commit([self._insert(spread_us=48 * _HOUR_US) for _ in range(self.random.randrange(60, 200))])

    def trade_elsewhere(self) -> None:
        """A transaction on another table."""
        if self.server.database.is_up:
            self.server.commit([])

    def _change(self, touched: set[int]) -> RowChange | None:
        server, chance = self.server, self.random
        free = [key for key in server.rows if key not in touched]
        if len(server.rows) < 2 or not free or (len(server.rows) < _MOST_ROWS and chance.random() < 0.4):
            change = self._insert()
            touched.add(self._key)
            return change
        key = chance.choice(free)
        touched.add(key)
        kind = chance.random()
        if kind < 0.1:
            return server.delete(key)
        if kind < 0.12 and touched == {key}:
            return server.truncate()
        values: dict[str, object] = {}
        new_key = None
        if kind < 0.4:
            values["status"] = chance.choice(("paid", "cancelled", "pending"))
        elif kind < 0.9:
            values["deadline_us"] = self._deadline_us()
        if kind > 0.8:
            self._key += 1
            touched.add(self._key)
            new_key = self._key
        return server.update(key, new_key, **values)

    def _insert(self, spread_us: int = 40 * _SECOND_US) -> RowChange:
        self._key += 1
        status = "pending" if self.random.random() < 0.9 else "paid"
        return self.server.insert(self._key, FakeRow(status, self._deadline_us(spread_us), 1))

    def _deadline_us(self, spread_us: int = 40 * _SECOND_US) -> int | None:
        if self.random.random() < 0.05:
            return None
        return self.server.database.now_us + self.random.randrange(-_SECOND_US, spread_us)

    # -- steps of the machinery --------------------------------------------------------------------------------------

    def send(self) -> None:
        """The walsender and the network get on."""
        if self.server.sender is not None:
            self.server.sender.pump(self.random.choice((1, 3, 10, 60)))

    def keep_alive(self) -> None:
        """The walsender says how far it is."""
        if self.server.sender is not None:
            self.server.sender.keep_alive(reply_requested=self.random.random() < 0.5)

    def read(self) -> None:
        """A reader's turn."""
        self._any(SimProcess.read)
        self._replace_ended()

    def publish(self) -> None:
        """A publisher's turn."""
        self._any(SimProcess.publish)

    def look_at_window(self) -> None:
        """A window's turn."""
        self._any(SimProcess.look_at_window)

    def take_batch(self) -> None:
        """A worker's turn."""
        self._any(SimProcess.take_batch)

    def close_batch(self) -> None:
        """A worker's database's turn."""
        self._any(SimProcess.close_batch)

    def pass_time(self) -> None:
        """For everyone."""
        self._pass(self.random.choice((1000, 50_000, 700_000, 3_000_000, 20_000_000)))

    def _pass(self, us: int) -> None:
        self._monotonic_us += us
        self.server.database.now_us += us
        for process in self.processes:
            process.clock.us += us

    def _any(self, step: Callable[[SimProcess], object]) -> None:
        if self.processes:
            step(self.random.choice(self.processes))

    def _replace_ended(self) -> None:
        for process in list(self.processes):
            error = process.error
            if error is not None and not process.starts_over:
                raise WrongError(f"the process gave up: {error}")
            if process.has_ended or process.starts_over:
                self._end(process)
                self.start_process()

    # -- what breaks -------------------------------------------------------------------------------------------------

    def checkpoint(self) -> None:
        """The slot's position reaches the disk."""
        self.server.checkpoint()

    def cut_stream(self) -> None:
        """The replication connection breaks."""
        self.server.cut()

    def crash_server(self) -> None:
        """An immediate stop and a start."""
        self.server.crash()

    def start_process(self) -> None:
        """A standby, or what comes after a crash; at least once is for one process at a time."""
        if len(self.processes) >= (2 if self.is_exact else 1):
            return
        sink = SimSink(self.broker, self, is_transactional=self.is_exact)
        process = SimProcess(
            self.server, sink, random=self.random, monotonic_us=self._monotonic_us, snapshot_taken=self._snapshot_taken
        )
        self.processes.append(process)

    def _snapshot_taken(self, taken: SnapshotTaken) -> None:
        if self.is_exact:  # else what it shows comes from the stream as well
            self.snapshot = taken
            self.confirming.shown = taken.xids

    def crash_process(self) -> None:
        """SIGKILL; the server may notice at once, or much later."""
        if self.processes:
            self._end(self.random.choice(self.processes), notices=self.random.random() < 0.5)

    def _end(self, process: SimProcess, *, notices: bool = True) -> None:
        self.processes.remove(process)
        if notices and self.server.sender is not None and self.server.sender.pid == process.walsender_pid:
            self.server.cut()

    def stop_process(self) -> None:
        """SIGTERM."""
        self._any(SimProcess.stop)

    def toggle_broker(self) -> None:
        """The broker goes, or comes back."""
        self.broker.is_up = not self.broker.is_up

    def toggle_database(self) -> None:
        """The server stops for a while."""
        database = self.server.database
        database.is_up = not database.is_up
        if not database.is_up:
            self.server.crash()

    def lose_commit(self) -> None:
        """The next publication is lost."""
        self.broker.cuts_before_commit += 1

    def lose_commit_answer(self) -> None:
        """The next publication is durable, and nobody is told."""
        self.broker.cuts_after_commit += 1

    def lose_close_answer(self) -> None:
        """The next close is done, and nobody is told."""
        self.server.database.cuts_after_close += 1

    def jump_clock(self) -> None:
        """The database's clock is set."""
        self.server.database.now_us += self.random.choice((-_HOUR_US, _HOUR_US, 30 * _SECOND_US))

    # -- the end -----------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Everything heals; when all is quiet, all is judged. WrongError when it never is."""
        self._heal()
        quiet = 0
        for _ in range(_SETTLING_TURNS):
            self._turn()
            quiet = quiet + 1 if self._is_quiet() else 0
            if quiet >= _QUIET_TURNS:
                break
            self._pass(8 * _SECOND_US)
        else:
            judge_nothing_due(self.server)
            raise WrongError(f"no rest: confirmed {self.server.confirmed_lsn:X} of {self.server.lsn:X}")
        judge_closes(self.server)
        judge_nothing_due(self.server)
        judge_topic(
            self.server,
            self.broker.records,
            self.snapshot,
            before_slot=self._before_slot,
            is_exact=self.is_exact,
        )

    def _heal(self) -> None:
        self.broker.is_up = self.server.database.is_up = True
        self.broker.cuts_before_commit = self.broker.cuts_after_commit = self.server.database.cuts_after_close = 0
        for process in self.processes[1:]:
            self._end(process)
        if not self.processes:
            self.start_process()

    def _turn(self) -> None:
        sender = self.server.sender
        if sender is not None and all(process.walsender_pid != sender.pid for process in self.processes):
            self.server.cut()
        if self.server.sender is not None:
            self.server.sender.pump(200)
            self.server.sender.keep_alive(reply_requested=True)
        for process in self.processes:
            process.read()
            process.publish()
            process.look_at_window()
            process.take_batch()
            process.take_batch()  # the first may have had the clock to measure
            while process.close_batch():
                process.take_batch()
        self.step(self._replace_ended)

    def _is_quiet(self) -> bool:
        last_lsn = self.server.log[-1].end_lsn if self.server.log else 0
        process = self.processes[0]
        return process.outbox.is_idle and self.server.confirmed_lsn >= last_lsn and process.closes
