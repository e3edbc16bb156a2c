"""wal2json on a partitioned table: it names the partition of every row, never the table.

No list of partitions is asked of the server: one that is attached while the stream runs would be filtered out, and
confirmed. Everything comes, and which tables are partitions is decided here. A name that was never seen is asked for
before the stream goes on, so that no row of a new partition is passed over.
https://www.postgresql.org/docs/current/ddl-partitioning.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal

import orjson
from msgspec.structs import replace

from cdcwatch.decode.cutter import Cutter
from cdcwatch.decode.wal2json import Wal2JsonDecoder, is_cut
from cdcwatch.errors import GapError
from cdcwatch.lsn import parse_lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from cdcwatch.decode.change import Message
    from cdcwatch.table import Leaf, WatchedTable

Standing = Literal["leaf", "foreign", "gone"]
"""What the catalog says of a table's name now: a partition of ours, another table, or nothing of that name."""
LEAF: Final = "leaf"
FOREIGN: Final = "foreign"
GONE: Final = "gone"

_ACTION_AT: Final = len('{"action":"')
_SCHEMA: Final = b'"schema":'
_ROWS: Final = {b"I": b',"columns":[', b"U": b',"columns":[', b"D": b',"identity":['}
_UNSEEN: Final = object()


def nobody_asks(_schema: str, _name: str) -> Standing:
    """For those who look on only: what the catalog did not show a moment ago is another table."""
    return FOREIGN


class Leaves:
    """Which of the stream's names are partitions. Outlives connections; other threads admit and dismiss."""

    def __init__(self, table: WatchedTable, ask: Callable[[str, str], Standing] = nobody_asks) -> None:
        """`ask` looks a name up in the catalog; it may raise UnavailableError, and the stream is taken again."""
        self._table, self._ask = table, ask
        self._is_cut = is_cut(table)
        self._heads: dict[bytes, Cutter | bool] = {}
        self._forgiven_lsn = 0
        for leaf in table.leaves or ():
            self.admit(leaf)

    def admit(self, leaf: Leaf) -> None:
        """From now on its rows are ours."""
        head = _head(leaf.schema, leaf.name)
        if not self._heads.get(head):
            of_leaf = replace(self._table, schema=leaf.schema, name=leaf.name)
            # Each its own: attached tables have their columns in any order.
            self._heads[head] = Cutter(of_leaf) if self._is_cut else True

    def dismiss(self, leaf: Leaf) -> None:
        """From now on they are not; a later partition of that name is asked for again."""
        self._heads.pop(_head(leaf.schema, leaf.name), None)

    def has(self, schema: str, name: str) -> bool:
        """Whether rows of that name are ours, as far as is known."""
        return bool(self._heads.get(_head(schema, name)))

    def forgive_before(self, lsn: int) -> None:
        """Rows before it, of tables that are gone, are passed over: the table was read after them."""
        self._forgiven_lsn = lsn

    def cutter_of(self, line: bytes, action: bytes) -> Cutter | bool:
        """For a row: whether it is ours, with the cutter of its partition where there is one."""
        begin = line.find(_SCHEMA)
        head = line[begin : line.find(_ROWS[action], begin)]
        known = self._heads.get(head, _UNSEEN)
        return self._asked(head, line) if known is _UNSEEN else known  # type: ignore[return-value]

    def _asked(self, head: bytes, line: bytes) -> Cutter | bool:
        try:
            name = orjson.loads(b"{%b}" % head)
            schema, table = str(name["schema"]), str(name["table"])
        except (ValueError, KeyError, TypeError):
            return True  # the whole parser tells what is wrong with it
        standing = self._ask(schema, table)
        if standing == LEAF:
            of_leaf = replace(self._table, schema=schema, name=table)
            self._heads[head] = Cutter(of_leaf) if self._is_cut else True
            return self._heads[head]
        if standing == GONE and self._may_be_ours(line):
            raise GapError(
                f"the stream has rows of {schema}.{table}, which is gone: whether it was a partition of"
                f" {self._table.qualified_name} can't be told any more",
                remedy="cdcwatch run --accept-gap reads the table again and passes them over",
            )
        if standing != GONE:  # one that is gone may be made again, as a partition
            self._heads[head] = False
        return False

    def _may_be_ours(self, line: bytes) -> bool:
        """Whether a row has all that ours have, or can't be read at all."""
        try:
            row = orjson.loads(line)
            if parse_lsn(row["lsn"]) < self._forgiven_lsn:
                return False
            names = {column["name"] for column in (*row.get("columns", ()), *row.get("identity", ()))}
        except (ValueError, KeyError, TypeError):
            return True
        table = self._table
        wanted = {column.name for column in table.key}
        if "columns" in row:
            wanted |= {column.name for column in (table.deadline, table.status, table.version) if column is not None}
        return wanted <= names


class PartitionedWal2JsonDecoder(Wal2JsonDecoder):
    """Reads the rows of every partition as rows of the table."""

    def __init__(self, table: WatchedTable, leaves: Leaves) -> None:
        super().__init__(table)
        self._leaves = leaves

    def options(self) -> Mapping[str, str]:
        """Without a filter."""
        return {name: value for name, value in super().options().items() if name != "add-tables"}

    def decode(self, payload: bytes | memoryview) -> Message | None:
        """One line. Of a TRUNCATE, which names the table and every partition, the table's line alone."""
        line = bytes(payload)
        action = line[_ACTION_AT : _ACTION_AT + 1]
        if action not in _ROWS:
            return self._boundaries.cut(line) or self._parse(line)
        cutter = self._leaves.cutter_of(line, action)
        if cutter is False:
            return None
        change = cutter.cut(line) if cutter is not True else None
        return change if change is not None else self._parse(line)

    def _is_ours(self, line: Mapping[str, Any]) -> bool:
        """Rows of others don't get here."""
        return line["action"] != "T" or super()._is_ours(line)


def _head(schema: str, name: str) -> bytes:
    """As a row's line has it, up to its columns."""
    return f'"schema":{_quoted(schema)},"table":{_quoted(name)}'.encode()


def _quoted(text: str) -> str:
    return orjson.dumps(text).decode()
