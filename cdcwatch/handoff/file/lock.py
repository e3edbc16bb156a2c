"""Who writes a journal: `<path>.lock`, which names every slot's owner and is held for as long as one batch is written.

The lock is the kernel's and ends with its process. The owner is whoever opened last for a slot: an older process that
wakes up finds another name there.
https://man7.org/linux/man-pages/man2/flock.2.html
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from typing import TYPE_CHECKING, Final

import orjson

from cdcwatch.errors import UnavailableError
from cdcwatch.handoff.sink import FencedError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_WAIT_S: Final = 5.0
_AGAIN_S: Final = 0.01
_MODE: Final = 0o640
_MOST_BYTES: Final = 1 << 20


class FileLock:
    """For one writer of one slot."""

    def __init__(self, path: Path, slot: str) -> None:
        self._path, self._slot = path.with_name(f"{path.name}.lock"), slot
        self._token = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._descriptor = -1

    def open(self) -> None:
        """OSError where it can't be made."""
        self.close()
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, _MODE)

    def close(self) -> None:
        """Lets go."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Nobody else writes meanwhile. UnavailableError where somebody does, for seconds."""
        self._take()
        try:
            self._require_in_place()
            yield
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def own(self) -> bool:
        """While held: the slot's events are ours from now on. Whether they were somebody's before. OSError."""
        owners = self._owners()
        data = orjson.dumps({**owners, self._slot: self._token}) + b"\n"
        os.pwrite(self._descriptor, data, 0)
        os.ftruncate(self._descriptor, len(data))
        os.fsync(self._descriptor)
        return self._slot in owners

    def require_owned(self) -> None:
        """While held: FencedError where a later process has taken the slot's events."""
        owner = self._owners().get(self._slot, "")
        if owner != self._token:
            pid = owner.partition("-")[0] or "unknown"
            raise FencedError(
                f"another process writes the events of {self._slot} to this file now (pid {pid})",
                remedy="see that one cdcwatch has this slot; or give the other a slot and a file of its own",
            )

    def _require_in_place(self) -> None:
        """UnavailableError where others would lock another file; opening makes it anew, or takes that one."""
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(self._path.stat(), os.fstat(self._descriptor)):
                return
        raise UnavailableError(
            f"{self._path} was moved or deleted by somebody",
            remedy="leave it there: it keeps two processes from writing at once; it is made anew",
        )

    def _owners(self) -> dict[str, str]:
        try:
            found = orjson.loads(os.pread(self._descriptor, _MOST_BYTES, 0))
        except orjson.JSONDecodeError:
            return {}  # new, or torn by a power cut: whoever opens next owns
        return found if isinstance(found, dict) else {}

    def _take(self) -> None:
        give_up_s = time.monotonic() + _WAIT_S
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > give_up_s:
                    pids = sorted({owner.partition("-")[0] for owner in self._owners().values()})
                    raise UnavailableError(
                        f"another process holds {self._path} (of pid {', '.join(pids) or 'unknown'})",
                        remedy="see whether it is stopped in the middle of a write, or takes a snapshot; end it",
                    ) from None
                time.sleep(_AGAIN_S)
            else:
                return
