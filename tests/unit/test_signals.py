"""Signals are heard at once: whatever lock the main thread has, and whenever they come."""

from __future__ import annotations

import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

from cdcwatch.consume.signals import Stopping
from cdcwatch.pipeline.service import Service
from cdcwatch.pipeline.sweeper import Sweeper

IN_THE_MIDDLE_OF_A_WAIT = """
import signal, threading
from cdcwatch.signals import handler
ended = threading.Event()
signal.signal(signal.SIGUSR1, handler(ended.set))
with ended._cond:  # as Event.wait has it before and after it sleeps
    signal.raise_signal(signal.SIGUSR1)
print(ended.wait(20))
"""


class Waits(threading.Event):
    """Notes for how long it was waited for; set the tenth time."""

    def __init__(self) -> None:
        super().__init__()
        self.longest_s, self.count = 0.0, 0

    def wait(self, timeout: float | None = None) -> bool:
        self.longest_s = max(self.longest_s, float("inf") if timeout is None else timeout)
        self.count += 1
        return self.count == 10


def made(kind: type, **parts: Any) -> Any:
    """One of which only its main thread's loop is looked at."""
    one = kind.__new__(kind)
    vars(one).update(parts)
    return one


def test_a_handler_waits_for_no_lock_that_the_main_thread_has() -> None:
    ended = subprocess.run([sys.executable, "-c", IN_THE_MIDDLE_OF_A_WAIT], capture_output=True, timeout=60, check=True)
    assert ended.stdout == b"True\n"


def test_a_consumer_that_is_told_by_a_handler_sees_it_at_once() -> None:
    """Before the thread that wakes those who wait has had its turn: else another round would begin."""
    stopping = Stopping()
    with stopping._cond:  # nobody can set it yet
        stopping.tell()
        assert stopping.is_set()
        assert not threading.Event.is_set(stopping)
    assert stopping.wait(20)


def test_the_main_thread_never_waits_for_long_in_one_go() -> None:
    """A signal right before a wait is only seen after it: an hour of waiting would be a SIGTERM that was lost."""
    service, sweeper = Waits(), Waits()
    ready = SimpleNamespace(readiness=lambda: {"ready": True})
    made(Service, _ended=service, _health=ready, _announce_ready=lambda: None)._announce_once_ready()
    made(Sweeper, _ended=sweeper, readiness=ready.readiness, _announce_ready=lambda: None, _onlookers=())._watch(())
    assert (service.count, sweeper.count) == (10, 10)
    assert max(service.longest_s, sweeper.longest_s) <= 0.5
