"""The statements of closing, composed for one table: identifiers quoted, literals left to the columns' own types."""

from __future__ import annotations

from typing import TYPE_CHECKING, LiteralString

from psycopg import sql

from cdcwatch.columns import after_page, deadline_instant, first_local, is_due, key_text, last_local, page_mark
from cdcwatch.decode.note import CLOSING, PREFIX
from cdcwatch.queries import expression, query
from cdcwatch.table import key_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cdcwatch.deadline.schedule import Due
    from cdcwatch.table import Key, WatchedTable


class CloseStatements:
    """Every statement of `close.action = "update"` for a table, or of "delete"."""

    def __init__(self, table: WatchedTable, *, changes: Mapping[str, str], has_also: bool, page_rows: int) -> None:
        """`changes`: further columns the close writes, and their SQL expressions (`close.set`)."""
        self._table = table
        self._row = identifier(table.name)
        self._column = sql.SQL("{}.{}").format(self._row, identifier(table.deadline.name))
        keys = [sql.SQL(f"_key_{number}") for number in range(1, len(table.key) + 1)]
        parts: dict[str, sql.Composable] = {
            "table": sql.SQL("{}.{}").format(identifier(table.schema), self._row),
            "row": self._row,
            "column": self._column,
            "deadline": deadline_instant(table, self._column),
            "keys": _listed(keys),
            "key_arrays": _listed(
                raw(f"%({_array(number)})s::{'' if table.has_integer_key else 'text[]::'}{escaped(column.type)}[]")
                for number, column in enumerate(table.key, 1)
            ),
            "row_keys": self._each_key("{row}.{column} AS {key}", keys),
            "ordered_keys": self._each_key("{row}.{column}", keys),
            "returned_keys": self._each_key("{row}.{column} AS {key}", keys),
            "same_key_as_wanted": self._each_key("{row}.{column} = _wanted.{key}", keys, " AND "),
            "same_key_as_locked": self._each_key("{row}.{column} = _locked.{key}", keys, " AND "),
            "unchanged_from_wanted": self._unchanged_from("_wanted"),
            "unchanged_from_locked": self._unchanged_from("_locked"),
            "is_open": is_open(table, self._row),
            "version": self._version(),
            "changes": self._changes(table.closed_status, changes),
            "status": self._status(),
        }
        kept = self._closed_columns("{key}", keys, "_column", "_version")
        keep = sql.SQL(query("close", "keep_closed")).format(columns=kept) if has_also else sql.SQL("")
        self._keys, self._parts, self._keep = keys, parts, keep
        way = "deletes_locked" if table.deletes else "updates_locked"
        self.close_batch = _block(
            "close_batch",
            **parts,
            key_outputs=self._key_outputs("{key}", keys),
            keep=keep,
            note=self._note() if table.deletes else sql.SQL(""),
            close=sql.SQL(expression("close", way)).format(**parts),
            same_key_as_closed=self._each_key("_closed.{key} = _locked.{key}", keys, " AND "),
        )
        self.make_closed = _block(
            "make_closed",
            columns=self._closed_columns("{row}.{column}", keys, None, None),
            table=parts["table"],
            row=self._row,
        )
        self.page_parameter: LiteralString = "page" if table.zone else "after"
        """Takes the mark of a page's last row, from which `next_page` goes on."""
        outputs = self._key_outputs("{row}.{column}", keys)
        self.read_again = _block("read_again", **parts, key_outputs=outputs)
        page = {
            **parts,
            "key_outputs": outputs,
            "page_rows": sql.Literal(page_rows),
            "mark": page_mark(table, self._column),
        }
        # `-infinity` is a deadline too: only a range from the beginning may take in its lower bound.
        self.first_of_all = _block("open_deadlines", **page, in_range=self._in_range("after", takes_in_bound=True))
        self.first_page = _block("open_deadlines", **page, in_range=self._in_range("after"))
        self.next_page = _block("open_deadlines", **page, in_range=self._in_range(self.page_parameter))

        overdue = {
            **page,
            "is_overdue": is_due(table, self._column, sql.SQL(expression("sweep", "grace_ago"))),
        }
        self.overdue = _composed(query("sweep", "overdue"), **overdue, begin=sql.SQL(""))
        mark = sql.SQL("%(mark)s::timestamptz")
        from_mark = sql.SQL(expression("sweep", "from_mark")).format(column=self._column, first=after_page(table, mark))
        self.overdue_from_mark = _composed(query("sweep", "overdue"), **overdue, begin=from_mark)
        self.overdue_since = _composed(query("sweep", "overdue"), **overdue, begin=self._since())

    def key_parameters(self, keys: Iterable[Key]) -> dict[str, object]:
        """The parameters of `{key_arrays}`: an array for each key column."""
        if self._table.has_integer_key:
            return {_array(1): _integer_array(int(key) for key in keys)}
        columns = zip(*(key_texts(key, len(self._table.key)) for key in keys), strict=True)
        return {_array(number): list(texts) for number, texts in enumerate(columns, 1)}

    def close_parameters(self, batch: Sequence[Due]) -> dict[str, object]:
        """The parameters of `close_batch`."""
        return {
            **self.key_parameters(due.key for due in batch),
            "versions": _integer_array(due.version for due in batch),
        }

    def _each_key(
        self, template: LiteralString, keys: Sequence[sql.SQL], separator: LiteralString = ", "
    ) -> sql.Composed:
        return sql.SQL(separator).join(
            sql.SQL(template).format(row=self._row, column=identifier(column.name), key=key)
            for column, key in zip(self._table.key, keys, strict=True)
        )

    def _key_outputs(self, place: LiteralString, keys: Sequence[sql.SQL]) -> sql.Composed:
        """The keys, and their texts as the stream has them where the key isn't one integer."""
        if self._table.has_integer_key:
            return self._each_key(place, keys)
        return _listed(
            key_text(column, sql.SQL(place).format(row=self._row, column=identifier(column.name), key=key))
            for column, key in zip(self._table.key, keys, strict=True)
        )

    def _note(self) -> sql.Composed:
        """The part of `close_batch` that writes a `cdcwatch.decode.note.Closing` before the rows are gone."""
        table, keys = self._table, self._keys
        noted: sql.Composable = keys[0]
        if not table.has_integer_key:
            texts = [
                sql.SQL(expression("close", "hex_text")).format(text=key_text(column, key))
                for column, key in zip(table.key, keys, strict=True)
            ]
            noted = sql.SQL(expression("close", "hex_texts")).format(texts=_listed(texts))
        return sql.SQL(expression("close", "note_locked")).format(
            prefix=sql.Literal(PREFIX), kind=sql.Literal(CLOSING), oid=sql.Literal(table.oid), noted_key=noted
        )

    def _in_range(self, begin: LiteralString, *, takes_in_bound: bool = False) -> sql.Composable:
        """From the parameter `begin`, an instant (`after`) or a local time (`page`), to the instant `through`."""
        table, is_first = self._table, begin == "after"
        at, after = sql.SQL(f"%({begin})s::timestamptz"), sql.SQL(">=" if takes_in_bound else ">")
        if not table.zone:
            return sql.SQL(expression("close", "between_instants")).format(column=self._column, after=after, first=at)
        return sql.SQL(expression("close", "between_local_times")).format(
            column=self._column,
            after=sql.SQL(">=" if is_first else ">"),
            first=first_local(table, at) if is_first else after_page(table, at),
            last=last_local(table, sql.SQL("%(through)s::timestamptz")),
            deadline=deadline_instant(table, self._column),
            after_exactly=after,
        )

    def _since(self) -> sql.Composable:
        """Deadlines after the instant `since`, by the index, which has local times where the deadline has no zone."""
        since = sql.SQL("%(since)s::timestamptz")
        exactly = sql.SQL(" AND {} > {}").format(deadline_instant(self._table, self._column), since)
        if not self._table.zone:
            return exactly
        by_index = sql.SQL(expression("sweep", "from_mark"))
        return by_index.format(column=self._column, first=first_local(self._table, since)) + exactly

    def _version(self) -> sql.Composable:
        """A NULL version counts as 0: it must compare equal to itself."""
        if self._table.version is None:
            return sql.SQL("0::bigint")
        return sql.SQL("coalesce({}.{}, 0)").format(self._row, identifier(self._table.version.name))

    def _unchanged_from(self, relation: LiteralString) -> sql.Composable:
        if self._table.version is None:
            return sql.SQL("true")
        return sql.SQL("{} = {}._version").format(self._version(), sql.SQL(relation))

    def _status(self) -> sql.Composable:
        if self._table.status is None:
            return sql.SQL("NULL::text")
        return sql.SQL("{}.{}::text").format(self._row, identifier(self._table.status.name))

    def _changes(self, status: str, changes: Mapping[str, str]) -> sql.Composed:
        table = self._table
        assignments: list[sql.Composable] = []
        if table.status is not None:
            assignments.append(sql.SQL("{} = {}").format(identifier(table.status.name), literal(status)))
        if table.version is not None:
            assignments.append(sql.SQL("{} = {} + 1").format(identifier(table.version.name), self._version()))
        assignments += [
            sql.SQL("{} = ({})").format(identifier(column), raw(escaped(expression)))
            for column, expression in changes.items()
        ]
        return _listed(assignments)

    def _closed_columns(
        self, key: LiteralString, keys: Sequence[sql.SQL], deadline: LiteralString | None, version: LiteralString | None
    ) -> sql.Composed:
        """The columns of `closed`: the keys and the deadline under their own names, and `version`."""
        columns = [
            sql.SQL(f"{key} AS {{column}}").format(row=self._row, column=identifier(column.name), key=name)
            for column, name in zip(self._table.key, keys, strict=True)
        ]
        source = self._column if deadline is None else sql.SQL(deadline)
        columns.append(sql.SQL("{} AS {}").format(source, identifier(self._table.deadline.name)))
        if self._table.version is not None:
            columns.append(sql.SQL("{} AS version").format(self._version() if version is None else sql.SQL(version)))
        return _listed(columns)


def is_open(table: WatchedTable, row: sql.Composable) -> sql.Composable:
    """The predicate of an open order, in the form that a partial index `WHERE status = 'pending'` can serve."""
    if table.status is None:
        return sql.SQL("true")
    return sql.SQL("{}.{} IN ({})").format(
        row, identifier(table.status.name), _listed(literal(status) for status in sorted(table.open))
    )


def identifier(name: str) -> sql.Identifier:
    """A quoted name for a statement with parameters, in which a percent sign must be doubled."""
    return sql.Identifier(escaped(name))


def literal(text: str) -> sql.SQL:
    """A literal of unknown type, which takes the type of the column it is compared with: an enum's, an integer's."""
    return raw(escaped(sql.Literal(text).as_string()))


def escaped(text: str) -> str:
    """With percent signs doubled."""
    return text.replace("%", "%%")


def raw(text: str) -> sql.SQL:
    """SQL that comes from the configuration or the catalog, as it is."""
    return sql.SQL(text)


def _array(number: int) -> str:
    return f"key_{number}"


def _integer_array(values: Iterable[int]) -> str:
    """An array's text, a fifth of the time that adapting a list takes."""
    return f"{{{','.join(map(str, values))}}}"


def _listed(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


def _block(name: LiteralString, **parts: sql.Composable) -> str:
    """Composed once: psycopg would put the pieces together again, and look for placeholders, at every execution."""
    return _composed(query("close", name), **parts)


def _composed(block: LiteralString, **parts: sql.Composable) -> str:
    return sql.SQL(block).format(**parts).as_string()
