"""Lines as wal2json 2.5 writes them, format version 2, with the options that the decoder asks for."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from cdcwatch.instant import instant_sql
from cdcwatch.lsn import format_lsn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdcwatch.table import WatchedTable


class Digits(str):
    """A number written as it stands: `1.10`."""

    __slots__ = ()


def render(
    action: str,
    table: WatchedTable,
    *,
    columns: Mapping[str, Any] | None = None,
    identity: Mapping[str, Any] | None = None,
    xid: int = 727,
    time_us: int = 850_000_000_123_456,
    lsn: int = 0x1948_0F8,
) -> bytes:
    """I, U, D or T; values: int, Digits, bool, str, None."""
    parts = [
        f'{{"action":"{action}",{_transaction(xid, time_us)},"lsn":"{format_lsn(lsn)}"',
        f'"schema":{text(table.schema)},"table":{text(table.name)}',
    ]
    parts += [
        f'"{part}":[{",".join(f"""{{"name":{text(name)},"value":{_value(value)}}}""" for name, value in values.items())}]'
        for part, values in (("columns", columns), ("identity", identity))
        if values is not None
    ]
    return (",".join(parts) + "}").encode()


def message(content: str, *, lsn: int, xid: int = 727, time_us: int = 850_000_000_123_456) -> bytes:
    """A transactional logical message with our prefix."""
    head = f'{{"action":"M",{_transaction(xid, time_us)},"lsn":"{format_lsn(lsn)}","transactional":true'
    return f'{head},"prefix":"cdcwatch","content":{text(content)}}}'.encode()


def begin(commit_lsn: int, end_lsn: int, *, xid: int = 727, time_us: int = 850_000_000_123_456) -> bytes:
    return _boundary("B", commit_lsn, end_lsn, xid, time_us)


def commit(commit_lsn: int, end_lsn: int, *, xid: int = 727, time_us: int = 850_000_000_123_456) -> bytes:
    return _boundary("C", commit_lsn, end_lsn, xid, time_us)


def _boundary(action: str, commit_lsn: int, end_lsn: int, xid: int, time_us: int) -> bytes:
    positions = f'"lsn":"{format_lsn(commit_lsn)}","nextlsn":"{format_lsn(end_lsn)}"'
    return f'{{"action":"{action}",{_transaction(xid, time_us)},{positions}}}'.encode()


def _transaction(xid: int, time_us: int) -> str:
    return f'"xid":{xid},"timestamp":"{instant(time_us)}"'


def instant(us: int) -> str:
    """As the server writes it in ISO and UTC: without the zeros at the end of a fraction."""
    whole, plus, rest = instant_sql(us).partition("+")
    return whole.rstrip("0").rstrip(".") + plus + rest if plus else whole


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | Digits) else text(value)


def text(value: str) -> str:
    """JSON as PostgreSQL's escape_json makes it: quotes, backslashes and control characters, nothing beyond ASCII."""
    return json.dumps(value, ensure_ascii=False)
