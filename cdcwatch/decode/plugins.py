"""The output plugins by name: everything else knows a Decoder only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdcwatch.decode.leaves import Leaves, PartitionedWal2JsonDecoder
from cdcwatch.decode.pgoutput import PgoutputDecoder, speaks_binary
from cdcwatch.decode.several import SeveralPgoutputDecoder, SeveralWal2JsonDecoder
from cdcwatch.decode.wal2json import Recoding, Wal2JsonDecoder

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cdcwatch.decode.change import Decoder
    from cdcwatch.table import WatchedTable

_FIRST_BINARY_VERSION: Final = 140_000


def decoder_factory(
    plugin: str, table: WatchedTable, *, publication: str, server_version: int, leaves: Leaves | None = None
) -> Callable[[], Decoder]:
    """Makes a decoder for each connection. `server_version` as libpq gives it, 150020 for 15.20.

    `leaves`: what a partitioned table's wal2json decoders share; without it, as the table has them.
    """
    if plugin == "pgoutput":
        is_14 = server_version >= _FIRST_BINARY_VERSION  # that brought binary values and logical messages
        binary = is_14 and speaks_binary(table)
        return lambda: PgoutputDecoder(table, publication, binary=binary, notes=is_14)
    shared = None if table.leaves is None else leaves or Leaves(table)

    def of_wal2json() -> Decoder:
        decoder = Wal2JsonDecoder(table) if shared is None else PartitionedWal2JsonDecoder(table, shared)
        return Recoding(decoder, table.encoding) if table.encoding else decoder

    return of_wal2json


def several_factory(
    plugin: str,
    tables: Sequence[WatchedTable],
    *,
    publication: str,
    server_version: int,
    leaves: Sequence[Leaves | None] = (),
) -> Callable[[], Decoder]:
    """The same for all tables of a slot, with their `leaves` in the same order; of one it is that one's decoder."""
    shared = [
        of_table or (None if table.leaves is None else Leaves(table))
        for table, of_table in zip(tables, leaves or [None] * len(tables), strict=True)
    ]
    if len(tables) == 1:
        return decoder_factory(
            plugin, tables[0], publication=publication, server_version=server_version, leaves=shared[0]
        )
    if plugin == "pgoutput":
        is_14 = server_version >= _FIRST_BINARY_VERSION
        binary = is_14 and all(map(speaks_binary, tables))  # one form for the whole stream
        return lambda: SeveralPgoutputDecoder(
            [PgoutputDecoder(table, publication, binary=binary, notes=is_14) for table in tables]
        )

    def of_wal2json() -> Decoder:
        decoder = SeveralWal2JsonDecoder(
            tables,
            [
                Wal2JsonDecoder(table) if of_table is None else PartitionedWal2JsonDecoder(table, of_table)
                for table, of_table in zip(tables, shared, strict=True)
            ],
        )
        return Recoding(decoder, tables[0].encoding) if tables[0].encoding else decoder

    return of_wal2json
