"""The worker threads: each lane is stepped by one of them at a time, again when it asks to be."""

from __future__ import annotations

import heapq
import logging
import threading
import time
from itertools import count
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdcwatch.consume.lane import Lane

_BROKEN_S = 5.0
_log = logging.getLogger(__name__)


class Crew:
    """`size` threads. They are daemons: a handler that never ends does not keep the process from ending."""

    def __init__(self, size: int) -> None:
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, Lane]] = []
        self._numbers = count()
        self._planned: dict[Lane, int] = {}
        """Lane -> the number of its entry that counts."""
        self._running: set[Lane] = set()
        self._offered: set[Lane] = set()
        """Had something new while they were running."""
        self._is_over = False
        self._threads = [
            threading.Thread(target=self._work, name=f"consume-{number}", daemon=True) for number in range(size)
        ]
        for thread in self._threads:
            thread.start()

    def offer(self, lane: Lane) -> None:
        """It has something new: stepped now, unless it waits for an attempt of its own."""
        with self._changed:
            if lane in self._running:
                self._offered.add(lane)
            elif lane not in self._planned:
                self._plan(lane, 0.0)

    def hurry(self, lane: Lane) -> None:
        """Stepped now, whatever it waits for: it was ended."""
        with self._changed:
            if lane in self._running:
                self._offered.add(lane)
            else:
                self._plan(lane, 0.0)

    def running(self) -> list[Lane]:
        """Those that a worker is at just now."""
        with self._changed:
            return list(self._running)

    def await_rest(self, lanes: Iterable[Lane], timeout_s: float) -> bool:
        """Whether none of these is running or planned within that time."""
        waited_for = set(lanes)
        with self._changed:
            return self._changed.wait_for(
                lambda: not waited_for & (self._running | self._planned.keys()), timeout=timeout_s
            )

    def dismiss(self) -> None:
        """The threads end as soon as what they are at does."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()

    def _plan(self, lane: Lane, in_s: float) -> None:
        number = self._planned[lane] = next(self._numbers)
        heapq.heappush(self._due, (time.monotonic() + in_s, number, lane))
        self._changed.notify()

    def _next(self) -> Lane | None:
        with self._changed:
            while not self._is_over:
                while self._due and self._planned.get(self._due[0][2]) != self._due[0][1]:
                    heapq.heappop(self._due)  # planned anew since
                rest_s = self._due[0][0] - time.monotonic() if self._due else None
                if rest_s is not None and rest_s <= 0:
                    lane = heapq.heappop(self._due)[2]
                    del self._planned[lane]
                    self._running.add(lane)
                    return lane
                self._changed.wait(rest_s)
        return None

    def _work(self) -> None:
        while (lane := self._next()) is not None:
            wait_s: float | None = _BROKEN_S
            try:
                wait_s = lane.step()
            except Exception:  # noqa: BLE001  a mistake of ours must not end the thread, and every lane with it
                _log.exception("a step of %s/%d failed; again in %g s", lane.topic, lane.partition, _BROKEN_S)
            with self._changed:
                self._running.discard(lane)
                is_new = lane in self._offered
                self._offered.discard(lane)
                if is_new and (wait_s is None or lane.is_ended()):
                    wait_s = 0.0
                if wait_s is not None:
                    self._plan(lane, wait_s)
                self._changed.notify_all()
