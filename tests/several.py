"""Several tables under one slot, each with its ledger, its topic and its own run of the oracle.

Each stands as `orders`, with its `ledger`, in a schema of its own: so the oracle's words fit all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import psycopg

from tests.oracle.ledger import SCHEMA, assert_closes, expected_events, read_ledger
from tests.oracle.subscriber import assert_topic, read_topic
from tests.oracle.world import World
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from tests.oracle.subscriber import Record
    from tests.services import Database

SCHEMAS = ("shop", "hotel", "till")


def entry(schema: str, topic: str, more: str = "") -> str:
    """Of `[[table]]`."""
    return f'[[table]]\nname = "{schema}.orders"\ntopic = "{topic}"\n{more}'


class SeveralWorld(World):
    """`topics`: schema to topic, of the tables that are configured."""

    def __init__(
        self,
        database: Database,
        bootstrap_servers: str,
        topics: Mapping[str, str],
        folder: Path,
        *,
        progress: str,
        plugin: str,
        kafka: Mapping[str, str] | None = None,
        more: Mapping[str, str] | None = None,
        extra: str = "",
    ) -> None:
        """`more`: of each table's entry."""
        self.topics = dict(topics)
        self._more = dict(more or {})
        super().__init__(
            database, bootstrap_servers, progress, folder, extra + self._entries(), kafka=kafka, plugin=plugin
        )

    def _entries(self) -> str:
        return "".join(entry(schema, topic, self._more.get(schema, "")) for schema, topic in self.topics.items())

    def configure(self, topics: Mapping[str, str]) -> None:
        """Other tables from the next start on."""
        text = self.configuration.read_text().replace(self._entries(), "")
        self.topics = dict(topics)
        self.configuration.write_text(text + self._entries())

    def connect(self, schema: str) -> psycopg.Connection[Any]:
        """With this schema's `orders` and `ledger` for bare names."""
        return psycopg.connect(self.dsn(schema), autocommit=True)

    def dsn(self, schema: str) -> str:
        return psycopg.conninfo.make_conninfo(self.database.dsn, options=f"-c search_path={schema}")

    def make(self, *schemas: str, definition: str = SCHEMA) -> None:
        """Tables and ledgers."""
        for schema in schemas or tuple(self.topics):
            self.connection.execute(f"CREATE SCHEMA {schema}")  # type: ignore[call-overload]
            with self.connect(schema) as connection:
                connection.execute(definition)  # type: ignore[call-overload]
                # A close comes with another search_path.
                connection.execute(f"ALTER FUNCTION write_ledger() SET search_path = {schema}")  # type: ignore[call-overload]

    def insert(self, ids: Sequence[int], *schemas: str, due_in_s: float = 0.3) -> None:
        """Orders in all tables, in one transaction."""
        with self.connection.transaction():
            for schema in schemas or tuple(self.topics):
                self.connection.execute(
                    f"INSERT INTO {schema}.orders (id, expires_at)"  # type: ignore[call-overload]
                    " SELECT id, clock_timestamp() + %s * interval '1 s' FROM unnest(%s::int8[]) AS id",
                    [due_in_s, list(ids)],
                )

    def pending(self, schema: str) -> int:
        count: int = self.scalar(f"SELECT count(*) FROM {schema}.orders WHERE status = 'pending'")
        return count

    def wait_nothing_due(self, timeout_s: float = 60) -> None:
        """In any of them."""
        wait_until(lambda: not any(map(self.pending, self.topics)), timeout_s, "closed")

    def records_of(self, schema: str) -> list[Record]:
        return read_topic(self.bootstrap_servers, self.topics[schema])

    def judge(self, *, exactly_once: bool = True) -> list[Record]:
        """The oracle on every table and its topic; all records."""
        found = []
        for schema, topic in self.topics.items():
            with self.connect(schema) as connection:
                ledger = read_ledger(connection)
                assert_closes(ledger, connection)
            self.topic = topic
            self.wait_topic_committed()
            records = self.records_of(schema)
            assert_topic(records, expected_events(ledger), exactly_once=exactly_once)
            sources = {record.event["source"].rpartition("/")[2] for record in records}
            assert sources <= {f"{schema}.orders"}, sources
            found += records
        return found
