"""A demo from the first directory to the last comparison."""

from __future__ import annotations

import shutil
import tempfile
import time
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from cdcwatch.demo.figures import Figures, Lateness, SlotPlace, Waiting
from cdcwatch.demo.interruption import Interruption, interrupted
from cdcwatch.demo.summary import Summary
from cdcwatch.demo.tally import Comparison, ShopCounts, Tally, TopicCounts
from cdcwatch.demo.topic import TopicReader
from cdcwatch.demo.traffic import Traffic
from cdcwatch.demo.world import World
from cdcwatch.errors import CdcwatchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

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


@dataclass(frozen=True, slots=True)
class Wish:
    """What is asked for."""

    duration_s: float | None
    """None: until it is interrupted."""
    rate: float
    keep: bool
    plugin: str | None = None
    """wal2json or pgoutput; None: the first of them that the server has."""


@dataclass(frozen=True, slots=True)
class Frame:
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


def perform(wish: Wish, *, tell: Callable[[str], None], view: View | None) -> Summary:
    """The whole demo; without a view nobody watches. NotDurableError when it was interrupted before its end.

    Whatever happens, nothing of it runs afterwards.
    """
    with Interruption() as interruption, _directory(keep=wish.keep, tell=tell) as directory:
        world = World(directory, tell, wish.plugin)
        try:
            with interruption.starting():
                world.start(interruption)
            with ExitStack() as stack:
                return _Performance(world, wish, interruption, stack).run(view)
        finally:
            world.close()


class _Performance:
    """The part in which everything runs."""

    def __init__(self, world: World, wish: Wish, interruption: Interruption, stack: ExitStack) -> None:
        settings = world.settings()
        self._world, self._wish, self._interruption = world, wish, interruption
        self._tally = Tally()
        self._figures = stack.enter_context(Figures(world.dsn, settings.slot.name))
        self._topic = TopicReader(settings.kafka, self._tally)
        stack.callback(self._topic.stop)
        self._traffic = Traffic(world.dsn, self._tally, wish.rate)
        stack.callback(self._traffic.stop)
        self._started_s = time.monotonic()
        self._traffic_s = 0.0
        self._lateness, self._lateness_s = Lateness(), 0.0

    def run(self, view: View | None) -> Summary:
        self._topic.start()
        self._traffic.start()
        with view(self._world) if view is not None else nullcontext() as picture:
            self._watch(picture)
            self._traffic.stop()
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
        """The picture as it is now. CdcwatchError when something that should run doesn't."""
        self._world.require_service()
        self._traffic.require_open()
        self._topic.require_reading()
        if picture is None:
            return
        now_s = time.monotonic()
        if now_s > self._lateness_s + _LATENESS_EVERY_S:
            first_id = max(0, self._tally.last_id - int(self._wish.rate * _RECENT_S))
            self._lateness, self._lateness_s = self._figures.lateness(first_id), now_s
        picture.show(
            Frame(
                now_s - self._started_s,
                doing,
                self._tally.shop,
                self._tally.topic,
                self._figures.waiting(),
                self._lateness,
                self._figures.slot(),
                self._topic.last_events,
            )
        )

    # -- the end -----------------------------------------------------------------------------------------------------

    def _compared(self, picture: Picture | None) -> Summary:
        """Lets everything due be closed, stops the service, reads the topic to its end, compares."""

        def nothing_soon() -> bool:
            self._show(picture, "closed; the last orders expire")
            return not self._figures.waiting().soon_rows

        self._until(nothing_soon, timeout_s=_CLOSE_TIMEOUT_S)
        wal_end_lsn = self._figures.wal_end_lsn()
        self._until(lambda: self._figures.slot().confirmed_flush_lsn >= wal_end_lsn, timeout_s=_CONFIRM_TIMEOUT_S)
        exit_code = self._world.stop_service()
        self._interruption.check()
        is_read = self._topic.read_to_end(_TOPIC_TIMEOUT_S)
        compared, problems = self._tally.compare(self._figures.rows())
        summary = self._summary()
        missing_bytes = max(0, wal_end_lsn - summary.confirmed_flush_lsn)
        return self._summary(
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

    def _left(self) -> Summary:
        """Somebody has seen enough: what was counted so far, without waiting for the last orders."""
        self._world.stop_service(_LEAVE_TIMEOUT_S)
        self._topic.read_to_end(_LEAVE_TIMEOUT_S)
        return self._summary()

    def _until(self, holds: Callable[[], bool], *, timeout_s: float) -> None:
        """Waits; out of time, the comparison says what it came to."""
        give_up_s = time.monotonic() + timeout_s
        while not holds() and time.monotonic() < give_up_s:
            self._interruption.wait(_LOOK_S)
            self._interruption.check()

    def _summary(self, comparisons: tuple[Comparison, ...] = (), problems: tuple[str, ...] = ()) -> Summary:
        return Summary(
            self._traffic_s,
            self._figures.status_counts(),
            self._figures.waiting(),
            self._figures.lateness(),
            self._tally.shop,
            self._tally.topic,
            self._figures.slot().confirmed_flush_lsn,
            self._tally.last_commit_lsn,
            comparisons,
            problems,
        )


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
