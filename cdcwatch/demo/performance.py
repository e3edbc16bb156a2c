"""A demo from the first directory to the last comparison."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from msgspec import Struct

from cdcwatch.demo.figures import Figures, Lateness, SlotPlace, Waiting
from cdcwatch.demo.interruption import Interruption, interrupted
from cdcwatch.demo.stands import ONE, RESERVATIONS
from cdcwatch.demo.summary import Summaries, Summary
from cdcwatch.demo.tally import Comparison, ShopCounts, Tally, TopicCounts
from cdcwatch.demo.topic import TopicReader
from cdcwatch.demo.traffic import Traffic
from cdcwatch.demo.world import World
from cdcwatch.errors import CdcwatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from cdcwatch.demo.stands import Stand
    from cdcwatch.settings import Settings

    View = Callable[[World], AbstractContextManager["Picture"]]

_FRAME_S: Final = 0.25
_LOOK_S: Final = 0.1
_CLOSE_TIMEOUT_S: Final = 60.0
_CONFIRM_TIMEOUT_S: Final = 30.0
_TOPIC_TIMEOUT_S: Final = 30.0
_RECENT_S: Final = 20
"""How far back the picture's lateness looks, in orders of so many seconds."""
_LATENESS_EVERY_S: Final = 1.0
"""It sorts thousands of rows: not for every frame."""
_LEAVE_TIMEOUT_S: Final = 3.0


class Wish(Struct, frozen=True):
    """What is asked for."""

    duration_s: float | None
    """None: until it is interrupted."""
    rate: float
    keep: bool
    plugin: str | None = None
    """wal2json or pgoutput; None: the first of them that the server has."""
    stands: tuple[Stand, ...] = ONE


class Frame(Struct, frozen=True):
    """What there is to see at one moment. The counts are the living ones."""

    elapsed_s: float
    doing: str
    shop: ShopCounts
    topic: TopicCounts
    waiting: Waiting
    lateness: Lateness
    slot: SlotPlace
    last_events: list[dict[str, Any]]


class Picture(Protocol):
    """Where frames are shown."""

    def show(self, frame: Frame) -> None:
        """One frame."""
        ...


def perform(wish: Wish, *, tell: Callable[[str], None], view: View | None) -> Summary | Summaries:
    """The whole demo; without a view nobody watches. NotDurableError when it was interrupted before its end.

    Whatever happens, nothing of it runs afterwards.
    """
    with Interruption() as interruption, _directory(keep=wish.keep, tell=tell) as directory:
        world = World(directory, tell, wish.plugin, wish.stands)
        try:
            with interruption.starting():
                world.start(interruption)
            with ExitStack() as stack:
                return _Performance(world, wish, interruption, stack).run(view)
        finally:
            world.close()


class _Stall:
    """A stand at work: its traffic, its topic's reader, and the books of both."""

    def __init__(self, world: World, settings: Settings, stand: Stand, rate: float, stack: ExitStack) -> None:
        self.stand = stand
        self.tally = Tally(stand.closed)
        self.figures = stack.enter_context(Figures(world.dsn, settings.slot.name, stand))
        self.topic = TopicReader(settings.for_events(), self.tally)
        stack.callback(self.topic.stop)
        self.traffic = Traffic(world.dsn, self.tally, rate, stand)
        stack.callback(self.traffic.stop)
        self._rate, self._lateness, self._lateness_s = rate, Lateness(), 0.0

    def start(self) -> None:
        self.topic.start()
        self.traffic.start()

    def require_working(self) -> None:
        """CdcwatchError when something that should run doesn't."""
        self.traffic.require_open()
        self.topic.require_reading()

    def lateness(self, now_s: float) -> Lateness:
        """Of late, asked for now and then."""
        if now_s > self._lateness_s + _LATENESS_EVERY_S:
            first_id = max(0, self.tally.last_id - int(self._rate * _RECENT_S))
            self._lateness, self._lateness_s = self.figures.lateness(first_id), now_s
        return self._lateness

    def compared(self) -> tuple[list[Comparison], list[str]]:
        compared, problems = self.tally.compare(self.figures.rows())
        if self.stand == RESERVATIONS:
            ledger, held = self.figures.seats_taken()
            compared.append(Comparison("seats taken: by the reservations and by the seats", held, ledger))
        return compared, problems

    def summary(
        self, traffic_s: float, comparisons: tuple[Comparison, ...] = (), problems: tuple[str, ...] = ()
    ) -> Summary:
        return Summary(
            traffic_s,
            self.figures.status_counts(),
            self.figures.waiting(),
            self.figures.lateness(),
            self.tally.shop,
            self.tally.topic,
            self.figures.slot().confirmed_flush_lsn,
            self.tally.last_commit_lsn,
            comparisons,
            problems,
        )


class _Performance:
    """The part in which everything runs."""

    def __init__(self, world: World, wish: Wish, interruption: Interruption, stack: ExitStack) -> None:
        self._world, self._wish, self._interruption = world, wish, interruption
        self._stalls = [
            _Stall(world, one, stand, wish.rate / len(wish.stands), stack)
            for one, stand in zip(world.settings().each(), wish.stands, strict=True)
        ]
        self._figures = self._stalls[0].figures
        self._started_s = time.monotonic()
        self._traffic_s = 0.0

    def run(self, view: View | None) -> Summary | Summaries:
        for stall in self._stalls:
            stall.start()
        with view(self._world) if view is not None else nullcontext() as picture:
            self._watch(picture)
            for stall in self._stalls:
                stall.traffic.stop()
            self._traffic_s = time.monotonic() - self._started_s
            if self._interruption.came:
                if self._wish.duration_s is not None:
                    raise interrupted()
                return self._left()
            return self._compared(picture)

    def _watch(self, picture: Picture | None) -> None:
        duration_s = self._wish.duration_s
        end_s = None if duration_s is None else self._started_s + duration_s
        while not self._interruption.came and (end_s is None or time.monotonic() < end_s):
            self._show(picture, "open")
            rest_s = _FRAME_S if end_s is None else min(_FRAME_S, end_s - time.monotonic())
            self._interruption.wait(max(0.0, rest_s))

    def _show(self, picture: Picture | None, doing: str) -> None:
        """The picture as it is now, of all stands together. CdcwatchError when something that should run doesn't."""
        self._world.require_service()
        for stall in self._stalls:
            stall.require_working()
        if picture is None:
            return
        now_s = time.monotonic()
        events = [event for stall in self._stalls for event in stall.topic.last_events]
        picture.show(
            Frame(
                now_s - self._started_s,
                doing,
                ShopCounts.total([stall.tally.shop for stall in self._stalls]),
                TopicCounts.total([stall.tally.topic for stall in self._stalls]),
                Waiting.total([stall.figures.waiting() for stall in self._stalls]),
                Lateness.worst([stall.lateness(now_s) for stall in self._stalls]),
                self._figures.slot(),
                sorted(events, key=lambda event: str(event["time"])),
            )
        )

    # -- the end -----------------------------------------------------------------------------------------------------

    def _compared(self, picture: Picture | None) -> Summary | Summaries:
        """Lets everything due be closed, stops the service, reads the topics to their ends, compares."""

        def nothing_soon() -> bool:
            self._show(picture, "closed; the last orders expire")
            return not any(stall.figures.waiting().soon_rows for stall in self._stalls)

        self._until(nothing_soon, timeout_s=_CLOSE_TIMEOUT_S)
        wal_end_lsn = self._figures.wal_end_lsn()
        self._until(lambda: self._figures.slot().confirmed_flush_lsn >= wal_end_lsn, timeout_s=_CONFIRM_TIMEOUT_S)
        exit_code = self._world.stop_service()
        self._interruption.check()
        return self._of_all(lambda stall: self._judged(stall, wal_end_lsn, exit_code))

    def _judged(self, stall: _Stall, wal_end_lsn: int, exit_code: int | None) -> Summary:
        is_read = stall.topic.read_to_end(_TOPIC_TIMEOUT_S)
        compared, problems = stall.compared()
        summary = stall.summary(self._traffic_s)
        missing_bytes = max(0, wal_end_lsn - summary.confirmed_flush_lsn)
        return stall.summary(
            self._traffic_s,
            (
                Comparison("cdcwatch run's exit code after SIGTERM", 0, exit_code),
                Comparison("bytes of WAL up to the last close that are not confirmed", 0, missing_bytes),
                Comparison("the topic was read to its end", expected=True, found=is_read),
                Comparison("orders overdue", 0, summary.waiting.overdue_rows),
                Comparison("orders closed before their deadline", 0, summary.lateness.early_rows),
                *compared,
            ),
            tuple(problems),
        )

    def _left(self) -> Summary | Summaries:
        """Somebody has seen enough: what was counted so far, without waiting for the last orders."""
        self._world.stop_service(_LEAVE_TIMEOUT_S)
        for stall in self._stalls:
            stall.topic.read_to_end(_LEAVE_TIMEOUT_S)
        return self._of_all(lambda stall: stall.summary(self._traffic_s))

    def _of_all(self, summed_up: Callable[[_Stall], Summary]) -> Summary | Summaries:
        if len(self._stalls) == 1:
            return summed_up(self._stalls[0])
        return Summaries({stall.stand.table: summed_up(stall) for stall in self._stalls})

    def _until(self, holds: Callable[[], bool], *, timeout_s: float) -> None:
        """Waits; out of time, the comparison says what it came to."""
        give_up_s = time.monotonic() + timeout_s
        while not holds() and time.monotonic() < give_up_s:
            self._interruption.wait(_LOOK_S)
            self._interruption.check()


@contextmanager
def _directory(*, keep: bool, tell: Callable[[str], None]) -> Iterator[Path]:
    """A directory of this demo alone; removed afterwards unless something in it is still wanted."""
    directory = Path(tempfile.mkdtemp(prefix="cdcwatch-demo-"))
    directory.chmod(0o755)  # PostgreSQL's own user must be able to enter it
    try:
        yield directory
    except CdcwatchError as error:
        keep = keep or str(directory) in error.remedy
        raise
    finally:
        if keep:
            tell(f"kept {directory}")
        else:
            shutil.rmtree(directory, ignore_errors=True)
