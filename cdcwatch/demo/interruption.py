"""Ctrl-C at any moment: a flag for those who look at it, an end for the children of those who can't."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, Self

from cdcwatch.errors import NotDurableError
from cdcwatch.local.process import children_of
from cdcwatch.signals import call_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_S: Final = 0.05
_PATIENCE_S: Final = 3.0


class Interruption:
    """SIGINT, SIGTERM and SIGHUP while it is entered; by the main thread only.

    Signals raise nothing: an exception between a fork and the line that remembers the child would leave it running.
    """

    def __init__(self) -> None:
        self._told = threading.Event()
        self._over = threading.Event()
        self._count = 0
        self._starting = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        threading.Thread(target=self._watch, name="demo-interruption", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @property
    def came(self) -> bool:
        """Whether a signal came."""
        return self._told.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Whether a signal came, within `timeout_s`."""
        return self._told.wait(timeout_s)

    def check(self) -> None:
        """NotDurableError once a signal came."""
        if self.came:
            raise interrupted()

    @contextmanager
    def starting(self) -> Iterator[None]:
        """While something is started that waits for its child and can't look at the flag: a signal ends the child.

        Whatever that waiting then raises is told as the interruption it is.
        """
        self._starting = True
        try:
            yield
            self.check()
        except Exception:
            if self.came:
                raise interrupted() from None
            raise
        finally:
            self._starting = False

    def _on_signal(self, *_: object) -> None:
        self._count += 1
        call_aside(self._told.set)

    def _watch(self) -> None:
        self._told.wait()
        # The second signal is from somebody to whom the orderly end takes too long.
        end_children(until=self._over.is_set, only_if=lambda: self._starting or self._count > 1)


def interrupted() -> NotDurableError:
    """What an interruption before the end is told as."""
    return NotDurableError("interrupted before the end; nothing was compared", remedy="run it again")


def end_children(until: Callable[[], bool], *, only_if: Callable[[], bool] = lambda: True) -> None:
    """SIGINT to each child of this process, old and new, then SIGKILL to it and its children; until `until` holds."""
    told_s: dict[int, float] = {}
    while not until():
        for child in children_of(os.getpid()) if only_if() else ():
            if child not in told_s:
                told_s[child] = time.monotonic()
                _send(child, signal.SIGINT)
            elif time.monotonic() > told_s[child] + _PATIENCE_S:
                for pid in (*children_of(child), child):
                    _send(pid, signal.SIGKILL)
        time.sleep(_LOOK_S)


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
