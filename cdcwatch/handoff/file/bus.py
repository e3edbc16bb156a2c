"""The journal, as everybody but the writer sees it."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Final

from cdcwatch.errors import CdcwatchError, ConfigurationError
from cdcwatch.handoff.file import segments
from cdcwatch.handoff.file.sink import FileSink, newest_commit
from cdcwatch.handoff.file.tail import FileTail
from cdcwatch.lsn import format_lsn
from cdcwatch.slot.check import Check, failed
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdcwatch.handoff.member import Holder, Member
    from cdcwatch.handoff.progress import Progress
    from cdcwatch.handoff.record import Record
    from cdcwatch.settings import Settings

_LITTLE_BYTES: Final = 1 << 30
_NO_GROUP: Final = "a file has no consumer group: --role close can't hear of orders by it"
_OTHERWISE: Final = 'set sink.kind to "kafka" or "redis", or close by --role all or --role sweep'


class FileBus:
    """As of `Bus`."""

    is_transactional = True

    def __init__(self, settings: Settings) -> None:
        self._settings, self._file = settings, settings.file
        self._path = segments.place_of(settings.file.path)

    @property
    def progress_place(self) -> str:
        """The file itself."""
        return str(self._path)

    def sink(self, slot: str, topics: Sequence[str]) -> FileSink:
        """Its one writer of this slot."""
        return FileSink(self._file, slot, topics)

    def progress(self) -> Progress | None:
        """Of its last commit."""
        commit = newest_commit(self._file, self._settings.slot.name)
        return None if commit is None else commit.progress

    def forget_progress(self) -> bool:
        """A commit that knows nothing."""
        if self.progress() is None:
            return False
        sink = self.sink(self._settings.slot.name, ())
        sink.open()
        try:
            sink.forget()
        finally:
            sink.close()
        return True

    def tail(
        self, *, dead: bool = False, is_ended: Callable[[], bool], wanted: Callable[[Record], bool] | None = None
    ) -> FileTail:
        """Of one table of several its own lines, else all."""
        topic = self._settings.for_events().topic if self._settings.is_shared else ""
        return FileTail(self._file, topic, dead=dead, is_ended=is_ended, wanted=wanted)

    def member(self, holder: Holder) -> Member:  # noqa: ARG002
        """There is none."""
        raise ConfigurationError(_NO_GROUP, remedy=_OTHERWISE)

    def why_unreachable(self) -> str:
        """Whether its directory can be written to."""
        try:
            os.statvfs(self._path.parent)
        except OSError as error:
            return f"{self._path.parent}: {os.strerror(error.errno or 0)}"
        return ""

    def checks(self, *, hears: bool = False) -> list[Check]:
        """The directory, the file, its end, the room that is left."""
        if hears:
            return [Check("file", "fail", _NO_GROUP, _OTHERWISE)]
        directory = self._path.parent
        if not os.access(directory, os.W_OK | os.X_OK):
            what = "can't be written to by this user" if directory.is_dir() else "is no directory"
            return [Check("file", "fail", f"{directory} {what}", f"mkdir -p {directory}, owned by who runs cdcwatch")]
        try:
            return [self._state(), self._room()]
        except CdcwatchError as error:
            return [failed("file", error)]

    def _state(self) -> Check:
        if not self._path.exists():
            return Check("file", "ok", f"{self._path} is not there yet; run makes it")
        if not os.access(self._path, os.R_OK | os.W_OK):
            return Check("file", "fail", f"{self._path} can't be written to by this user", f"chown it: {self._path}")
        commit = newest_commit(self._file, self._settings.slot.name)
        files = [*segments.numbered(self._path), self._path]
        size_mib = sum(one.stat().st_size for one in files) / (1 << 20)
        told = f"{self._path}: {counted(len(files), 'file')}, {size_mib:,.0f} MiB"
        if commit is None or commit.progress is None:
            return Check("file", "ok", f"{told}; nothing of slot {self._settings.slot.name} yet")
        told += f", events up to {format_lsn(commit.progress.position.end_lsn)}"
        if commit.dead:
            return Check("file", "warn", f"{told}, {counted(commit.dead, 'dead letter')}", "cdcwatch events --dead")
        return Check("file", "ok", told)

    def _room(self) -> Check:
        free = shutil.disk_usage(self._path.parent).free
        told = f"{free / (1 << 30):,.1f} GiB are free beside {self._path.name}"
        if free < max(_LITTLE_BYTES, self._file.rotate_bytes):
            return Check("disk", "warn", told, "make room, or bound what is kept: file.rotate_bytes, file.keep_files")
        return Check("disk", "ok", told)
