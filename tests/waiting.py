"""Waiting for something to become true, instead of for time to pass."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout_s: float, what: str, *, every_s: float = 0.01) -> T:
    """The first true value of `predicate`; AssertionError naming `what` when there is none within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what} (last: {value!r})")
        time.sleep(every_s)
    return value
