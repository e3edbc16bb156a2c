"""Messages as pgoutput writes them, protocol version 1.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import EllipsisType

    from cdcwatch.table import WatchedTable

OIDS = {"id": 20, "note": 25, "status": 25, "expires_at": 1184, "version": 23}
"""The types of a table of orders; the deadline has the watched one's, others are texts."""
_DEADLINES = {"timestamp with time zone": 1184, "timestamp without time zone": 1114, "date": 1082}


def begin(commit_lsn: int, time_us: int, xid: int) -> bytes:
    return b"B" + struct.pack("!QqI", commit_lsn, time_us, xid)


def commit(commit_lsn: int, end_lsn: int, time_us: int) -> bytes:
    return b"C" + struct.pack("!BQQq", 0, commit_lsn, end_lsn, time_us)


def relation(
    oid: int, table: WatchedTable, columns: Sequence[str], identity: Sequence[str], *, full: bool = False
) -> bytes:
    """`columns` of OIDS, in this order; those of `identity` belong to the replica identity."""
    head = b"R" + struct.pack("!I", oid) + table.schema.encode() + b"\0" + table.name.encode() + b"\0"
    described = b"".join(
        bytes([name in identity])
        + name.encode()
        + b"\0"
        + struct.pack(
            "!II", _DEADLINES[table.deadline.kind] if name == table.deadline.name else OIDS.get(name, 25), 2**32 - 1
        )
        for name in columns
    )
    return head + (b"f" if full else b"d") + struct.pack("!h", len(columns)) + described


def row_change(
    action: str,
    oid: int,
    *,
    new: Sequence[bytes | EllipsisType | None] | None = None,
    old: Sequence[bytes | EllipsisType | None] | None = None,
    kind: str = "K",
    binary: bool,
) -> bytes:
    """I, U or D. A value is bytes, None for NULL or ... for a TOASTed one that was not sent again."""
    message = action.encode() + struct.pack("!I", oid)
    if old is not None:
        message += kind.encode() + _tuple(old, binary=binary)
    return message if new is None else message + b"N" + _tuple(new, binary=binary)


def truncate(*oids: int) -> bytes:
    return b"T" + struct.pack("!IB", len(oids), 0) + b"".join(struct.pack("!I", oid) for oid in oids)


def _tuple(values: Sequence[bytes | EllipsisType | None], *, binary: bool) -> bytes:
    mark = b"b" if binary else b"t"
    return struct.pack("!h", len(values)) + b"".join(
        b"n"
        if value is None
        else b"u"
        if isinstance(value, type(...))
        else mark + struct.pack("!I", len(value)) + value
        for value in values
    )
