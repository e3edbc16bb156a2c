"""The world whose events go into a journal on this machine's disk."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

from cdcwatch.handoff.file import segments
from cdcwatch.handoff.file.tail import FileTail
from cdcwatch.settings import FileSettings
from tests.oracle.subscriber import Record
from tests.oracle.world import World

if TYPE_CHECKING:
    from tests.services import Database

ROTATE_BYTES = 100_000
NOBODY = "127.0.0.1:1"


class FileWorld(World):
    """Rotates often."""

    def __init__(self, database: Database, folder: Path, extra: str = "", *, plugin: str = "wal2json") -> None:
        self.file = FileSettings(path=str(folder / "deadlines.jsonl"), rotate_bytes=ROTATE_BYTES)
        section = f'[sink]\nkind = "file"\n[file]\npath = "{self.file.path}"\nrotate_bytes = {ROTATE_BYTES}\n'
        super().__init__(database, NOBODY, "orders.deadlines", folder, section + extra, plugin=plugin)

    def records(self) -> list[Record]:
        """As a subscriber reads them: what is committed."""
        with contextlib.closing(FileTail(self.file)) as tail:
            return [
                Record(one.partition, one.offset, None if one.key is None else one.key.decode(), json.loads(one.value))
                for one in tail.so_far()
            ]

    def sent_ends(self) -> dict[int, int]:
        """In bytes of all files."""
        path = Path(self.file.path)
        sizes = {one.stat().st_ino: one.stat().st_size for one in (*segments.numbered(path), path)}
        return {0: sum(sizes.values())}

    def wait_topic_committed(self) -> None:
        """Nothing holds a reader up."""
