"""One table's changes through both output plugins, as decoded messages and as events, and the table's own word on them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from psycopg import sql

from cdcwatch.columns import deadline_instant, key_text
from cdcwatch.database import connect
from cdcwatch.deadline.derivation import Derivation
from cdcwatch.deadline.event import EventEncoder
from cdcwatch.deadline.position import Position
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.decode.change import Begin, Change, Commit, Row, Truncate
from cdcwatch.decode.plugins import decoder_factory
from cdcwatch.queries import query
from cdcwatch.settings import CloseSettings, PostgresSettings, Settings, SlotSettings, TableSettings
from cdcwatch.slot.catalog import read_table
from cdcwatch.slot.publication import creation
from cdcwatch.table import canonical_key

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdcwatch.deadline.event import Event
    from cdcwatch.decode.change import Message
    from cdcwatch.slot.catalog import TableFacts
    from cdcwatch.table import Key, WatchedTable
    from tests.services import Database

PLUGINS = ("wal2json", "pgoutput")
# What a role or a database may have been given. Nothing of it must show.
_HOSTILE = "DateStyle = 'German', TimeZone = 'Asia/Kolkata', IntervalStyle = 'sql_standard', bytea_output = 'escape'"


class Streams:
    """A database with a slot of each plugin; one table is watched at a time."""

    def __init__(self, database: Database, plugins: Iterable[str] = PLUGINS) -> None:
        self.plugins = tuple(plugins)
        self.dsn, self._name = database.dsn, database.name
        with database.connect() as connection:
            for setting in _HOSTILE.split(", "):
                connection.execute(f"ALTER DATABASE {database.name} SET {setting}")  # type: ignore[call-overload]
        self.connection = connect(database.dsn, application_name="test")
        self._reader = connect(database.dsn, application_name="test")
        self._reader.execute(query("slot", "pinned"))
        for plugin in self.plugins:
            self.connection.execute("SELECT pg_create_logical_replication_slot(%s, %s)", [self._slot(plugin), plugin])

    def close(self) -> None:
        self.connection.close()
        self._reader.close()

    def _slot(self, plugin: str) -> str:
        return f"{plugin}_{self._name}"

    def watch(self, name: str, *, close: CloseSettings | None = None, **table: Any) -> Watched:
        """The table with this configured name, from now on."""
        settings = Settings(
            postgres=PostgresSettings(dsn=self.dsn),
            slot=SlotSettings(plugin="pgoutput", publication=f"of {name}"[:63]),
            table=TableSettings(name=name, **table),
            close=close or CloseSettings(),
        )
        facts = read_table(self.connection, settings)
        self.connection.execute(creation(settings, [facts], self.connection.info.server_version))
        for plugin in self.plugins:
            self.connection.execute(
                "SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", [self._slot(plugin)]
            )
        return Watched(self, settings, facts)

    def read(self, plugin: str, table: WatchedTable, publication: str, *, unfiltered: bool = False) -> list[Message]:
        """What has come since, consumed; transactions without a change of the table are left out.

        `unfiltered`: wal2json is not asked for the table only.
        """
        version = self._reader.info.server_version
        decoder = decoder_factory(plugin, table, publication=publication, server_version=version)()
        options = {name: text for name, text in decoder.options().items() if not (unfiltered and name == "add-tables")}
        rows = self._reader.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, VARIADIC %s)",
            [self._slot(plugin), [text for pair in options.items() for text in pair]],
            binary=True,
        ).fetchall()
        decoded = [decoder.decode(data) for (data,) in rows]
        return _without_empty_transactions([message for message in decoded if message is not None])


def _without_empty_transactions(messages: list[Message]) -> list[Message]:
    kept: list[Message] = []
    for message in messages:
        if isinstance(message, Commit) and isinstance(kept[-1], Begin):
            kept.pop()
        else:
            kept.append(message)
    return kept


class Watched:
    """The table that is watched now."""

    def __init__(self, streams: Streams, settings: Settings, facts: TableFacts) -> None:
        self._streams, self.settings, self.facts, self.table = streams, settings, facts, facts.watched
        self._rows: dict[Key, Row] = {}

    def read(self) -> list[Message]:
        """What has come since, told alike by both plugins; AssertionError where they differ."""
        publication = self.settings.slot.publication
        told = [self._streams.read(plugin, self.table, publication) for plugin in self._streams.plugins]
        for other in told[1:]:
            assert other == told[0]
            assert self.events(other) == self.events(told[0])
        return told[0]

    def events(self, messages: list[Message]) -> list[Event]:
        """What subscribers would be told of it."""
        encoder = EventEncoder(self.table, system_identifier="7", database="shop")
        derivation = Derivation(DeadlineRule(self.table), encoder)
        derivation.restart(Position())
        for message in messages:
            derivation.feed(message)
        return derivation.drain().events

    def follow(self, messages: list[Message]) -> dict[Key, Row]:
        """The rows of the table, by all that was told so far."""
        rows = self._rows
        for message in messages:
            if isinstance(message, Truncate):
                rows.clear()
            elif isinstance(message, Change):
                if message.old_key is not None:
                    del rows[message.old_key]
                if message.new is None:
                    del rows[message.key]
                else:
                    rows[message.key] = message.new
        return rows

    def in_table(self) -> dict[Key, Row]:
        """The rows of the table, by the statements that the rest of cdcwatch is made of, in a session of any settings."""
        table = self.table
        names = [table.deadline, table.status, table.version]
        deadline, status, version = (sql.Identifier(column.name) if column else sql.NULL for column in names)
        found = self._streams.connection.execute(
            sql.SQL("SELECT {}, {}, {}::text, {}::int8 FROM {}").format(
                sql.SQL(", ").join(key_text(column, sql.Identifier(column.name)) for column in table.key),
                deadline_instant(table, deadline),
                status,
                version,
                sql.Identifier(table.schema, table.name),
            ),
            binary=True,
        )
        return {
            canonical_key([str(text) for text in texts], integer=table.has_integer_key): Row(deadline_us, word, number)
            for *texts, deadline_us, word, number in found
        }


def kinds_and_keys(messages: list[Message]) -> list[str]:
    """`insert 1`, `update 1->2`, `truncate`, and a line between two transactions."""
    told: list[str] = []
    for message in messages:
        if isinstance(message, Change):
            moved = "" if message.old_key is None else f"{message.old_key}->"
            told.append(f"{message.kind} {moved}{message.key}")
        elif isinstance(message, Truncate):
            told.append("truncate")
        elif isinstance(message, Begin) and told:
            told.append("-")
    return told
