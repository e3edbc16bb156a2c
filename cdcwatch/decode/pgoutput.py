"""pgoutput, protocol version 1: PostgreSQL's own output plugin, in binary where every watched column's type allows it.

https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
import uuid
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from cdcwatch.decode.change import DELETE, INSERT, UPDATE, Begin, Change, Commit, Row, Truncate, is_filled_up, no_column
from cdcwatch.decode.fields import COLUMN_COUNT, INT4, INT8, UNCHANGED, expect, integer_of, name_at, tuple_at
from cdcwatch.decode.note import PREFIX, parse_note
from cdcwatch.decode.templates import Places, Templates
from cdcwatch.decode.unreadable import VALUE_ERRORS, unreadable
from cdcwatch.errors import DecodeError
from cdcwatch.instant import DAY_US, INFINITY_US, NEGATIVE_INFINITY_US
from cdcwatch.table import canonical_key
from cdcwatch.zone import Zone, deadline_parser

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cdcwatch.decode.change import Message, Unreadable
    from cdcwatch.decode.note import Note
    from cdcwatch.table import Column, Key, WatchedTable

_BEGIN: Final = struct.Struct("!QqI")
_COMMIT: Final = struct.Struct("!QQ")  # behind the flags
_OID: Final = struct.Struct("!I")
_RELATION_COLUMN: Final = struct.Struct("!II")  # type OID and type modifier, behind the name
_MESSAGE: Final = struct.Struct("!BQ")
_TRUNCATE: Final = struct.Struct("!IB")

_NEW, _OLD_KEY, _OLD_ROW = (ord(kind) for kind in "NKO")
_FULL: Final = ord("f")
_PLUGIN: Final = "pgoutput"
_new = tuple.__new__  # what a NamedTuple's own constructor comes to, in half the time
_MOST_STATUSES: Final = 1000
_REMEDY: Final = "see docs/runbook.md, 'A row that cannot be understood'"

_DEADLINE_OIDS: Final = {"timestamp with time zone": 1184, "timestamp without time zone": 1114, "date": 1082}
_INFINITE_DAYS: Final = {2**31 - 1: INFINITY_US, -(2**31): NEGATIVE_INFINITY_US}
_BOOLEAN: Final = 16
_INTEGERS: Final = frozenset({20, 21, 23})
_TEXTS: Final = frozenset({25, 1042, 1043})
_UUID: Final = 2950
_BINARY_TYPES: Final = frozenset(
    {
        "bigint",
        "integer",
        "smallint",
        "text",
        "character varying",
        "character",
        "uuid",
        "boolean",
    }
)


def speaks_binary(table: WatchedTable) -> bool:
    """Whether each watched column's binary form is one that we read; else the stream is in text."""
    columns = [*table.key, table.status, table.version]
    # A deadline's is read for each of its types; a domain has an OID of its own, by which the stream tells its type.
    return all(column.kind in _BINARY_TYPES and not column.base for column in columns if column is not None)


class _Layout(Struct, frozen=True):
    """Where a relation's watched columns stand in its tuples, and how they are read; from a Relation message."""

    is_ours: bool
    width: int = 0
    key: tuple[int, ...] = ()
    deadline: int = -1
    status: int = -1
    version: int = -1
    types: tuple[int, ...] = ()
    logs_old_row: bool = False
    """Whether the replica identity holds deadline and status: then no old tuple means that neither changed."""
    logs_version: bool = False


class PgoutputDecoder:
    """Reads the watched table's messages; relations are learnt anew on each connection."""

    def __init__(self, table: WatchedTable, publication: str, *, binary: bool, notes: bool = False) -> None:
        """`binary`: the server is PostgreSQL 14 or later, and `speaks_binary` of the table.

        `notes`: it is PostgreSQL 14 or later, which sends logical messages when asked.
        """
        self._table, self._publication, self._binary, self._notes = table, publication, binary, notes
        self._integer_key = table.has_integer_key
        self._is_status_filled_up = is_filled_up(table.status)
        self._deadline_oid = _DEADLINE_OIDS[table.deadline.kind]
        self._is_binary_instant = binary and not table.zone
        self._instant_of = _local_reader(table) if binary and table.zone else _text_reader(table)
        self._layouts: dict[int, _Layout] = {}
        self._statuses: dict[bytes, str] = {}
        self._templates = Templates()
        self._readers: dict[int, Callable[[bytes], Message | None]] = {
            ord("B"): self._begin,
            ord("C"): self._commit,
            ord("R"): self._relation,
            ord("I"): self._insert,
            ord("U"): self._update,
            ord("D"): self._delete,
            ord("T"): self._truncate,
            ord("Y"): _nothing,  # a type's name: values are read by OID
            ord("O"): _nothing,  # a replication origin: such rows are like any other
            ord("M"): self._note,
        }

    def options(self) -> Mapping[str, str]:
        """Names the publication; the server sends its tables and columns only."""
        name = '"' + self._publication.replace('"', '""') + '"'
        options = {"proto_version": "1", "publication_names": name}
        if self._notes:
            options["messages"] = "true"
        return {**options, "binary": "true"} if self._binary else options

    def decode(self, payload: bytes | memoryview) -> Message | None:
        """One message."""
        data = bytes(payload)
        try:
            return self._readers[data[0]](data)
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, struct.error) as error:
            # The kind of error only: the text of it may quote the row.
            kind = type(error).__name__
            raise DecodeError(f"pgoutput sent a message that can't be read ({kind})", remedy=_REMEDY) from None

    @staticmethod
    def _begin(data: bytes) -> Begin:
        return _new(Begin, _BEGIN.unpack_from(data, 1))  # commit LSN, time, xid

    @staticmethod
    def _commit(data: bytes) -> Commit:
        return _new(Commit, _COMMIT.unpack_from(data, 2))  # commit LSN, end LSN

    def _note(self, data: bytes) -> Note | None:
        """A logical message; None where it isn't one of ours."""
        is_transactional, _lsn = _MESSAGE.unpack_from(data, 1)
        prefix, at = name_at(data, 1 + _MESSAGE.size)
        is_ours = is_transactional and prefix == PREFIX
        return parse_note(data[at + INT4.size :], self._table) if is_ours else None

    def _relation(self, data: bytes) -> None:
        """A table's shape as of the changes that follow: sent before the first of them and after every DDL."""
        (relation,) = _OID.unpack_from(data, 1)
        schema, at = name_at(data, 5)
        table, at = name_at(data, at)
        # By the OID it is found under every name that it had; a description without one is a test's.
        ours = self._table
        if relation != ours.oid if ours.oid else (schema, table) != (ours.schema, ours.name):
            self._layouts[relation] = _Layout(is_ours=False)
            return
        identity_kind = data[at]
        (width,) = COLUMN_COUNT.unpack_from(data, at + 1)
        at += 3
        places: dict[str, int] = {}
        in_identity, types = [], []
        for place in range(width):
            in_identity.append(identity_kind == _FULL or bool(data[at] & 1))
            name, at = name_at(data, at + 1)
            type_oid, _modifier = _RELATION_COLUMN.unpack_from(data, at)
            at += _RELATION_COLUMN.size
            places[name] = place
            types.append(type_oid)
        for column in (*self._table.key, self._table.status):
            if column is not None and column.base and column.kind == "boolean":
                types[_place(places, column)] = _BOOLEAN  # a domain over it is written alike
        self._layouts[relation] = layout = self._layout(width, places, in_identity, types)
        self._templates.begin(self._usual_places(layout))

    def _layout(
        self, width: int, places: Mapping[str, int], in_identity: Sequence[bool], types: Sequence[int]
    ) -> _Layout:
        table = self._table
        deadline = _place(places, table.deadline)
        status = _place(places, table.status) if table.status else -1
        version = _place(places, table.version) if table.version else -1
        return _Layout(
            is_ours=True,
            width=width,
            key=tuple(_place(places, column) for column in table.key),
            deadline=deadline,
            status=status,
            version=version,
            types=tuple(types),
            logs_old_row=in_identity[deadline] and (status < 0 or in_identity[status]),
            logs_version=version >= 0 and in_identity[version],
        )

    def _usual_places(self, layout: _Layout) -> Places | None:
        """For tables whose rows have a usual shape."""
        whole = self._integer_key and layout.status >= 0 and layout.version >= 0
        types = layout.types
        if not (whole and self._is_binary_instant and types[layout.deadline] == self._deadline_oid):
            return None
        if types[layout.status] not in _TEXTS:
            return None
        places = (layout.key[0], layout.deadline, layout.version, layout.status)
        return Places(*places, layout.logs_old_row, layout.logs_version)

    def _insert(self, data: bytes) -> Change | Unreadable | None:
        usual = self._templates.read(data)
        if usual is not None:
            return usual
        layout = self._layouts[_OID.unpack_from(data, 1)[0]]
        if not layout.is_ours:
            return None
        values, _ = tuple_at(data, expect(data, 5, _NEW), layout.width)
        try:
            change = Change(INSERT, self._key_of(values, layout), self._row(values, layout), None)
        except VALUE_ERRORS:
            return unreadable(_PLUGIN, data, self._parts(values, layout))
        self._templates.learn(data, change)
        return change

    def _update(self, data: bytes) -> Change | Unreadable | None:
        usual = self._templates.read(data)
        if usual is not None:
            return usual
        layout = self._layouts[_OID.unpack_from(data, 1)[0]]
        if not layout.is_ours:
            return None
        at = 5
        old_values = None
        if data[at] in (_OLD_KEY, _OLD_ROW):
            old_values, at = tuple_at(data, at + 1, layout.width)
        values, _ = tuple_at(data, expect(data, at, _NEW), layout.width)
        if old_values is not None:
            # An unchanged TOASTed value is not sent again: what the old row logged of it still holds.
            values = [old if value is UNCHANGED else value for value, old in zip(values, old_values, strict=True)]
        try:
            change = self._updated(values, old_values, layout)
        except VALUE_ERRORS:
            parts = [*self._parts(values, layout)]
            if old_values is not None:
                parts += self._parts(old_values, layout, "the old ", whole=layout.logs_old_row)
            return unreadable(_PLUGIN, data, parts)
        self._templates.learn(data, change)
        return change

    def _updated(self, values: Sequence[Any], old_values: Sequence[Any] | None, layout: _Layout) -> Change:
        key, new = self._key_of(values, layout), self._row(values, layout)
        if not layout.logs_old_row:
            old_key = key if old_values is None else self._key_of(old_values, layout)
            return Change(UPDATE, key, new, None, None if old_key == key else old_key)
        if old_values is None:
            # None of the identity's columns changed.
            return Change(UPDATE, key, new, new if layout.logs_version else Row(new.deadline_us, new.status, None))
        old_key = self._key_of(old_values, layout)
        return Change(UPDATE, key, new, self._old_row(old_values, layout), None if old_key == key else old_key)

    def _delete(self, data: bytes) -> Change | Unreadable | None:
        layout = self._layouts[_OID.unpack_from(data, 1)[0]]
        if not layout.is_ours:
            return None
        if data[5] not in (_OLD_KEY, _OLD_ROW):
            raise ValueError
        values, _ = tuple_at(data, 6, layout.width)
        try:
            old = self._old_row(values, layout) if layout.logs_old_row else None
            return Change(DELETE, self._key_of(values, layout), None, old)
        except VALUE_ERRORS:
            return unreadable(_PLUGIN, data, self._parts(values, layout, "the old ", whole=layout.logs_old_row))

    def _parts(
        self, values: Sequence[Any], layout: _Layout, which: str = "", *, whole: bool = True
    ) -> Iterator[tuple[str, Callable[[], object]]]:
        """What a tuple is made of, for `unreadable`."""
        yield f"{which}key", partial(self._key_of, values, layout)
        if not whole:
            return
        table, types = self._table, layout.types
        place = layout.deadline
        yield f"{which}column {table.deadline.name!r}", partial(self._instant, values[place], types[place])
        if table.status is not None:
            place = layout.status
            yield f"{which}column {table.status.name!r}", partial(self._status, values[place], types[place])
        if table.version is not None:
            yield f"{which}column {table.version.name!r}", partial(self._version, values[layout.version])

    def _truncate(self, data: bytes) -> Truncate | None:
        return Truncate() if any(self._layouts[relation].is_ours for relation in truncated_relations(data)) else None

    def reads(self, relation: int) -> bool:
        """Whether the relation with that OID was described, and is the watched table."""
        layout = self._layouts.get(relation)
        return layout is not None and layout.is_ours

    def _key_of(self, values: Sequence[Any], layout: _Layout) -> Key:
        if self._integer_key:
            place = layout.key[0]
            return integer_of(values[place], binary=self._binary)
        return canonical_key([self._text(values[place], layout.types[place]) for place in layout.key], integer=False)

    def _row(self, values: Sequence[Any], layout: _Layout) -> Row:
        return Row(
            self._instant(values[layout.deadline], layout.types[layout.deadline]),
            None if layout.status < 0 else self._status(values[layout.status], layout.types[layout.status]),
            None if layout.version < 0 else self._version(values[layout.version]),
        )

    def _old_row(self, values: Sequence[Any], layout: _Layout) -> Row:
        row = self._row(values, layout)
        return row if layout.logs_version else Row(row.deadline_us, row.status, None)

    def _instant(self, value: Any, type_oid: int) -> int | None:
        if value is None:
            return None
        if type_oid != self._deadline_oid:
            raise DecodeError(
                f"the deadline column is no {self._table.deadline.type} any more",
                remedy="see `cdcwatch check`, and start again",
            )
        instant_us: int = INT8.unpack(value)[0] if self._is_binary_instant else self._instant_of(value)
        return instant_us

    def _version(self, value: Any) -> int | None:
        return None if value is None else integer_of(value, binary=self._binary)

    def _status(self, value: Any, type_oid: int) -> str | None:
        if value is None:
            return None
        known = self._statuses.get(value)
        if known is None:
            known = self._text(value, type_oid)
            if self._is_status_filled_up:
                known = known.rstrip(" ")
            if len(self._statuses) < _MOST_STATUSES:
                self._statuses[value] = known
        return known

    def _text(self, value: Any, type_oid: int) -> str:
        """A column's text as PostgreSQL writes it; booleans as the words that the configuration uses."""
        if value is None or value is UNCHANGED:
            raise ValueError
        if type_oid == _BOOLEAN:
            return "true" if value in (b"\x01", b"t") else "false"
        if not self._binary or type_oid in _TEXTS:
            return str(value, "utf-8")
        if type_oid in _INTEGERS:
            return str(integer_of(value, binary=True))
        if type_oid == _UUID:
            return str(uuid.UUID(bytes=value))
        raise DecodeError("a watched column's type was changed", remedy="start again: the catalog is read at the start")


def truncated_relations(data: bytes) -> tuple[int, ...]:
    """The OIDs that a Truncate message names. struct.error when it is cut short."""
    count, _options = _TRUNCATE.unpack_from(data, 1)
    return struct.unpack_from(f"!{count}I", data, 1 + _TRUNCATE.size)


def _place(places: Mapping[str, int], column: Column) -> int:
    """Where a column stands, by the first of its names that there is. DecodeError where there is none."""
    for name in column.names:
        if name in places:
            return places[name]
    raise no_column(column.names)


def _nothing(_data: bytes) -> None:
    """What says nothing about orders."""


def _text_reader(table: WatchedTable) -> Callable[[bytes], int]:
    parse = deadline_parser(table)
    return lambda value: parse(value.decode())


def _local_reader(table: WatchedTable) -> Callable[[bytes], int]:
    """A timestamp or a date in binary: microseconds or days since 2000 by the zone's clocks.

    https://www.postgresql.org/docs/current/datatype-datetime.html
    """
    instant_us = Zone(table.zone).instant_us
    if table.deadline.kind != "date":
        return lambda value: instant_us(INT8.unpack(value)[0])

    def of_date(value: bytes) -> int:
        days = INT4.unpack(value)[0]
        infinite_us = _INFINITE_DAYS.get(days)
        return instant_us(days * DAY_US) if infinite_us is None else infinite_us

    return of_date
