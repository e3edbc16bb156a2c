"""What the service asks the database beside the stream: short questions, each on a connection of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from cdcwatch.close.claim import require_claims
from cdcwatch.database import connect, translated
from cdcwatch.decode.leaves import FOREIGN, GONE, LEAF
from cdcwatch.errors import PreconditionError
from cdcwatch.lsn import parse_lsn
from cdcwatch.queries import query
from cdcwatch.slot.catalog import read_table
from cdcwatch.slot.publication import UNTOLD, UNTOLD_REMEDY, publication_stamp, require_published, tells_notes
from cdcwatch.slot.tables import read_tables
from cdcwatch.table import Leaf

if TYPE_CHECKING:
    from collections.abc import Collection

    import psycopg

    from cdcwatch.decode.leaves import Standing
    from cdcwatch.settings import Settings
    from cdcwatch.slot.stream import SlotFacts
    from cdcwatch.table import WatchedTable

_NAME: Final = "cdcwatch"
_ANSWER_TIMEOUT_S: Final = 15.0


class Surroundings(Struct, frozen=True):
    """What is known before the slot is taken."""

    tables: tuple[WatchedTable, ...]
    server_version: int
    """As libpq gives it: 150020 for 15.20."""
    current_lsn: int


class Writer(NamedTuple):
    """An open transaction that has written to a table."""

    oid: int
    """The table's."""
    transaction: str
    """PostgreSQL's virtual transaction id: no other has it as long as this one is open."""
    pid: int | None
    """None: it is a prepared one."""


class Inquiry:
    """UnavailableError from every method when the server is away; `load_table`'s errors for the table."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self._dsn = settings, settings.postgres.dsn

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        return connect(self._dsn, application_name=_NAME, answer_timeout_s=_ANSWER_TIMEOUT_S)

    def surroundings(self, *, claims: bool = False) -> Surroundings:
        """The tables, the server and where its WAL ends. `claims`: PreconditionError where orders can't be claimed."""
        with translated(), self._connect() as connection:
            row = connection.execute(query("stream", "current_lsn")).fetchone()
            facts = read_tables(connection, self._settings)
            if len(facts) > 1 and self._settings.slot.plugin == "pgoutput":
                # One that was added to the configuration may be missing there, and the stream would not say so.
                for one in facts:
                    require_published(connection, one, self._settings)
            if not all(tells_notes(one, connection.info.server_version) for one in self._settings.each()):
                raise PreconditionError(UNTOLD, remedy=UNTOLD_REMEDY)
            if claims and (rights := connection.execute(query("claim", "rights")).fetchone()):
                require_claims(*rights)
            tables = tuple(self._stamped(connection, one.watched) for one in facts)
            return Surroundings(tables, connection.info.server_version, parse_lsn(row[0]) if row else 0)

    def writers(self, oids: Collection[int]) -> set[Writer]:
        """The open transactions that have written to the tables with these OIDs."""
        with translated(), self._connect() as connection:
            return {Writer(*row) for row in connection.execute(query("snapshot", "writers"), {"oids": list(oids)})}

    def current_lsn(self) -> int:
        """Where the server's WAL ends: what was written, flushed or not."""
        with translated(), self._connect() as connection:
            row = connection.execute(query("stream", "current_lsn")).fetchone()
        return parse_lsn(row[0]) if row else 0

    def table(self) -> WatchedTable:
        """The table as the catalog has it now. PreconditionError too where pgoutput's publication doesn't tell all."""
        with translated(), self._connect() as connection:
            facts = read_table(connection, self._settings)
            if self._settings.slot.plugin == "pgoutput":
                require_published(connection, facts, self._settings)
            return self._stamped(connection, facts.watched)

    def _stamped(self, connection: psycopg.Connection[tuple[Any, ...]], table: WatchedTable) -> WatchedTable:
        if self._settings.slot.plugin != "pgoutput":
            return table
        return replace(table, publication=publication_stamp(connection, table.oid, self._settings))

    def is_followed(self, oid: int) -> bool:
        """Whether the stream tells of the table by its OID: pgoutput, with a publication of the table itself."""
        if self._settings.slot.plugin != "pgoutput":
            return False
        wanted = {"oid": oid, "publication": self._settings.slot.publication}
        with translated(), self._connect() as connection:
            row = connection.execute(query("stream", "is_followed"), wanted).fetchone()
        return bool(row and row[0])

    def name_of(self, oid: int) -> str | None:
        """What the table with this OID is called now; None when it is gone."""
        with translated(), self._connect() as connection:
            row = connection.execute(query("stream", "relation_name"), {"oid": oid}).fetchone()
        return row[0] if row else None

    def named(self, oids: Collection[int]) -> list[Leaf]:
        """The tables with these OIDs, as they are called now; those that are gone are missing."""
        with translated(), self._connect() as connection:
            return [Leaf(*row) for row in connection.execute(query("stream", "tables"), {"oids": list(oids)})]

    def standing(self, oid: int, schema: str, name: str) -> Standing:
        """What a table that the stream names is to the partitioned table with that OID."""
        with translated(), self._connect() as connection:
            wanted = {"oid": oid, "schema": schema, "name": name}
            row = connection.execute(query("stream", "standing"), wanted).fetchone()
        if row is None:
            return GONE
        return LEAF if row[0] else FOREIGN

    def beat(self) -> None:
        """Writes a message for the stream to carry."""
        with translated(), self._connect() as connection:
            connection.execute(query("stream", "heartbeat"))

    def owns_slot(self, slot: str, facts: SlotFacts) -> bool:
        """Whether the server still has our walsender at the slot."""
        with translated(), self._connect() as connection:
            row = connection.execute(query("stream", "slot_holder"), {"slot": slot}).fetchone()
        return row is not None and row[0] == facts.walsender_pid
