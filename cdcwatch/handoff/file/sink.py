"""The file sink: a journal on this machine's disk, beside the heap, where there is no Kafka.

A batch is appended in one piece and is durable before it is acknowledged; its last line commits it, with the progress
record. What a crash leaves half-written is taken away at the next opening, before anything else is written.
https://man7.org/linux/man-pages/man2/fdatasync.2.html
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import logging
import os
import zlib
from typing import TYPE_CHECKING, Final

from cdcwatch import failpoints
from cdcwatch.deadline.event import DeadLetter
from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.handoff.file import segments
from cdcwatch.handoff.file.journal import HEADER, Commit, encoded, encoded_commit, encoded_named
from cdcwatch.handoff.file.lock import FileLock
from cdcwatch.handoff.file.tail import FileTail
from cdcwatch.handoff.sink import tell_made_anew
from cdcwatch.headway import stage

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from pathlib import Path

    from cdcwatch.deadline.event import Event
    from cdcwatch.handoff.progress import Progress
    from cdcwatch.handoff.sink import Batch
    from cdcwatch.handoff.told import Told
    from cdcwatch.settings import FileSettings

_PIECE_BYTES: Final = 1 << 20
_IDLE_BYTES: Final = 64 << 10
"""Of commits without events behind the last one with some; then they are put together."""
_NO_RETRY: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG}
)
_OTHER_VERSION: Final = "%s can't be %s: another version of cdcwatch writes to it for another slot; it grows on"
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_log = logging.getLogger(__name__)


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """An OSError as the operator should read it."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno or 0)
        if error.errno in _NO_RETRY:
            raise PreconditionError(
                f"{path} can't be written: {why}",
                remedy="file.path names a file in a directory that this user may write to",
            ) from error
        remedy = "see what the kernel's log says of its disk; it is tried again"
        if error.errno in _FULL:
            remedy = "make room on its file system; file.rotate_bytes and file.keep_files bound what is kept"
        raise UnavailableError(f"{path} can't be written: {why}", remedy=remedy) from error


class FileSink:
    """`sink.kind = "file"`."""

    is_transactional = True

    def __init__(self, settings: FileSettings, slot: str, topics: Sequence[str] = ()) -> None:
        """`topics`: of the tables; with several every line names its own."""
        self._settings, self._slot, self._topics = settings, slot, topics
        self._path = segments.place_of(settings.path)
        self._lock = FileLock(self._path, slot)
        self._descriptor = -1
        self._end = 0
        """Where our last batch ends: whoever else writes to the file, does so behind it."""
        self._events_end = 0
        """Where the last batch that holds events ends, whoever's."""
        self._dead = 0
        self._progress: Progress | None = None
        """Of our last batch."""
        self._acknowledged: list[range] = []
        self.made_topics: Collection[str] = ()

    def open(self) -> Progress | None:
        """Takes the file for this process, mends its end, and reads how far it goes."""
        self.close()
        try:
            with explained(self._path):
                self._lock.open()
                with self._lock.held():
                    was_there = self._lock.own()
                    segments.recover_rotation(self._path)
                    self._find(was_there=was_there)
                    self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
                    self._mend()
                    commit = _newest_commit(self._descriptor, self._end, self._slot, self._path)
        except BaseException:
            self.close()
            raise
        self._dead = 0 if commit is None else commit.dead
        self._progress = None if commit is None else commit.progress
        return self._progress

    def _find(self, *, was_there: bool) -> None:
        """Makes the file where there is none."""
        if self._path.exists():
            return
        if was_there or segments.numbered(self._path):
            tell_made_anew(str(self._path))
        elif not self.made_topics:
            self.made_topics = frozenset(self._topics)
        segments.make(self._path)

    def _mend(self) -> None:
        """Takes away what is behind the last whole batch."""
        segments.require_journal(self._descriptor, self._path)
        size = os.fstat(self._descriptor).st_size
        self._end = segments.committed_end(self._descriptor, size)
        if size > self._end:
            os.ftruncate(self._descriptor, self._end)
            os.fsync(self._descriptor)
            _log.warning(
                "%s: %d bytes of a batch that was never committed are taken away", self._path, size - self._end
            )
        self._events_end = segments.events_end(self._descriptor, self._end)

    def publish(self, batches: Sequence[Batch]) -> None:
        """One piece for all of them; durable on return."""
        self._append(itertools.chain.from_iterable(batch.events for batch in batches), batches[-1].progress)
        self._acknowledged += [batch.sequence for batch in batches]

    def publish_snapshot(self, events: Iterable[Event], progress: Progress) -> int:
        """One piece, however large: readers see nothing of it before its last line."""
        return self._append(events, progress)

    def forget(self) -> None:
        """Commits that nothing is known of the slot's progress."""
        self._append((), None)

    def acknowledged(self) -> list[range]:
        """Of the batches written since the last call."""
        acknowledged, self._acknowledged = self._acknowledged, []
        return acknowledged

    def survey(self, made: Callable[[int], Told], topic: str = "") -> Told:
        """Reads all files to their end."""
        told = made(1)
        with (
            contextlib.closing(FileTail(self._settings, topic, takes_unnamed=True)) as tail,
            stage(f"reading {self._path.name}", unit="events", total=None) as reading,
        ):
            for record in tail.so_far():
                told.note(record.partition, record.key, record.value)
                reading.done += 1
        return told

    def close(self) -> None:
        """Lets go."""
        self._acknowledged = []
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
        self._lock.close()

    # -- one batch ---------------------------------------------------------------------------------------------------

    def _append(self, events: Iterable[Event], progress: Progress | None) -> int:
        if self._descriptor < 0:
            raise UnavailableError("the file is not open", remedy="it is opened again by itself")
        with explained(self._path), self._lock.held():
            self._lock.require_owned()
            self._stay_in_place()
            if os.fstat(self._descriptor).st_size != self._end:
                self._mend()  # another slot's writer was here; it may have died over it
            count = self._write(events, progress)
            if count and 0 < self._settings.rotate_bytes <= self._end:
                self._rotate()
            elif not count and self._end - self._events_end > _IDLE_BYTES:
                self._shrink()
        return count

    def _write(self, events: Iterable[Event], progress: Progress | None) -> int:
        start, changes = self._end, 0 if progress is None else progress.position.open_changes
        try:
            count, dead, crc32, size_bytes = self._write_events(events)
            if count:
                failpoints.reached("file.written", changes)
            line = encoded_commit(Commit(self._slot, count, self._dead + dead, size_bytes, crc32, progress))
            segments.write_all(self._descriptor, line)
            os.fdatasync(self._descriptor)
        except BaseException:
            # Also where syncing failed: what the kernel then holds of it can't be relied on. It comes again.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, start)
            raise
        self._end, self._dead, self._progress = start + size_bytes + len(line), self._dead + dead, progress
        if count:
            self._events_end = self._end
            failpoints.reached("file.synced", changes)
        return count

    def _write_events(self, events: Iterable[Event]) -> tuple[int, int, int, int]:
        """Events, dead letters among them, checksum and bytes."""
        count = dead = crc32 = size_bytes = 0
        encode = encoded_named if len(self._topics) > 1 else encoded
        waiting = bytearray()
        for event in events:
            waiting += encode(event)
            count += 1
            dead += event.key is None and isinstance(event, DeadLetter)
            if len(waiting) >= _PIECE_BYTES:
                crc32, size_bytes = zlib.crc32(waiting, crc32), size_bytes + len(waiting)
                segments.write_all(self._descriptor, waiting)
                waiting = bytearray()
        segments.write_all(self._descriptor, waiting)
        return count, dead, zlib.crc32(waiting, crc32), size_bytes + len(waiting)

    def _stay_in_place(self) -> None:
        """Goes on in the file that another slot's writer has rotated to: that begins with where ours had come to.

        UnavailableError where somebody has moved the file away under us: opening it again makes another one.
        """
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(self._path.stat(), os.fstat(self._descriptor)):
                return
            if segments.numbered(self._path):
                fresh = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
                try:
                    end = segments.committed_end(fresh, os.fstat(fresh).st_size)
                    commit = _newest_commit(fresh, end, self._slot, self._path)
                    if (None if commit is None else commit.progress) == self._progress:
                        fresh, self._descriptor, self._end = self._descriptor, fresh, end
                        self._events_end = segments.events_end(self._descriptor, end)
                        return
                finally:
                    os.close(fresh)
        raise UnavailableError(
            f"{self._path} was moved or deleted by somebody",
            remedy="leave rotation to cdcwatch (file.rotate_bytes); it goes on in a new file",
        )

    def _shrink(self) -> None:
        """While no events come, positions do: of them only the newest count."""
        try:
            self._end = segments.shrink(self._path, self._descriptor, self._events_end, self._end)
        except OSError as error:
            _log.warning("%s can't be shortened: %s; it grows on", self._path, os.strerror(error.errno or 0))
            self._mend()
        except (KeyError, ValueError, TypeError):
            _log.warning(_OTHER_VERSION, self._path, "shortened")

    def _rotate(self) -> None:
        """What was written is durable whether this succeeds or not."""
        try:
            commits = segments.newest_commits(self._descriptor, self._end)
            carried = [commit._replace(events=0, size_bytes=0, crc32=0) for commit in commits.values()]
            full = segments.rotate(self._path, carried)
            fresh = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
        except OSError as error:
            _log.warning("%s can't be rotated: %s; it grows on", self._path, os.strerror(error.errno or 0))
            return
        except (KeyError, ValueError, TypeError):
            _log.warning(_OTHER_VERSION, self._path, "rotated")
            return
        before, self._descriptor = self._descriptor, fresh
        os.close(before)
        self._end = os.fstat(fresh).st_size
        self._events_end = len(HEADER)
        _log.info("%s is full; goes on in a new file", full.name)
        self._forget_old()

    def _forget_old(self) -> None:
        keep = self._settings.keep_files
        for old in segments.numbered(self._path)[: -keep or None] if keep else ():
            try:
                old.unlink()
            except OSError as error:
                _log.warning("%s can't be deleted: %s", old, os.strerror(error.errno or 0))
            else:
                _log.info("%s is deleted: file.keep_files = %d", old.name, keep)


def newest_commit(settings: FileSettings, slot: str) -> Commit | None:
    """For those who only look; None without the file. PreconditionError, UnavailableError."""
    path = segments.place_of(settings.path)
    if not path.exists():
        return None
    with explained(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        segments.require_journal(descriptor, path)
        end = segments.committed_end(descriptor, os.fstat(descriptor).st_size)
        return _newest_commit(descriptor, end, slot, path)
    finally:
        os.close(descriptor)


def _newest_commit(descriptor: int, end: int, slot: str, path: Path) -> Commit | None:
    try:
        return segments.newest_commit(descriptor, end, slot)
    except (KeyError, ValueError, TypeError):
        raise PreconditionError(
            f"the progress record in {path} can't be read: it is of another version",
            remedy="start the version of cdcwatch that wrote it",
        ) from None
