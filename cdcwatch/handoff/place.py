"""The order of records that lie in several partitions: by their place in the stream. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import orjson

from cdcwatch.lsn import parse_lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cdcwatch.handoff.record import Record

T = TypeVar("T")
_BEFORE_ALL = -1
"""A gap stands before what follows from it."""


def in_order(found: Iterable[T], record_of: Callable[[T], Record]) -> list[T]:
    """By commit LSN and ordinal, of each server after the other; records of one place stay as they come.

    What has no place, as it is no event, stays behind what it came behind. Servers follow each other as they come.
    """
    servers: dict[str, int] = {}
    place = (0, 0, 0)
    placed = []
    for one in found:
        own = _place(record_of(one).value)
        if own is not None:
            server, lsn, ordinal = own
            place = (servers.setdefault(server, len(servers)), lsn, ordinal)
        placed.append((place, one))
    placed.sort(key=lambda both: both[0])
    return [one for _, one in placed]


def _place(value: bytes) -> tuple[str, int, int] | None:
    """Server, commit LSN and ordinal; None of what is no event and no dead letter of ours."""
    try:
        said = orjson.loads(value)
        # `cdcwatch:<system identifier>/<database>/<table>`; a dead letter names none.
        server = str(said.get("source", "")).partition("/")[0]
        kind, _, rest = str(said["id"]).partition("-")
        if kind == "gap":
            return server, parse_lsn(rest.partition("-")[0]), _BEFORE_ALL
        if kind == "snapshot":
            return server, parse_lsn(rest.partition("-")[0]), 0
        return server, parse_lsn(kind), int(rest.partition("-")[0])
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError):
        return None
