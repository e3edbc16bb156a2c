"""SIGTERM and SIGINT as a request to stop, as long as a consumer runs."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cdcwatch.signals import call_aside

if TYPE_CHECKING:
    from collections.abc import Iterator


class Stopping(threading.Event):
    """Whether to stop. A handler of a signal sets it without its lock, and it is seen at once all the same."""

    def __init__(self) -> None:
        super().__init__()
        self._is_told = False

    def is_set(self) -> bool:
        """From the moment on in which the handler runs."""
        return self._is_told or super().is_set()

    def tell(self, *_: object) -> None:
        """From a signal's handler, or as one. Who waits for it is woken from beside."""
        self._is_told = True
        call_aside(self.set)


@contextmanager
def stopping_at_signals(stopping: Stopping, *, wanted: bool) -> Iterator[None]:
    """Either sets it; the handlers are set back afterwards. Only in the main thread."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, stopping.tell)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
