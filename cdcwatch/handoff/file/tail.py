"""Reads the journal as any subscriber would: committed lines only, from one file on into the next."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.handoff.file import segments
from cdcwatch.handoff.file.journal import PARTITION, read_line
from cdcwatch.handoff.record import Record
from cdcwatch.instant import read_instant, to_unix_s

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from cdcwatch.settings import FileSettings

_LOOK_S: Final = 0.02
_BLOCK_BYTES: Final = 1 << 20
_BYTES_A_RECORD: Final = 600
_AGAIN: Final = 100
_HELD: Final = 200
"""So many files are open at a time, the newest; those before them are opened when they are read."""
_TIME: Final = b',"time":"'

_log = logging.getLogger(__name__)


class _Segment(NamedTuple):
    """A file of the journal, and where its committed lines end."""

    path: Path
    descriptor: int
    """-1: opened when it is read."""
    inode: int
    number: int
    """That it has, or will have once it is full."""
    base: int
    """Bytes of the files before it."""
    end: int


class FileTail:
    """Not for several threads; `close` lets go of the files."""

    def __init__(
        self,
        settings: FileSettings,
        topic: str = "",
        *,
        dead: bool = False,
        takes_unnamed: bool = False,
        is_ended: Callable[[], bool] = lambda: False,
        wanted: Callable[[Record], bool] | None = None,
    ) -> None:
        """PreconditionError without the file. `topic`: of lines that name one; empty: all lines.

        `takes_unnamed`: lines that name none, too.
        """
        self.topic, self.read_count = topic, 0
        self._dead, self._takes_unnamed, self._is_ended, self._wanted = dead, takes_unnamed, is_ended, wanted
        self._path = segments.place_of(settings.path)
        self._segments = self._opened()
        newest = self._segments[-1]
        self._at = newest.base + segments.events_end(newest.descriptor, newest.end)
        """Where following goes on, in bytes of the whole journal: behind an event. What is behind that may shrink."""
        self._looked_end = -1
        """As far as the newest file was looked through."""
        self._coming: Iterator[Record] = iter(())
        """What is left of the last look: a block of it is read once, not for each record."""

    def close(self) -> None:
        """Lets go."""
        for segment in self._segments:
            if segment.descriptor >= 0:
                os.close(segment.descriptor)
        self._segments = []

    def so_far(self) -> Iterator[Record]:
        """Every record up to the opening."""
        self.read_count = 0
        for segment in self._segments:
            with _held(segment) as one:
                yield from self._records(one, 0)

    def last(self, count: int) -> list[Record]:
        """The last `count`, in order."""
        self.read_count = 0
        found: deque[Record] = deque(maxlen=count)
        if not count:
            return []
        for segment in reversed(self._segments):
            with _held(segment) as one:
                found.extendleft(reversed(self._last_of(one, count - len(found))))
            if len(found) >= count:
                break
        return list(found)

    def _last_of(self, segment: _Segment, count: int) -> list[Record]:
        span = count * _BYTES_A_RECORD
        while True:
            start = max(0, segment.end - span)
            records = list(self._records(segment, self._line_after(segment, start)))
            if not start or len(records) >= count:
                return records[-count:]
            span *= 4

    def about(self, key: bytes, count: int, scan_records: int) -> list[Record]:
        """As of `Tail`; looks at whole files from the newest on, until `scan_records` were seen."""
        self.read_count = 0
        found: list[Record] = []
        for segment in reversed(self._segments):
            with _held(segment) as opened:
                here = [one for one in self._records(opened, 0) if one.is_about_all or one.key == key]
            found = here + found
            if sum(not one.is_about_all for one in found) >= count or self.read_count >= scan_records:
                break
        return found[-count:]

    def follow(self) -> None:
        """What was committed since the opening comes first."""

    def came(self, wait_s: float) -> Record | None:
        """The next record; None where none comes in that time."""
        give_up_s = time.monotonic() + wait_s
        while not self._is_ended():
            record = next(self._coming, None)
            if record is None:
                self._coming = self._new()
                record = next(self._coming, None)
            if record is not None:
                return record
            left_s = give_up_s - time.monotonic()
            if left_s <= 0:
                break
            time.sleep(min(_LOOK_S, left_s))
        return None

    # -- lines -------------------------------------------------------------------------------------------------------

    def _new(self) -> Iterator[Record]:
        """Of what was committed since `_at`; that moves with each."""
        segment = self._grown(self._segments[-1])
        if segment.end != self._looked_end:
            for offset, line in _lines(segment.descriptor, self._at - segment.base, segment.end):
                if read_line(line) is None:
                    continue
                self._at = segment.base + offset + len(line)
                record = self._record(segment, offset, line)
                if record is not None:
                    yield record
            self._looked_end = segment.end
        if self._is_left(segment):
            self._move_on(segment)

    def _grown(self, segment: _Segment) -> _Segment:
        size = os.fstat(segment.descriptor).st_size
        if size != segment.end:
            end = segments.committed_end(segment.descriptor, size, self._at - segment.base)
            segment = segment._replace(end=end)
            self._segments[-1] = segment
        return segment

    def _is_left(self, segment: _Segment) -> bool:
        """Whether the writer has gone on in another file; all of this one was read."""
        try:
            moved = self._path.stat().st_ino != segment.inode
        except FileNotFoundError:
            return False  # moved away by somebody
        return moved and os.fstat(segment.descriptor).st_size == segment.end

    def _move_on(self, before: _Segment) -> None:
        """On to the file behind that one; where that is gone, to the oldest that came after it."""
        for _ in range(_AGAIN):
            names = segments.numbered(self._path)
            later = [name for name in names if segments.number_of(name) > before.number]
            name = later[0] if later else self._path
            try:
                descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                continue
            inode = os.fstat(descriptor).st_ino
            if inode == before.inode or segments.numbered(self._path) != names:
                os.close(descriptor)  # a rotation that has only begun, or another one came between
                continue
            number = segments.number_of(name) if later else _next_number(names)
            if number > before.number + 1:
                _log.warning("%d files were deleted before they were read: file.keep_files", number - before.number - 1)
            base = before.base + before.end
            self.close()
            end = segments.committed_end(descriptor, os.fstat(descriptor).st_size)
            self._segments = [_Segment(name, descriptor, inode, number, base, end)]
            self._at, self._looked_end = base, -1
            return

    def _records(self, segment: _Segment, start: int) -> Iterator[Record]:
        for offset, line in _lines(segment.descriptor, start, segment.end):
            if self._is_ended():
                return
            record = self._record(segment, offset, line)
            if record is not None:
                yield record

    def _record(self, segment: _Segment, offset: int, line: bytes) -> Record | None:
        told = read_line(line)
        if told is None or told.is_dead is not self._dead:
            return None
        if self.topic and told.topic != self.topic and not (self._takes_unnamed and not told.topic):
            return None
        self.read_count += 1
        record = Record(PARTITION, segment.base + offset, _timestamp_ms(told.value), told.value, told.key)
        return record if self._wanted is None or self._wanted(record) else None

    def _line_after(self, segment: _Segment, start: int) -> int:
        """Where the first line begins from there on."""
        if not start:
            return 0
        for offset, line in _lines(segment.descriptor, start, segment.end):
            return offset + len(line)
        return segment.end

    # -- files -------------------------------------------------------------------------------------------------------

    def _opened(self) -> list[_Segment]:
        """All of them, the oldest first; again where one was moved meanwhile."""
        for _ in range(_AGAIN):
            names = segments.numbered(self._path) if self._path.parent.is_dir() else []
            held: list[_Segment] = []
            try:
                held.extend(_opened_one(name, segments.number_of(name)) for name in names[-_HELD:])
                held.append(_opened_one(self._path, _next_number(names)))
                if segments.numbered(self._path) == names:
                    return self._measured([_unopened(name) for name in names[:-_HELD]], held)
            except FileNotFoundError:
                if not _segments_there(self._path):
                    raise PreconditionError(
                        f"there is no file {self._path}",
                        remedy="start `cdcwatch run`, which makes it, or mend file.path",
                    ) from None
            except OSError as error:
                raise PreconditionError(
                    f"{self._path} can't be read: {os.strerror(error.errno or 0)}",
                    remedy="read it as the user that writes it, or give this one the right to read",
                ) from error
            for segment in held:
                os.close(segment.descriptor)
        raise UnavailableError(f"{self._path} is rotated all the time", remedy="file.rotate_bytes is too small")

    def _measured(self, unopened: list[_Segment], held: list[_Segment]) -> list[_Segment]:
        if len(held) > 1 and held[-1].inode == held[-2].inode:  # a rotation that has only begun: two names
            os.close(held.pop().descriptor)
        segments.require_journal(held[0].descriptor, self._path)
        found: list[_Segment] = []
        base = 0
        for segment in (*unopened, *held):
            end = segment.end if segment.descriptor < 0 else segments.committed_end(segment.descriptor, segment.end)
            found.append(segment._replace(base=base, end=end))
            base += end
        return found


def _opened_one(name: Path, number: int) -> _Segment:
    descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC)
    facts = os.fstat(descriptor)
    return _Segment(name, descriptor, facts.st_ino, number, 0, facts.st_size)


def _unopened(name: Path) -> _Segment:
    facts = name.stat()
    return _Segment(name, -1, facts.st_ino, segments.number_of(name), 0, facts.st_size)


def _next_number(names: list[Path]) -> int:
    return segments.number_of(names[-1]) + 1 if names else 1


@contextmanager
def _held(segment: _Segment) -> Iterator[_Segment]:
    """Open. One that was deleted meanwhile is empty."""
    if segment.descriptor >= 0:
        yield segment
        return
    try:
        descriptor = os.open(segment.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield segment._replace(end=0)
        return
    try:
        yield segment._replace(descriptor=descriptor)
    finally:
        os.close(descriptor)


def _segments_there(path: Path) -> bool:
    """Whether anything of a journal is there."""
    return path.parent.is_dir() and (path.exists() or bool(segments.numbered(path)))


def _lines(descriptor: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of every whole line."""
    at, rest = start, b""
    while at < end:
        block = os.pread(descriptor, min(_BLOCK_BYTES, end - at), at)
        if not block:
            return
        offset, at = at - len(rest), at + len(block)
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            yield offset, line + b"\n"
            offset += len(line) + 1


def _timestamp_ms(value: bytes) -> int:
    """The event's own time; 0 of a dead letter."""
    at = value.find(_TIME)  # within a JSON string the quotes would be escaped
    if at < 0:
        return 0
    begin = at + len(_TIME)
    try:
        return int((to_unix_s(read_instant(value[begin : value.index(b'"', begin)].decode())) or 0) * 1000)
    except ValueError:
        return 0
