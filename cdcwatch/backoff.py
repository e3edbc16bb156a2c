"""Waits between attempts: exponential, with full jitter, so that many processes don't come back in step."""

from __future__ import annotations

import random


class Backoff:
    """Ask `next_s` for the wait before the next attempt, `reset` after a success."""

    def __init__(self, *, first_s: float = 0.1, most_s: float = 5.0) -> None:
        self._first_s, self._most_s = first_s, most_s
        self._attempts = 0

    def next_s(self) -> float:
        """Between half and all of the first wait, doubled with every attempt up to the most."""
        ceiling_s = min(self._most_s, self._first_s * 2.0**self._attempts)
        self._attempts = min(self._attempts + 1, 32)
        return ceiling_s * random.uniform(0.5, 1.0)  # noqa: S311

    def reset(self) -> None:
        """The last attempt succeeded."""
        self._attempts = 0
