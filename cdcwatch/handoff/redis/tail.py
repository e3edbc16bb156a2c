"""Reads a table's streams as any subscriber would, without a consumer group."""

from __future__ import annotations

import time
from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Any

from cdcwatch.errors import UnavailableError
from cdcwatch.handoff.murmur2 import partition_of
from cdcwatch.handoff.redis.client import connected, talking
from cdcwatch.handoff.redis.entries import PAGE, entries, last_id, newest_first, record_of
from cdcwatch.handoff.redis.streams import existing_streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cdcwatch.handoff.record import Record
    from cdcwatch.settings import RedisSettings


class StreamTail:
    """As of `Tail`."""

    def __init__(
        self,
        settings: RedisSettings,
        topic: str,
        *,
        dead: bool = False,
        is_ended: Callable[[], bool] = lambda: False,
        wanted: Callable[[Record], bool] | None = None,
    ) -> None:
        """Connects. PreconditionError without the streams, UnavailableError without Redis. `dead`: the dead letters."""
        self.topic = topic
        self.read_count = 0
        self._is_ended, self._wanted = is_ended, wanted or (lambda _record: True)
        self._client: Any = connected(settings)
        try:
            with talking():
                self._streams = existing_streams(self._client, settings, topic, dead=dead)
                self._ends = [last_id(self._client, stream) for stream in self._streams]
        except BaseException:
            self._client.close()
            raise
        self._next = [end or b"0-0" for end in self._ends]
        """Behind which `came` goes on."""
        self._came: deque[Record] = deque()

    def so_far(self) -> Iterator[Record]:
        """One partition after the other."""
        self.read_count = 0
        with talking():
            for partition, (stream, end) in enumerate(zip(self._streams, self._ends, strict=True)):
                for entry in entries(self._client, stream, None, end) if end is not None else ():
                    if self._is_ended():
                        return
                    self.read_count += 1
                    record = record_of(partition, entry)
                    if self._wanted(record):
                        yield record

    def last(self, count: int) -> list[Record]:
        """The newest of every partition, and of those the newest."""
        self.read_count = 0
        found: list[Record] = []
        with talking():
            for partition in range(len(self._streams)) if count else ():
                found += islice(filter(self._wanted, self._backwards(partition)), count)
        return sorted(found, key=_place)[-count:] if count else []

    def about(self, key: bytes, count: int, scan_records: int) -> list[Record]:
        """From the key's own stream."""
        self.read_count = 0
        found: list[Record] = []
        own = 0
        with talking():
            home = partition_of(key, len(self._streams))
            for record in islice(self._backwards(home), scan_records):
                if record.key == key or record.is_about_all:
                    found.append(record)
                    own += not record.is_about_all
                if own >= count:
                    break
        return sorted(found, key=_place)[-count:]

    def follow(self) -> None:
        """Where it stands already."""

    def came(self, wait_s: float = 0.2) -> Record | None:
        """A Redis that is away is waited for."""
        if not self._came:
            try:
                self._fetch(wait_s)
            except UnavailableError:
                time.sleep(wait_s)
                return None
        if not self._came:
            return None
        self.read_count += 1
        record = self._came.popleft()
        return record if self._wanted(record) else None

    def close(self) -> None:
        """Ends the connection."""
        self._client.close()

    def _backwards(self, partition: int) -> Iterator[Record]:
        end = self._ends[partition]
        for entry in newest_first(self._client, self._streams[partition], end) if end is not None else ():
            if self._is_ended():
                return
            self.read_count += 1
            yield record_of(partition, entry)

    def _fetch(self, wait_s: float) -> None:
        asked = dict(zip(self._streams, self._next, strict=True))
        with talking():
            found = self._client.xread(asked, count=PAGE, block=max(1, int(wait_s * 1000)))
        for name, some in found or ():
            partition = self._streams.index(name.decode())
            self._next[partition] = some[-1][0]
            self._came.extend(record_of(partition, entry) for entry in some)


def _place(record: Record) -> tuple[int, int, int]:
    return record.timestamp_ms, record.partition, record.offset
