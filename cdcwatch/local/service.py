"""What the throwaway servers have in common: a process of ours with a directory, from its start to its end."""

from __future__ import annotations

import atexit
from abc import ABC, abstractmethod
from signal import SIGCONT, SIGTERM
from typing import TYPE_CHECKING, ClassVar

from cdcwatch.local.errors import LocalServiceError
from cdcwatch.local.process import last_line

if TYPE_CHECKING:
    from pathlib import Path
    from signal import Signals
    from types import TracebackType
    from typing import Self

    from cdcwatch.local.process import OwnedProcess

_CLOSE_TIMEOUT_S = 10


class LocalService(ABC):
    """A server on the loopback interface, whose data and log stand in one directory; the data there is used again.

    Not for use by several threads at once.
    """

    name: ClassVar[str]

    def __init__(self, directory: Path, *, log: str, start_timeout_s: float) -> None:
        """`log`: the file's name."""
        self.directory = directory.absolute()
        self.log_path = self.directory / log
        self._start_timeout_s = start_timeout_s
        self._process: OwnedProcess | None = None

    @property
    def pid(self) -> int | None:
        """The server's pid; None when it doesn't run."""
        return self._process.pid if self._process is not None and self._process.running else None

    def start(self) -> None:
        """Start with the data of the directory, new where there is none, and wait until clients are let in."""
        if self.pid is not None:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        self._process = self._launched()
        atexit.register(self.close)
        self._process.wait_ready(self._answers, timeout_s=self._start_timeout_s, name=self.name)

    def stop(self, *, timeout_s: float = 30) -> None:
        """Shut down in order; LocalServiceError when it still runs after `timeout_s`."""
        self._end(SIGTERM, timeout_s)

    def kill(self) -> None:
        """SIGKILL to the process and all its children, as a crash would look."""
        if self._process is not None:
            self._process.kill_tree()
            atexit.unregister(self.close)

    def close(self) -> None:
        """Stop, by force when it takes longer than 10 s."""
        try:
            self.stop(timeout_s=_CLOSE_TIMEOUT_S)
        except LocalServiceError:
            self.kill()

    def restart(self) -> None:
        """Stop and start on the same port with what it kept; after `kill` or `stop` it only starts."""
        self.stop()
        self.start()

    def signal(self, number: Signals) -> None:
        """Such as SIGSTOP and SIGCONT; nothing where it doesn't run."""
        if self._process is not None:
            self._process.signal(number)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _end(self, number: Signals, timeout_s: float, *, how: str = "", remedy: str = "") -> None:
        """`how`: of the end, for the message; `remedy`: where it takes too long."""
        if self._process is None:
            return
        self._process.signal(SIGCONT)  # one that was frozen would not hear of it
        self._process.signal(number)
        if not self._process.wait(timeout_s):
            raise LocalServiceError(
                f"{self.name} did not stop{how} in {timeout_s:g} s: {last_line(self.log_path)}",
                remedy=remedy or f"read {self.log_path}",
            )
        atexit.unregister(self.close)

    @abstractmethod
    def _launched(self) -> OwnedProcess:
        """Makes what is missing in the directory, and starts the process."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether clients are let in."""
