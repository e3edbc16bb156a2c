"""The journal's files: the one that is written, `<path>`, and those that were full, `<path>.000001` and on.

Each begins with the header and, after the first, with the commits that its slots had reached: the newest of every slot
is found in the newest file. Files are made aside and renamed, so that they are there whole or not at all, and `<path>`
always is.
https://man7.org/linux/man-pages/man2/fsync.2.html
"""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cdcwatch import failpoints
from cdcwatch.errors import PreconditionError
from cdcwatch.handoff.file.journal import COMMIT_HEAD, HEADER, Commit, encoded_commit, read_commit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_BLOCK_BYTES: Final = 256 * 1024
_MODE: Final = 0o640
_DIGITS: Final = 6


def place_of(path: str) -> Path:
    """Where the files are: where a link leads, so that all that stands beside the journal does so for everybody."""
    return Path(os.path.realpath(path) if os.path.islink(path) else path).absolute()  # noqa: PTH114


def numbered(path: Path) -> list[Path]:
    """Those that were full, the oldest first."""
    pattern = re.compile(rf"{re.escape(path.name)}\.(\d{{{_DIGITS},}})")
    found = [(int(match[1]), one) for one in path.parent.iterdir() if (match := pattern.fullmatch(one.name))]
    return [one for _, one in sorted(found)]


def number_of(path: Path) -> int:
    """That of a full one; 0 of any other."""
    match = re.fullmatch(rf".*\.(\d{{{_DIGITS},}})", path.name, re.DOTALL)
    return int(match[1]) if match else 0


def make(path: Path, commits: Iterable[Commit] = ()) -> None:
    """A new file in place of none, durable on return. OSError."""
    _written_aside(path, commits).rename(path)
    sync_directory(path)


def rotate(path: Path, commits: Iterable[Commit]) -> Path:
    """The full file gets a number, and a new one its place. OSError: as before, or `recover_rotation` mends it."""
    last = numbered(path)
    number = number_of(last[-1]) + 1 if last else 1
    full, aside = path.with_name(f"{path.name}.{number:0{_DIGITS}d}"), _written_aside(path, commits)
    full.hardlink_to(path)
    failpoints.reached("file.rotating")
    aside.rename(path)
    sync_directory(path)
    return full


def recover_rotation(path: Path) -> None:
    """Undoes what a process left that died over it: `path` is always there, for a moment under two names. OSError.

    What it had made aside may be old by now: another slot's writer goes on in `path`.
    """
    aside, full = _aside(path), numbered(path)[-1:]
    if not aside.exists():
        return
    if full and path.exists() and full[0].samefile(path):
        full[0].unlink()
    aside.unlink()


def require_journal(descriptor: int, path: Path) -> None:
    """PreconditionError where the file is something else: nothing of it is touched."""
    if os.pread(descriptor, len(HEADER), 0) != HEADER:
        raise PreconditionError(
            f"{path} is no journal of cdcwatch: it is left as it is",
            remedy="name another file in file.path, or move this one away",
        )


def write_all(descriptor: int, data: bytes | bytearray) -> None:
    """All of it. OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def committed_end(descriptor: int, size: int, floor: int = 0) -> int:
    """Where the last batch ends that is whole; `floor` where there is none behind it.

    A batch is whole by its commit's length and checksum: after a power cut its last line may be there and what is
    before it not.
    """
    for start, line in backwards(descriptor, size, floor):
        commit = _tolerant(line)
        if commit is not None and _is_whole(descriptor, start, commit):
            return start + len(line)
    return max(floor, min(len(HEADER), size))


def events_end(descriptor: int, end: int) -> int:
    """Where the last batch ends that holds events: behind it stand commits of none."""
    for start, line in backwards(descriptor, end):
        commit = _tolerant(line)
        if commit is not None and commit.events:
            return start + len(line)
    return len(HEADER)


def shrink(path: Path, descriptor: int, begin: int, end: int) -> int:
    """Of the commits between `begin` and `end`, all without events, the newest of every slot stays; where it ends then.

    Those are written over the oldest, and are durable before the rest is cut off: whatever happens one of both is
    there. OSError.
    """
    kept = b"".join(map(encoded_commit, newest_commits(descriptor, end, begin).values()))
    if begin + len(kept) > end // 2 + begin // 2:
        return end
    over = os.open(path, os.O_WRONLY | os.O_CLOEXEC)  # what is opened to append, appends wherever it is told to write
    try:
        if os.pwrite(over, kept, begin) != len(kept):
            return end
        os.fdatasync(over)
        os.ftruncate(over, begin + len(kept))
        os.fsync(over)
    finally:
        os.close(over)
    return begin + len(kept)


def newest_commits(descriptor: int, end: int, floor: int = 0) -> dict[str, Commit]:
    """Of every slot that the file knows. KeyError or ValueError where one is of another version."""
    found: dict[str, Commit] = {}
    for _, line in backwards(descriptor, end, floor):
        commit = read_commit(line)
        if commit is not None:
            found.setdefault(commit.slot, commit)
    return found


def newest_commit(descriptor: int, end: int, slot: str) -> Commit | None:
    """Of one slot."""
    for _, line in backwards(descriptor, end):
        commit = read_commit(line)
        if commit is not None and commit.slot == slot:
            return commit
    return None


def backwards(descriptor: int, end: int, floor: int = 0) -> Iterator[tuple[int, bytes]]:
    """Start and bytes of every commit's line before `end`, the last first; a line that has no end is passed over."""
    tail = b""  # of a line that begins in the block before
    at = end
    while at > floor:
        start = max(floor, at - _BLOCK_BYTES)
        block = os.pread(descriptor, at - start, start) + tail
        # Without its beginning the first line waits for the block before.
        cut = 0 if start == floor else block.find(b"\n") + 1
        if cut == 0 and start > floor:
            tail, at = block, start
            continue
        yield from _commits_in(block, cut, start)
        tail, at = block[:cut], start


def _commits_in(block: bytes, cut: int, start: int) -> Iterator[tuple[int, bytes]]:
    upto = len(block)
    while (found := block.rfind(b"\n" + COMMIT_HEAD, max(cut - 1, 0), upto)) >= 0 or block.startswith(COMMIT_HEAD, cut):
        begin = found + 1 if found >= 0 else cut
        stop = block.find(b"\n", begin)
        if stop >= 0:
            yield start + begin, block[begin : stop + 1]
        if begin == cut:
            return
        upto = begin


def _tolerant(line: bytes) -> Commit | None:
    try:
        return read_commit(line)
    except (KeyError, ValueError, TypeError):
        return None


def _is_whole(descriptor: int, end: int, commit: Commit) -> bool:
    start, crc32 = end - commit.size_bytes, 0
    if start < 0:
        return False
    while start < end:
        block = os.pread(descriptor, min(_BLOCK_BYTES * 4, end - start), start)
        if not block:
            return False
        crc32, start = zlib.crc32(block, crc32), start + len(block)
    return crc32 == commit.crc32


def _aside(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _written_aside(path: Path, commits: Iterable[Commit]) -> Path:
    aside = _aside(path)
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
    try:
        write_all(descriptor, HEADER + b"".join(map(encoded_commit, commits)))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return aside


def sync_directory(path: Path) -> None:
    """Makes the names of the directory it is in durable. OSError."""
    descriptor = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
