"""Programs as processes: what they took, and services that run until told to end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_STOP_TIMEOUT_S = 45
_SHOWN_CHARACTERS = 1500
_LOOK_EVERY_S = 0.05


class Failure(Exception):  # noqa: N818 - what it is called in the results
    """A run that says nothing; the text says why."""


class Ended(NamedTuple):
    """A process from its start to its exit."""

    status: int
    wall_s: float
    cpu_s: float
    peak_rss_mb: float
    complaint: str
    """The end of its standard error."""


def run_to_end(command: Sequence[str | Path], *, limit_s: float) -> Ended:
    """Runs it, by force no longer than `limit_s`; user and system time as the kernel counted them."""
    with tempfile.TemporaryFile() as errors:
        began_s = time.monotonic()
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=environment()
        )
        watch = _Watch(child, limit_s)
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.monotonic() - began_s
        child.returncode = os.waitstatus_to_exitcode(status)
        watch.end()
        errors.seek(0)
        complaint = errors.read().decode(errors="replace")[-_SHOWN_CHARACTERS:]
    return Ended(child.returncode, wall_s, usage.ru_utime + usage.ru_stime, watch.peak_rss_mb, complaint)


class _Watch(threading.Thread):
    """Looks at a process's peak memory, and ends it at the limit.

    The kernel's own figure for an ended child begins with what we had ourselves when it was forked.
    """

    def __init__(self, child: subprocess.Popen[bytes], limit_s: float) -> None:
        super().__init__(daemon=True)
        self._child, self._limit_s = child, limit_s
        self._ended = threading.Event()
        self.peak_rss_mb = 0.0
        self.start()

    def run(self) -> None:
        give_up_s = time.monotonic() + self._limit_s
        while not self._ended.wait(_LOOK_EVERY_S):
            with contextlib.suppress(OSError):
                self.peak_rss_mb = max(self.peak_rss_mb, peak_rss_mb(self._child.pid))
            if time.monotonic() > give_up_s:
                self._child.kill()

    def end(self) -> None:
        self._ended.set()
        self.join()


class Service:
    """A running program that has said READY."""

    def __init__(self, child: subprocess.Popen[bytes], errors: Path) -> None:
        self._child, self._errors = child, errors

    @property
    def cpu_s(self) -> float:
        """So far."""
        return process_cpu_s(self._child.pid)

    @property
    def peak_rss_mb(self) -> float:
        """So far."""
        return peak_rss_mb(self._child.pid)

    @property
    def rss_mb(self) -> float:
        """Now."""
        return status_mb(self._child.pid, "VmRSS")

    def require_running(self) -> None:
        """Failure when it has ended."""
        if self._child.poll() is not None:
            raise Failure(f"ended with status {self._child.returncode}: {self.complaint}")

    @property
    def complaint(self) -> str:
        """The end of its standard error."""
        return self._errors.read_text(errors="replace")[-_SHOWN_CHARACTERS:]

    def await_ready(self, timeout_s: float) -> None:
        """Until it prints a line READY."""
        output = self._child.stdout
        if output is None or not select.select([output], [], [], timeout_s)[0] or output.readline() != b"READY\n":
            raise Failure(f"not ready within {timeout_s:g} s: {self.complaint}")

    def lines(self) -> Iterator[str]:
        """What it prints after READY, line by line, until it ends."""
        for line in self._child.stdout or ():
            yield line.decode()

    def stop(self) -> None:
        """SIGTERM; Failure unless it ends with status 0 in time."""
        self._child.send_signal(signal.SIGTERM)
        try:
            status = self._child.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise Failure(f"did not end within {_STOP_TIMEOUT_S} s of SIGTERM: {self.complaint}") from None
        if status:
            raise Failure(f"ended with status {status}: {self.complaint}")


@contextlib.contextmanager
def service(command: Sequence[str | Path], *, ready_s: float = 30) -> Iterator[Service]:
    """Starts it and waits until it is ready; killed at the end, unless it was stopped."""
    with tempfile.TemporaryDirectory(prefix="cdcwatch-bench-") as directory:
        errors = Path(directory, "stderr")
        with errors.open("wb") as file:
            child = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file, env=environment()
            )
        with child:
            running = Service(child, errors)
            try:
                running.await_ready(ready_s)
                yield running
            finally:
                child.kill()


def environment() -> dict[str, str]:
    """Ours without what would configure the program behind our back; compiled modules are kept, as in daily use."""
    dropped = ("CDCWATCH_", "PG", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if not name.startswith(dropped)}


def peak_rss_mb(pid: int) -> float:
    """Of a living process, so far."""
    return status_mb(pid, "VmHWM")


def status_mb(pid: int, field: str) -> float:
    """A field of /proc/PID/status that is in kB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next((int(line.split()[1]) for line in status.splitlines() if line.startswith(field)), 0) / 1024


def process_cpu_s(pid: int) -> float:
    """User and system time of one process, and of its children that have ended."""
    return sum(_stat(pid)[11:15]) / _TICKS_A_SECOND


def tree_cpu_s(pid: int) -> float:
    """The same with its living children: a PostgreSQL server, by its postmaster."""
    while True:
        own = _stat(pid)
        living_s = sum(_living_children_s(pid))
        if own[13:15] == _stat(pid)[13:15]:  # else a child has ended in between, and was counted twice or not at all
            return sum(own[11:15]) / _TICKS_A_SECOND + living_s


def _living_children_s(pid: int) -> Iterator[float]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = _stat(int(entry.name))
                if fields[1] == pid:
                    yield sum(fields[11:13]) / _TICKS_A_SECOND


def _stat(pid: int) -> list[int]:
    """The fields of /proc/PID/stat behind the command's name, numbers only: [1] is the parent, [11:15] the times."""
    text = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    return [int(field) if field.lstrip("-").isdigit() else 0 for field in text.split()]
