"""The compensation scan: what is overdue in the table and nobody here has in hand is put among the pending orders.

It is found by the partial index, oldest first, in bounded pages, and closed by the same workers and the same statement
as all others; so it is tried again, given up and counted like them. Each instance takes its share of the keys. Found
orders come in small bites at a bounded rate, each bite settled before the next: deadlines that come meanwhile wait for
no more than one of them.
"""

from __future__ import annotations

import logging
import random
import threading
from typing import TYPE_CHECKING, Final, Protocol

from cdcwatch.close.instances import BEAT_S
from cdcwatch.close.shards import Shard
from cdcwatch.close.workers import RECONNECT, log_mistake
from cdcwatch.errors import CdcwatchError
from cdcwatch.log import NamingThread, told_of
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cdcwatch.close.agenda import Agenda
    from cdcwatch.close.clock import Clock
    from cdcwatch.close.shards import Member
    from cdcwatch.close.table import Overdue, Scan
    from cdcwatch.table import Key

_TICK_S: Final = 1.0
_POLL_S: Final = 0.02
_BITES_PER_S: Final = 20
STUCK_US: Final = 10_000_000
"""So long behind, an instance leaves its share to the others."""
HELD_US: Final = 3_000_000
"""So long held by others, an order is left by a sweep that is to end."""

_log = logging.getLogger(__name__)


class Register(Protocol):
    """The instances that share the work. Errors as of `Table`."""

    @property
    def id(self) -> str:
        """Of this instance."""

    def connect(self) -> None:
        """Connects; nothing when connected."""

    def disconnect(self) -> None:
        """Lets the connection go. Never raises."""

    def beat(self) -> list[Member]:
        """A sign of life; who is alive. Empty where there is no register."""

    def withdraw(self) -> None:
        """Takes its leave."""

    def position(self) -> int:
        """Up to where the primary's WAL is safe."""


class SweepObserver(Protocol):
    """Where the figures of sweeping go. Called by the sweep's thread; must not raise."""

    def recovered(self, count: int) -> None:
        """So many orders were closed that the sweep had found."""

    def looked(self) -> None:
        """It has looked at all that is overdue."""

    def fell_back(self, reason: str) -> None:
        """The primary was scanned instead of the standby."""


class Sweep:
    """Looks every so often, on a thread of its own."""

    def __init__(
        self,
        agenda: Agenda,
        scan: Scan,
        register: Register | None,
        clock: Clock,
        *,
        interval_s: float,
        grace_ms: int,
        batch_rows: int,
        rows_per_s: int,
        observer: SweepObserver,
        may_sweep: Callable[[], bool] = lambda: True,
        has_told: Callable[[int], bool] | None = None,
    ) -> None:
        """`register` None: everything is ours. `may_sweep`: whether all that the window holds has been loaded.

        `has_told`: whether the stream has told of all up to a position; what the scan finds is asked for again then.
        None: there is no stream, and every order is found by the scan.
        """
        self._agenda, self._scan, self._register, self._clock = agenda, scan, register, clock
        self._interval_us, self._grace_us = int(interval_s * 1_000_000), grace_ms * 1000
        self._tick_s = min(_TICK_S, interval_s)
        self._batch_rows, self._rows_per_s = batch_rows, rows_per_s
        self._bite_rows = max(1, min(batch_rows, rows_per_s // _BITES_PER_S))
        self._observer, self._may_sweep, self._has_told = observer, may_sweep, has_told
        self._shard = Shard("", [])
        now_us = clock.monotonic_us()
        # With a stream the first look comes after what the start itself has loaded was closed.
        self._look_at_us = now_us if has_told is None else now_us + self._interval_us
        self._beat_at_us = self._free_at_us = self._looked_us = now_us
        self._is_in = self._finishes = False
        self._reported = 0
        self._last_error = ""
        self._stopping = threading.Event()
        self._thread = NamingThread(target=self._run, name="cdcwatch-sweep", daemon=True)
        self.has_looked = False
        """Whether it came through a look."""

    # -- the thread --------------------------------------------------------------------------------------------------

    @property
    def last_error(self) -> str:
        """Why it can't look now; empty when it can."""
        return self._last_error

    @property
    def looked_monotonic_us(self) -> int:
        """When it last came through a look, or through a page of a long one."""
        return self._looked_us

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def request_stop(self) -> None:
        """Looks no further; the thread ends by itself."""
        self._stopping.set()

    def stop(self, timeout_s: float) -> bool:
        """Ends the thread. False when a look did not end in time."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        failures = 0
        try:
            while not self._stopping.is_set():
                try:
                    self.step()
                except CdcwatchError as error:
                    failures += 1
                    if not self._last_error:
                        _log.warning("the sweep can't look: %s", error, extra=told_of(error))
                    self._fail(str(error), failures)
                except Exception as error:  # noqa: BLE001 - see below
                    # A mistake of ours must not end the thread: its share would be left, and nobody would know.
                    failures += 1
                    log_mistake(_log, "the sweep can't look", error)
                    self._fail("the sweep can't look: see the log", failures)
                else:
                    failures = 0
                    self._last_error = ""
                    self._stopping.wait(self._tick_s)
        finally:
            self.leave()

    def _fail(self, error: str, failures: int) -> None:
        self._last_error = error
        self._is_in = False
        self._disconnect()
        self._stopping.wait(RECONNECT.delay_us(failures, random.random()) / 1_000_000)  # noqa: S311 - jitter, no secret

    def leave(self) -> None:
        """Takes its leave of the others, and lets the connections go."""
        self._report()
        if self._register is not None:
            try:
                self._register.withdraw()
            except CdcwatchError:
                _log.debug("the others will miss this instance's signs of life")
        self._disconnect()

    def _disconnect(self) -> None:
        self._scan.disconnect()
        if self._register is not None:
            self._register.disconnect()

    # -- a look ------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """A sign of life, and a look where it is time for one. For the thread, and for tests."""
        self._beat()
        if self._is_in and self._clock.monotonic_us() >= self._look_at_us and self._agenda.facts().now_us is not None:
            self._look_at_us = self._clock.monotonic_us() + self._interval_us
            self._look()
            self._looked_us = self._clock.monotonic_us()
        self._report()

    def finish(self) -> int:
        """Looks until it finds no more, all of it closed or refused; how many are overdue and stay so.

        UnavailableError when the database is away. For a process that does nothing else; the workers must run.
        """
        self._is_in = self._finishes = True
        try:
            while self._goes_on():
                if self._agenda.facts().now_us is not None and not self._look():
                    break
                while self._agenda.found_but(HELD_US)[0] and self._goes_on():
                    self._stopping.wait(_POLL_S)
                self._stopping.wait(_POLL_S)
        finally:
            self.leave()
        return sum(self._agenda.found_but(HELD_US))

    def _look(self) -> int:
        """All that is overdue, from the oldest on; how many of it were nobody's until now."""
        self._scan.connect()
        taken = 0
        fresh_us, fresh_at_us = self._due_until_us(), self._clock.monotonic_us() + self._interval_us
        for page in self._pages(None):
            taken += self._take(page)
            if not self._goes_on():
                return taken
            if self._interval_us and self._clock.monotonic_us() >= fresh_at_us:
                # A backlog must not keep what becomes due meanwhile waiting for its end.
                since_us, fresh_us = fresh_us, self._due_until_us()
                fresh_at_us = self._clock.monotonic_us() + self._interval_us
                for newer in self._pages(since_us):
                    taken += self._take(newer)
                    if not self._goes_on():
                        return taken
        self.has_looked = True
        self._observer.looked()
        if self._interval_us > RECONNECT.longest_us:
            self._scan.disconnect()  # an idle connection is one that breaks unseen
        return taken

    def _due_until_us(self) -> int:
        now_us = self._agenda.facts().now_us
        return (0 if now_us is None else now_us) - self._grace_us

    def _pages(self, since_us: int | None) -> Iterator[list[Overdue]]:
        """Pages without what the one before had. Each begins at the last deadline seen: more may be due then."""
        mark_us: int | None = None
        seen: set[Key] = set()
        while True:
            limit = self._batch_rows + len(seen)
            orders, is_last = self._scan.overdue(
                mark_us=mark_us,
                since_us=None if mark_us is not None else since_us,
                grace_us=self._grace_us,
                limit=limit,
            )
            yield [one for one in orders if one.mark_us != mark_us or one.due.key not in seen]
            if is_last or not orders:
                return
            mark_us = orders[-1].mark_us
            there = [one.due for one in orders if one.mark_us == mark_us]
            # Without what was closed of it meanwhile: as long as what is others' or held up at that deadline.
            ours = [due for due in there if self._shard.has(due.key)]
            seen = {due.key for due in there}.difference(due.key for due in self._agenda.unknown(ours))

    def _take(self, page: Sequence[Overdue]) -> int:
        """Puts what is ours and in nobody's hands among the pending orders, in bites; how many that were."""
        self._looked_us = self._clock.monotonic_us()
        mine = [one.due for one in page if self._shard.has(one.due.key)]
        unknown = self._agenda.unknown(mine)
        if not unknown or not self._await_stream():
            return 0
        taken = 0
        for start in range(0, len(unknown), self._bite_rows):
            if not self._goes_on():
                break
            count = self._agenda.load_found(unknown[start : start + self._bite_rows])
            taken += count
            self._free_at_us = max(self._free_at_us, self._clock.monotonic_us()) + count * 1_000_000 // self._rows_per_s
            while self._goes_on() and (
                self._agenda.untried or (count and self._clock.monotonic_us() < self._free_at_us)
            ):
                self._stopping.wait(_POLL_S / 4)
            self._looked_us = self._clock.monotonic_us()
        return taken

    def _await_stream(self) -> bool:
        """Until the stream has told of all that the scan saw, or its grace is over. False: the look is over."""
        if self._has_told is None or self._register is None:
            return self._goes_on()
        self._register.connect()
        position, until_us = self._register.position(), self._clock.monotonic_us() + self._grace_us
        while not self._has_told(position) and self._clock.monotonic_us() < until_us and self._goes_on():
            self._stopping.wait(_POLL_S)
        self._stopping.wait(_POLL_S)  # what was read last is being put among the pending orders
        return self._goes_on()

    def _goes_on(self) -> bool:
        self._beat()
        return self._is_in and not self._stopping.is_set()

    # -- the others --------------------------------------------------------------------------------------------------

    def _beat_is_due(self) -> bool:
        now_us = self._clock.monotonic_us()
        if now_us < self._beat_at_us:
            return False
        self._beat_at_us = now_us + int(BEAT_S * 1_000_000)
        return True

    def _beat(self) -> None:
        """Now and then: whether we can do our share, a sign of life, and who else is there."""
        if not self._beat_is_due():
            return
        if self._finishes:
            self._scan.connect()
            self._scan.overdue(mark_us=None, since_us=None, grace_us=0, limit=1)  # an error where the server is away
            return
        is_able = self._may_sweep() and self._agenda.facts().behind_us < STUCK_US
        register = self._register
        if register is None:
            self._is_in = is_able
            return
        register.connect()
        if not is_able:
            self._is_in = False
            register.withdraw()
            return
        members = register.beat()
        shard = Shard(register.id, members)
        if shard.members != self._shard.members:
            if members:
                _log.info("the sweep is shared by %s", counted(len(members), "instance"))
            if self.has_looked:
                self._look_at_us = self._clock.monotonic_us()  # somebody's share has come to us
        self._shard, self._is_in = shard, True

    def _report(self) -> None:
        recovered = self._agenda.recovered
        count, self._reported = recovered - self._reported, recovered
        if not count:
            return
        self._observer.recovered(count)
        if self._has_told is None:
            _log.info("the sweep closed %s", counted(count, "overdue order"), extra={"count": count})
        else:
            _log.warning(
                "the sweep recovered %s: overdue, and not told by the stream in time; see docs/runbook.md, 'The sweep'",
                counted(count, "order"),
                extra={"count": count},
            )
