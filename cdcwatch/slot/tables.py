"""All tables of a slot, as the catalog has them: each once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cdcwatch.database import translated
from cdcwatch.errors import ConfigurationError
from cdcwatch.queries import query
from cdcwatch.slot.catalog import TableFacts, read_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import psycopg

    from cdcwatch.settings import Settings
    from cdcwatch.table import WatchedTable


def load_tables(connection: psycopg.Connection[Any], settings: Settings) -> tuple[WatchedTable, ...]:
    """In the order of the configuration. PreconditionError where one can't be watched; errors of `require_distinct`."""
    return tuple(facts.watched for facts in read_tables(connection, settings))


def read_tables(connection: psycopg.Connection[Any], settings: Settings) -> tuple[TableFacts, ...]:
    """The same with what only checks and remedies need."""
    facts = tuple(read_table(connection, one) for one in settings.each())
    require_distinct(connection, [one.watched for one in facts])
    return facts


def require_distinct(connection: psycopg.Connection[Any], tables: Sequence[WatchedTable]) -> None:
    """ConfigurationError where two of them are one table, or one is a partition of another: a row has one topic."""
    names: dict[int, str] = {}
    for table in tables:
        if table.oid in names:
            raise ConfigurationError(
                f"[[table]] has {table.qualified_name} twice",
                remedy="leave one of them: a table has one topic and rule",
            )
        names[table.oid] = table.qualified_name
    if len(tables) == 1:
        return
    with translated():
        row = connection.execute(query("preflight", "partition_of_another"), {"oids": list(names)}).fetchone()
    if row is not None:
        raise ConfigurationError(
            f"[[table]] has {names[row[0]]} beside {names[row[1]]}, of which it is a partition",
            remedy=f"leave {names[row[0]]} out: its rows are rows of {names[row[1]]}",
        )
