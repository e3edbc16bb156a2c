"""SIGTERM and SIGINT as a request to stop, as long as a consumer runs."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cdcwatch.signals import handler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@contextmanager
def stopping_at_signals(stop: Callable[[], None], *, wanted: bool) -> Iterator[None]:
    """Calls `stop` at either, and sets the handlers back afterwards. Only in the main thread."""
    if not wanted or threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in before:
        signal.signal(number, handler(stop))
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
