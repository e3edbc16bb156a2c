"""The streaming replication protocol, as bytes. Pure.

https://www.postgresql.org/docs/current/protocol-replication.html
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cdcwatch.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Mapping

Payload = bytes | memoryview

XLOG_DATA: Final = ord("w")
KEEPALIVE: Final = ord("k")
XLOG_DATA_HEADER_BYTES: Final = 25
"""Byte 'w', start LSN, WAL end, send time: what stands before the output plugin's bytes."""

_START_LSN = struct.Struct("!Q")
_KEEPALIVE = struct.Struct("!QqB")
_STATUS = struct.Struct("!cQQQqB")


class Keepalive(NamedTuple):
    """`k`: the server is alive; `wal_end` is the position up to which it has sent everything it had to."""

    wal_end: int
    reply_requested: bool


def start_lsn(message: Payload) -> int:
    """The position of an XLogData message."""
    lsn: int = _START_LSN.unpack_from(message, 1)[0]
    return lsn


def parse_keepalive(message: Payload) -> Keepalive:
    """A whole `k` message. DecodeError when it is cut short."""
    if len(message) < 1 + _KEEPALIVE.size:
        raise DecodeError("a keepalive message was cut short", remedy="see that nothing rewrites the connection")
    wal_end, _sent_at_us, reply = _KEEPALIVE.unpack_from(message, 1)
    return Keepalive(wal_end, reply == 1)


def standby_status_update(*, received_lsn: int, flush_lsn: int, at_us: int, reply_requested: bool = False) -> bytes:
    """`r`: received up to `received_lsn`, durable up to `flush_lsn`. `at_us`: our clock, microseconds since 2000.

    The applied position equals the flushed one: nothing else of ours depends on it.
    """
    return _STATUS.pack(b"r", received_lsn, flush_lsn, flush_lsn, at_us, reply_requested)


def start_replication(slot: str, options: Mapping[str, str], *, from_lsn: str = "0/0") -> bytes:
    """The command that begins the stream; 0/0 lets the server go on from the slot's confirmed_flush_lsn."""
    listed = ", ".join(f"{_identifier(name)} {_literal(value)}" for name, value in options.items())
    return f"START_REPLICATION SLOT {_identifier(slot)} LOGICAL {from_lsn} ({listed})".encode()


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
