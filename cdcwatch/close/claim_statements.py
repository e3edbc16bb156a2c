"""The statements of `close.action = "claim"`, composed for one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, LiteralString

from psycopg import sql

from cdcwatch.close.statements import CloseStatements, escaped, identifier, literal, raw
from cdcwatch.queries import query

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cdcwatch.table import WatchedTable


class ClaimStatements(CloseStatements):
    """Every statement of a table whose orders are claimed."""

    def __init__(self, table: WatchedTable, *, changes: Mapping[str, str], has_also: bool, page_rows: int) -> None:
        """`changes`: further columns that the last step writes, not the claim. The table names its statuses."""
        if table.status is None or table.claim is None:
            raise ValueError("a table of claims has statuses for them")
        super().__init__(table, changes=changes, has_also=has_also, page_rows=page_rows)
        keys = self._keys
        relation = sql.Identifier(table.schema, table.name).as_string()
        parts = {
            **self._parts,
            "relation": sql.SQL("{}::regclass").format(literal(relation)),
            "is_processing": sql.SQL("{}.{} = {}").format(
                self._row, identifier(table.status.name), literal(table.claim.processing)
            ),
            "claims": self._changes(table.claim.processing, {}),
            "gives_up": self._changes(table.claim.failed, {}),
            "same_key_as_ended": self._each_key("{row}.{column} = _ended.{key}", keys, " AND "),
            "same_key_as_named": self._same_key_as_named(),
            "done_keys": self._each_key("_done.{key}", keys),
            "held_keys": self._each_key("_held.{key}", keys),
            "key_outputs": self._key_outputs("{key}", keys),
            "keep": self._keep,
        }
        self.claim_batch = _block("claim_batch", **parts)
        self.take_over = _block("take_over", **parts)
        self.record_closed = _block("record_closed", **parts)
        self.record_failed = _block("record_failed", **parts)
        self.record_retry = _block("record_retry", **parts)
        self.hand_back = _block("hand_back", **parts)

    def _same_key_as_named(self) -> sql.Composed:
        """The key columns and a claim's key, which is their canonical text."""
        if len(self._table.key) == 1:
            texts = [sql.SQL("_due._name")]
        else:
            texts = [raw(f"(_due._name::json ->> {number})") for number in range(len(self._table.key))]
        return sql.SQL(" AND ").join(
            sql.SQL("{}.{} = {}::{}").format(self._row, identifier(column.name), text, raw(escaped(column.type)))
            for column, text in zip(self._table.key, texts, strict=True)
        )


def _block(name: LiteralString, **parts: sql.Composable) -> str:
    return sql.SQL(query("claim", name)).format(**parts).as_string()
