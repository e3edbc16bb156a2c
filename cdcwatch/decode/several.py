"""Several tables in one stream: each message goes to the decoder of its table, and comes back with that table's place.

With one table nothing of this runs. https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdcwatch.decode.change import Of, Together, Truncate
from cdcwatch.decode.leaves import PartitionedWal2JsonDecoder
from cdcwatch.decode.pgoutput import truncated_relations
from cdcwatch.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdcwatch.decode.change import AnyMessage, Message
    from cdcwatch.decode.pgoutput import PgoutputDecoder
    from cdcwatch.decode.wal2json import Wal2JsonDecoder
    from cdcwatch.table import WatchedTable

    Decode = Callable[[bytes], Message | Of | Together | None]

_ACTION_AT: Final = len('{"action":"')
_SCHEMA: Final = b'"schema":'
_ROWS: Final = {b"I": b',"columns":[', b"U": b',"columns":[', b"D": b',"identity":['}
_BOUNDARIES: Final = frozenset({b"B", b"C"})
_FILTER: Final = "add-tables"
_MOST_FOREIGN: Final = 10_000
_UNSEEN: Final = object()
_RELATION: Final = struct.Struct("!I")
_INSERT, _UPDATE, _DELETE, _TRUNCATE, _DESCRIPTION, _NOTE = (bytes([ord(kind)]) for kind in "IUDTRM")
_new = tuple.__new__


class SeveralWal2JsonDecoder:
    """Over one decoder a table. Where none is partitioned the server is asked for these tables alone."""

    def __init__(self, tables: Sequence[WatchedTable], decoders: Sequence[Wal2JsonDecoder]) -> None:
        self._decoders = decoders
        decodes: list[Decode] = [decoder.decode for decoder in decoders]
        self._all = list(enumerate(decodes))
        self._partitioned = [
            one
            for one, decoder in zip(self._all, decoders, strict=True)
            if isinstance(decoder, PartitionedWal2JsonDecoder)
        ]
        self._plain = [one for one in self._all if one not in self._partitioned]
        self._heads: dict[bytes, tuple[int, Decode] | None] = {
            _head(tables[at].schema, tables[at].name): (at, decode) for at, decode in self._plain
        }

    def options(self) -> Mapping[str, str]:
        """As one table's, with a filter that names them all; without one where a table is partitioned."""
        options = [decoder.options() for decoder in self._decoders]
        common = {name: value for name, value in options[0].items() if name != _FILTER}
        if self._partitioned:
            return common
        return {**common, _FILTER: ",".join(option[_FILTER] for option in options)}

    def decode(self, payload: bytes | memoryview) -> AnyMessage | None:
        """One line."""
        line = bytes(payload)
        action = line[_ACTION_AT : _ACTION_AT + 1]
        if action in _BOUNDARIES:
            return self._decoders[0].decode(line)
        if action not in _ROWS:
            return _first(self._all, line)
        begin = line.find(_SCHEMA)
        head = line[begin : line.find(_ROWS[action], begin)]
        known: Any = self._heads.get(head, _UNSEEN)
        if known is _UNSEEN:
            return self._of_unknown(head, line)
        if known is None:
            return _first(self._partitioned, line)
        table, decode = known
        return _new(Of, (table, decode(line)))

    def _of_unknown(self, head: bytes, line: bytes) -> AnyMessage | None:
        """A name that is written unusually, or of a table that is not one of the plain ones: that is remembered."""
        message = _first(self._plain, line)
        if message is None:
            if len(self._heads) < _MOST_FOREIGN:
                self._heads[head] = None
            message = _first(self._partitioned, line)
        return message


class SeveralPgoutputDecoder:
    """Over one decoder a table; a relation is found by its OID, from the description that precedes its rows."""

    def __init__(self, decoders: Sequence[PgoutputDecoder]) -> None:
        self._decoders = decoders
        decodes: list[Decode] = [decoder.decode for decoder in decoders]
        self._all = list(enumerate(decodes))
        self._of: dict[int, tuple[int, Decode]] = {}

    def options(self) -> Mapping[str, str]:
        """One table's: the publication names the tables, and all are read in one form."""
        return self._decoders[0].options()

    def decode(self, payload: bytes | memoryview) -> AnyMessage | None:
        """One message."""
        data = bytes(payload)
        kind = data[:1]
        if kind in (_INSERT, _UPDATE, _DELETE):
            found = self._of.get(_relation(data))
            if found is None:
                return None
            table, decode = found
            return _new(Of, (table, decode(data)))
        if kind == _DESCRIPTION:
            self._described(data)
            return None
        if kind == _TRUNCATE:
            return self._truncated(data)
        if kind == _NOTE:
            return _first(self._all, data)
        return self._decoders[0].decode(data)

    def _described(self, data: bytes) -> None:
        relation = _relation(data)
        self._of.pop(relation, None)
        for table, decode in self._all:
            decode(data)
            if self._decoders[table].reads(relation):
                self._of[relation] = (table, decode)

    def _truncated(self, data: bytes) -> Together | None:
        """One statement may empty several: each is one message, in the order in which the WAL names them."""
        try:
            relations = truncated_relations(data)
        except struct.error:
            raise DecodeError("pgoutput sent a TRUNCATE that can't be read", remedy="report this") from None
        tables = dict.fromkeys(self._of[relation][0] for relation in relations if relation in self._of)
        return Together(tuple(Of(table, Truncate()) for table in tables)) if tables else None


def _relation(data: bytes) -> int:
    try:
        relation: int = _RELATION.unpack_from(data, 1)[0]
    except struct.error:
        raise DecodeError("pgoutput sent a message that can't be read (cut short)", remedy="report this") from None
    return relation


def _first(decoders: Sequence[tuple[int, Decode]], data: bytes) -> Of | None:
    """Of the first table that it is about."""
    for table, decode in decoders:
        message = decode(data)
        if message is not None:
            return Of(table, message)  # type: ignore[arg-type]  # rows, truncates and notes alone come here
    return None


def _head(schema: str, name: str) -> bytes:
    """As a row's line has it, up to its columns."""
    return f'"schema":{orjson.dumps(schema).decode()},"table":{orjson.dumps(name).decode()}'.encode()
