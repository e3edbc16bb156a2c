"""What a signal's handler may do, and how long the main thread may wait.

Python runs handlers in the main thread, between two of its steps: whatever lock it has just taken, it has. And a signal
that comes right before a wait begins is seen when the wait is over, not before.
https://docs.python.org/3/library/signal.html#execution-of-python-signal-handlers
"""

from __future__ import annotations

import _thread
from contextlib import suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

LONGEST_WAIT_S: Final = 0.5
"""Of the main thread, in one go."""


def call_aside(call: Callable[[], object]) -> None:
    """From a handler: `call` may take locks, so it runs beside the main thread, which may have them.

    `threading` has locks of its own that the main thread may have: hence a bare thread.
    """
    with suppress(RuntimeError):  # at the interpreter's end there are no new threads, and nothing to stop
        _thread.start_new_thread(call, ())


def handler(call: Callable[[], object]) -> Callable[[int, FrameType | None], None]:
    """A handler that calls it so."""
    return lambda _number, _frame: call_aside(call)
