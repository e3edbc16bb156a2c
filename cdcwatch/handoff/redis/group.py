"""A member of a consumer group on a table's streams: entries of the partitions that are leased to it.

Redis' consumer groups share out entries, not streams, and an order's events would run through several hands. So every
stream has one reader at a time: the workers share the streams by leases (beat.lua), and who has a stream reads it as
the group's consumer. What it has heard is acknowledged (XACK) when it comes back for more, for then it is in the heap.
What a worker that died left pending is claimed (XAUTOCLAIM) by whoever gets its stream.

Whoever gets a stream begins a little before its end, and takes what came before from the table, as of `subscriber`.
https://redis.io/docs/latest/develop/data-types/streams/#consumer-groups
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import time
import uuid
from typing import TYPE_CHECKING, Any, Final

from cdcwatch.errors import CdcwatchError, UnavailableError
from cdcwatch.handoff.member import Heard
from cdcwatch.handoff.redis.client import connected, lua, refused, talking
from cdcwatch.handoff.redis.keys import group_name, leases_key, members_key
from cdcwatch.handoff.redis.streams import existing_streams

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdcwatch.handoff.member import Holder
    from cdcwatch.handoff.redis.entries import Entry
    from cdcwatch.settings import RedisSettings

SILENT_S: Final = 6.0
"""After so long without a sign of life a worker's partitions are others'."""
OVERLAP_ENTRIES: Final = 5000
"""So far before its end a stream is heard: its events of the last seconds at thousands a second, of minutes else."""
_BEAT_S: Final = 1.0
_POLL_S: Final = 0.1
_BATCH: Final = 2000
_ANSWER_S: Final = 5.0

_log = logging.getLogger(__name__)


@functools.cache
def _own_name() -> str:
    """Of this process: it comes back to its own leases when its connection broke."""
    return f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


class StreamMember:
    """As of `Member`. For one thread; `close` leaves the group."""

    def __init__(self, settings: RedisSettings, topic: str, slot: str, holder: Holder, name: str = "") -> None:
        """Connects. PreconditionError without the streams, UnavailableError without Redis. `name`: for tests."""
        self._settings, self._topic, self._holder = settings, topic, holder
        self._group, self._name = group_name(settings, slot), name or _own_name()
        self._shared = [members_key(topic, self._group), leases_key(topic, self._group)]
        self._client: Any = connected(settings, answer_s=_ANSWER_S)
        try:
            with talking():
                self._streams = existing_streams(self._client, settings, topic)
                self._beat_digest = self._client.script_load(lua("beat"))
        except BaseException:
            self._client.close()
            raise
        self._mine: set[int] = set()
        self._has_joined = False
        self._heard_ids: dict[str, list[bytes]] = {}
        """Not acknowledged yet."""
        self._ready: list[Heard] = []
        """From before the ends of streams that we have just got, and what others left pending."""
        self._passed: dict[int, int] = {}
        """How many entries a stream had ever had at the place that we have read to."""
        self._beaten_s = 0.0

    def poll(self) -> tuple[list[Heard], bool]:
        """What has come, at most some thousands, and whether that was all; waits a little for the first."""
        with talking():
            self._acknowledge()
            if time.monotonic() - self._beaten_s >= _BEAT_S:
                self._beat()
            if self._ready:
                heard, self._ready = self._ready, []
                return heard, False
            if not self._mine:
                time.sleep(_POLL_S)
                return [], True
            return self._read()

    def partitions(self) -> int:
        """As they were made. PreconditionError when a stream is gone."""
        with talking():
            return len(existing_streams(self._client, self._settings, self._topic))

    def close(self) -> None:
        """Leaves the group: the others share what was ours at once. Nobody is told."""
        with contextlib.suppress(CdcwatchError), talking():
            self._client.eval(lua("leave"), 2, *self._shared, self._name, len(self._streams))
        self._client.close()

    # -- whose is what -----------------------------------------------------------------------------------------------

    def _beat(self, given_up: Sequence[int] = ()) -> None:
        count = len(self._streams)
        arguments = [self._name, int(SILENT_S * 1000), count, *given_up]
        mine, surplus = self._client.evalsha(self._beat_digest, 2, *self._shared, *arguments)
        self._beaten_s = time.monotonic()
        gone = self._mine.difference(mine) - set(given_up)
        self._mine -= {*gone, *given_up}
        if gone:  # we were silent for too long
            self._holder.lost(sorted(gone), is_gone=True)
        gained = sorted(set(mine) - self._mine)
        for partition in gained:
            self._begin(partition)
        self._mine.update(gained)
        if gained or not self._has_joined or gone:
            self._has_joined = True
            self._holder.gained(gained, count)
        self._look_for_trimmed(set(gained))
        if surplus:
            self._holder.lost(sorted(surplus), is_gone=False)
            self._mine -= set(surplus)
            self._beat(surplus)

    def _begin(self, partition: int) -> None:
        """Notes its end, and fetches what stands a little before it and what others left pending."""
        stream = self._streams[partition]
        try:
            self._client.xgroup_create(stream, self._group, "$")
        except refused.ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        about = self._client.xinfo_stream(stream)
        end = about["last-generated-id"]
        self._client.xgroup_setid(stream, self._group, end, entries_read=about["entries-added"])
        self._passed[partition] = about["entries-added"]
        known: dict[bytes, dict[bytes, bytes]] = dict(self._pending(stream))
        self._heard_ids.setdefault(stream, []).extend(known)
        known |= self._client.xrevrange(stream, end, "-", OVERLAP_ENTRIES)
        for number in sorted(known, key=_order):
            self._ready.append(_heard(partition, known[number]))
        self._sweep_out(stream)

    def _pending(self, stream: str) -> list[Entry]:
        """Claimed: they were handed to somebody who has not this stream any more."""
        found: list[Entry] = []
        begin: bytes | str = "0-0"
        while True:
            begin, some, *_ = self._client.xautoclaim(stream, self._group, self._name, 0, begin, _BATCH)
            found += [entry for entry in some if entry[1] is not None]
            if begin in {b"0-0", "0-0"}:
                return found

    def _sweep_out(self, stream: str) -> None:
        """Consumers that nobody is any more."""
        alive = set(self._client.zrange(self._shared[0], 0, -1))
        for consumer in self._client.xinfo_consumers(stream, self._group):
            if consumer["name"] not in alive and not consumer["pending"]:
                self._client.xgroup_delconsumer(stream, self._group, consumer["name"])

    def _look_for_trimmed(self, new: set[int]) -> None:
        """Entries that were trimmed away before we came to them: only the table has what they told."""
        for partition in sorted(self._mine - new):
            about = self._client.xinfo_stream(self._streams[partition])
            if about["entries-added"] - about["length"] <= self._passed[partition]:
                continue
            _log.warning(
                "entries of the stream %s were trimmed or deleted before they were read; the table is read"
                " (remedy: raise redis.max_age_s)",
                self._streams[partition],
            )
            self._begin(partition)
            self._holder.gained([partition], len(self._streams))

    # -- entries -----------------------------------------------------------------------------------------------------

    def _read(self) -> tuple[list[Heard], bool]:
        streams = {self._streams[partition]: ">" for partition in sorted(self._mine)}
        try:
            found = self._client.xreadgroup(self._group, self._name, streams, count=_BATCH, block=int(_POLL_S * 1000))
        except refused.ResponseError as error:
            if "NOGROUP" in str(error) or "UNBLOCKED" in str(error):
                raise UnavailableError(
                    f"a stream of {self._topic} or its consumer group was deleted",
                    remedy="nothing: it is joined anew, and the table is read",
                ) from error
            raise
        heard: list[Heard] = []
        is_all = True
        for name, some in found or ():
            stream = name.decode()
            partition = self._streams.index(stream)
            self._passed[partition] += len(some)
            self._heard_ids.setdefault(stream, []).extend(number for number, _ in some)
            heard += [_heard(partition, fields) for _, fields in some]
            is_all = is_all and len(some) < _BATCH
        return heard, is_all

    def _acknowledge(self) -> None:
        """What was heard before is in the heap: its hearer has come back for more."""
        heard, self._heard_ids = self._heard_ids, {}
        for stream, numbers in heard.items():
            for at in range(0, len(numbers), _BATCH):
                self._client.xack(stream, self._group, *numbers[at : at + _BATCH])


def _heard(partition: int, fields: dict[bytes, bytes]) -> Heard:
    return Heard(partition, fields.get(b"key"), fields.get(b"value"))


def _order(number: bytes) -> tuple[int, int]:
    milliseconds, sequence = number.split(b"-")
    return int(milliseconds), int(sequence)
