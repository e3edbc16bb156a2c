"""What SIGTERM and SIGINT mean to a service, from before it is made until the process ends."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType
from typing import Final, Protocol

from cdcwatch.signals import call_aside, handler

NOT_DURABLE_EXIT: Final = 4


class Stoppable(Protocol):
    """As of `Service`, `Worker` and `Sweeper`."""

    def stop(self) -> None:
        """Ends in order. More than once does no harm."""


class Ending:
    """Whether the process is to end, and what is told of it."""

    def __init__(self) -> None:
        self._service: Stoppable | None = None
        self._asked = 0

    @property
    def is_asked_for(self) -> bool:
        """Whether a signal came."""
        return self._asked > 0

    def stops(self, service: Stoppable) -> None:
        """This is what runs from now on. What was asked for before it was there reaches it too."""
        self._service = service
        if self._asked:
            service.stop()

    def on_signal(self, _signal: int = 0, _frame: FrameType | None = None) -> None:
        """The first ends in order, the second at once."""
        self._asked += 1
        if self._asked > 1:
            # Nothing more is confirmed: whatever is not durable is read again at the next start.
            os._exit(NOT_DURABLE_EXIT)
        if self._service is not None:
            call_aside(self._service.stop)


@contextmanager
def ending_by_signal() -> Iterator[Ending]:
    """Installs it, first of all: imports and connections take seconds on a busy machine.

    It stays until the process ends, which takes a moment too; only an error brings back what was there before.
    """
    ending = Ending()
    before = {number: signal.signal(number, ending.on_signal) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ending
    except BaseException:
        for number, handler in before.items():
            signal.signal(number, handler)
        raise


@contextmanager
def set_by_signals() -> Iterator[Event]:
    """For a look that goes on: either sets the event inside, and is what it was afterwards."""
    ended = Event()
    before = {number: signal.signal(number, handler(ended.set)) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield ended
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)
