"""SIGTERM from the first moment on: before there is a service to stop, while it is made, and while it begins anew."""

from __future__ import annotations

import os
import signal
import threading
from typing import TYPE_CHECKING

import pytest

from cdcwatch.cli import run, sweep
from cdcwatch.cli.ending import Ending, ending_by_signal
from cdcwatch.pipeline.beginning import StartOverError
from tests.command import cdcwatch, write_configuration

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NUMBERS = (signal.SIGTERM, signal.SIGINT)


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """What is there before a test is there after it."""
    before = {number: signal.getsignal(number) for number in NUMBERS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Made:
    """A service whose making takes a while, in which the signal comes; it runs until it is stopped."""

    def __init__(self, *_: object, **__: object) -> None:
        self._ended = threading.Event()
        self.closed = self.left = 0
        os.kill(os.getpid(), signal.SIGTERM)

    def stop(self) -> None:
        self._ended.set()

    def run(self) -> None:
        assert self._ended.wait(30), "nobody told it to stop"


PLACES = {
    ("run",): "cdcwatch.pipeline.service.Service",
    ("run", "--role", "read"): "cdcwatch.pipeline.service.Service",
    ("run", "--role", "close"): "cdcwatch.pipeline.worker.Worker",
    ("run", "--role", "sweep"): "cdcwatch.pipeline.sweeper.Sweeper",
    ("sweep",): "cdcwatch.pipeline.sweeper.Sweeper",
    ("sweep", "--once"): "cdcwatch.pipeline.sweeper.Sweeper",
}


@pytest.mark.parametrize(
    ("command", "when"),
    [
        (command, when)
        for command in PLACES
        for when in ("before it is made", "while it is made")
        if (command, when) != (("sweep", "--once"), "before it is made")  # the command makes it, and tells what it did
    ],
)
def test_sigterm_at_the_start_ends_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], when: str
) -> None:
    monkeypatch.setattr(PLACES[command], Made)
    monkeypatch.setattr("cdcwatch.log.configure_log", lambda *_, **__: None)
    if when == "before it is made":
        monkeypatch.setattr(Made, "__init__", lambda *_, **__: pytest.fail("made after all"))
        module = sweep if command[0] == "sweep" else run
        read = module.settings_of

        def slowly(*arguments: object) -> object:
            os.kill(os.getpid(), signal.SIGTERM)
            return read(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(module, "settings_of", slowly)
    assert cdcwatch(*command, "-c", write_configuration(tmp_path / "shop.toml", "")).code == 0


def test_sigterm_while_it_begins_anew_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cdcwatch.log.configure_log", lambda *_, **__: None)

    class Changed:
        def stop(self) -> None:
            pass

        def run(self) -> None:
            raise StartOverError("the table has changed")

    each = iter([Changed, Made])

    def made() -> Changed | Made:
        return next(each)()

    with ending_by_signal() as ending:
        run.serve(made, ending, log_format="text", debug=False)
    assert ending.is_asked_for


def test_an_error_brings_back_what_signals_meant() -> None:
    before = [signal.getsignal(number) for number in NUMBERS]
    during = []

    def refuse() -> None:
        with ending_by_signal():
            during.extend(signal.getsignal(number) for number in NUMBERS)
            raise ValueError("refused")

    with pytest.raises(ValueError, match="refused"):
        refuse()
    assert all(one not in before for one in during)
    assert [signal.getsignal(number) for number in NUMBERS] == before


def test_a_signal_in_the_middle_of_a_wait_ends_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler runs in the main thread: what that has locked just then must not be waited for."""
    monkeypatch.setattr("cdcwatch.log.configure_log", lambda *_, **__: None)
    lock, stopped = threading.Lock(), threading.Event()

    class Waiting:
        def stop(self) -> None:
            if lock.acquire(timeout=20 if threading.current_thread() is not threading.main_thread() else 0):
                stopped.set()

        def run(self) -> None:
            with lock:
                os.kill(os.getpid(), signal.SIGTERM)
            assert stopped.wait(20), "nobody told it to stop"

    with ending_by_signal() as ending:
        run.serve(Waiting, ending, log_format="text", debug=False)
    assert ending.is_asked_for


def test_the_second_signal_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    ending = Ending()
    ending.on_signal()
    assert not codes
    ending.on_signal()
    assert codes == [4]
