"""A slot's stream in memory, with the bytes of the real one."""

from __future__ import annotations

import struct
from collections import deque
from dataclasses import dataclass, field
from typing import NamedTuple

from cdcwatch.errors import UnavailableError
from cdcwatch.slot.protocol import KEEPALIVE, XLOG_DATA, parse_keepalive, start_lsn
from cdcwatch.slot.stream import SlotFacts

FACTS = SlotFacts(
    system_identifier="7301234567890123456",
    timeline=1,
    database="shop",
    plugin="wal2json",
    confirmed_flush_lsn=0x1000,
    wal_sender_timeout_s=60.0,
    walsender_pid=4711,
)


class Status(NamedTuple):
    """What a status update told the server."""

    flush_lsn: int
    received_lsn: int
    reply_requested: bool


def xlog_data(payload: bytes, lsn: int) -> bytes:
    """A `w` message."""
    return b"w" + struct.pack("!QQq", lsn, lsn, 0) + payload


def keepalive(wal_end: int, *, reply_requested: bool = False) -> bytes:
    """A `k` message."""
    return b"k" + struct.pack("!QqB", wal_end, 0, reply_requested)


def take(arrived: deque[bytes], limit_bytes: int, received_lsn: int) -> tuple[list[memoryview], int]:
    """What a read takes of the messages that have arrived, and the last position that has come in with it."""
    taken: list[memoryview] = []
    size_bytes = 0
    while arrived and size_bytes < limit_bytes:
        message = memoryview(arrived.popleft())
        size_bytes += len(message)
        taken.append(message)
        if message[0] == XLOG_DATA:
            received_lsn = max(received_lsn, start_lsn(message))
        elif message[0] == KEEPALIVE:
            received_lsn = max(received_lsn, parse_keepalive(message).wal_end)
    return taken, received_lsn


@dataclass
class FakeStream:
    """Keeps SlotStream's contract. Tests put messages into `incoming` and look at `statuses`."""

    received_lsn: int = FACTS.confirmed_flush_lsn
    incoming: deque[bytes] = field(default_factory=deque)
    statuses: list[Status] = field(default_factory=list)
    is_up: bool = True
    is_closed: bool = False
    read_count: int = 0

    def fileno(self) -> int:
        """There is nothing to wait on."""
        return -1

    def read(self, limit_bytes: int) -> list[memoryview]:
        self._check()
        self.read_count += 1
        taken, self.received_lsn = take(self.incoming, limit_bytes, self.received_lsn)
        return taken

    def send_status(self, flush_lsn: int, *, reply_requested: bool = False) -> None:
        self._check()
        self.statuses.append(Status(flush_lsn, self.received_lsn, reply_requested))

    def close(self) -> None:
        self.is_closed = True

    def _check(self) -> None:
        if not self.is_up or self.is_closed:
            raise UnavailableError("the replication connection broke", remedy="it connects again by itself")
