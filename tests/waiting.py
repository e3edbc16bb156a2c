"""Waiting for something to become true, instead of for time to pass."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# A wait that ends well costs nothing by being patient, and a busy machine is no failure.
PATIENCE = 4


def wait_until(predicate: Callable[[], T], timeout_s: float, what: str, *, every_s: float = 0.01) -> T:
    """The first true value of `predicate`; AssertionError naming `what` when there is none within PATIENCE x `timeout_s`."""
    timeout_s *= PATIENCE
    deadline = time.monotonic() + timeout_s
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what} (last: {value!r})")
        time.sleep(every_s)
    return value
