"""What cdcwatch knows of one order: its row, whether the heap's window holds it, its last events in the topic."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import orjson
import psycopg
from msgspec import Struct
from msgspec.structs import replace
from psycopg import sql

from cdcwatch.columns import deadline_instant, key_text
from cdcwatch.database import connect, translated
from cdcwatch.errors import CdcwatchError, ConfigurationError, PreconditionError
from cdcwatch.handoff.bus import bus_of
from cdcwatch.instant import INFINITY_US, NEGATIVE_INFINITY_US
from cdcwatch.queries import query
from cdcwatch.slot.admin import slot_status
from cdcwatch.slot.catalog import load_table
from cdcwatch.slot.facts import open_condition
from cdcwatch.table import INTEGER_TYPES, canonical_key
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cdcwatch.handoff.record import Record
    from cdcwatch.settings import Settings
    from cdcwatch.table import WatchedTable

SCAN_RECORDS: Final = 500_000
"""Of each partition's end: further back is not looked."""
EVERY_ORDER: Final = "*"
"""The subject of an event about the whole table."""
_EXAMPLES: Final = {
    **dict.fromkeys(INTEGER_TYPES, "4711"),
    "numeric": "4711.50",
    "uuid": "0b0f3f5e-7a2c-4d8e-9a51-0c6b1f2e3d4c",
    "date": "2030-01-31",
    "boolean": "true",
    "timestamp with time zone": "'2030-01-31 12:00:00+00'",
    "timestamp without time zone": "'2030-01-31 12:00:00'",
}
"""A key's text, by its type, for those that refuse some."""


class OrderRow(Struct, frozen=True):
    """The row, by the database's clock."""

    deadline_us: int | None
    status: str | None
    version: int | None
    is_open: bool
    now_us: int


class Unread(Struct, frozen=True):
    """Nobody reads the slot."""

    message: str
    remedy: str


class OrderStory(Struct, frozen=True):
    """All of it."""

    key: Mapping[str, str]
    row: OrderRow | None
    horizon_s: float
    events: tuple[dict[str, Any], ...]
    """The last ones, the oldest first; those about the whole table too."""
    topic_problem: str | None
    """Why the topic could not be read."""
    unread: Unread | None = None
    """Of an order that is due: why nobody closes it, where nobody reads the slot."""

    @property
    def wait_s(self) -> float | None:
        """From the database's now to the deadline; None without one that comes."""
        if self.row is None or self.row.deadline_us in {None, INFINITY_US, NEGATIVE_INFINITY_US}:
            return None
        return ((self.row.deadline_us or 0) - self.row.now_us) / 1e6

    @property
    def is_due(self) -> bool:
        """Whether it is open, and its deadline has come."""
        row = self.row
        if row is None or not row.is_open:
            return False
        return row.deadline_us == NEGATIVE_INFINITY_US or (self.wait_s is not None and self.wait_s <= 0)

    @property
    def window(self) -> str:  # noqa: PLR0911  a case each
        """Where a running service has it."""
        row = self.row
        if row is None:
            return "no such row: nothing to close"
        if not row.is_open:
            return "not in the heap: its status is not open"
        if row.deadline_us is None:
            return "not in the heap: it has no deadline"
        if row.deadline_us == INFINITY_US:
            return "not in the heap: its deadline never comes"
        if self.is_due:
            if self.unread is not None:
                return f"due, and {self.unread.message}: only a sweep would close it"
            return "due: closed by the next batch of a running service, unless refused: see events --dead and the log"
        if (self.wait_s or 0.0) <= self.horizon_s:
            return f"in the heap of a running service{self._else}"
        return "beyond window.horizon_s: in the table until the window comes to it"

    @property
    def _else(self) -> str:
        """Of an order that the topic has never told of: the stream may not have either."""
        if any(event.get("subject") != EVERY_ORDER for event in self.events):
            return ""
        return "; one that came only as a dead letter is read from the table when it is due"


def explain_order(settings: Settings, texts: Sequence[str], count: int) -> OrderStory:
    """`texts`: the key columns' texts. ConfigurationError when they are no key of the table; errors of the database.

    A topic that can't be read is told, not raised.
    """
    with connect(settings.postgres.dsn, application_name="cdcwatch explain") as connection, translated():
        table = load_table(connection, settings)
        if len(texts) != len(table.key):
            raise ConfigurationError(
                f"the key of {table.qualified_name} has {counted(len(table.key), 'column')}"
                f" ({', '.join(column.name for column in table.key)}), and {counted(len(texts), 'text')} came",
                remedy=f"cdcwatch explain {' '.join(column.name.upper() for column in table.key)}"
                " (-- before one that begins with a minus)",
            )
        try:
            canonical, row = _read(connection, table, texts)
        except psycopg.errors.DataError:
            kinds = ", ".join(f"{column.name} {column.type}" for column in table.key)
            raise ConfigurationError(
                f"that is no key of {table.qualified_name} ({kinds})",
                remedy=f"give each column's text as SQL writes it: cdcwatch explain {_example(table)}",
            ) from None
    key = canonical_key(canonical, integer=table.has_integer_key)
    records, problem = _records(settings, str(key).encode(), count)
    events = tuple(event for record in records if (event := _parsed(record)) is not None)
    names = [column.name for column in table.key]
    story = OrderStory(dict(zip(names, canonical, strict=True)), row, settings.window.horizon_s, events, problem)
    return replace(story, unread=_unread(settings)) if story.is_due else story


def _unread(settings: Settings) -> Unread | None:
    try:
        found = slot_status(settings)
    except PreconditionError as error:  # there is none
        return Unread(str(error), error.remedy)
    except CdcwatchError:  # the stream's server is away: nobody knows
        return None
    return None if found.active else Unread(f"nobody reads slot {found.name}", "cdcwatch run")


def _example(table: WatchedTable) -> str:
    return " ".join(_EXAMPLES.get(column.base or column.type, f"TEXT_OF_{column.name}") for column in table.key)


def _read(
    connection: psycopg.Connection[Any], table: WatchedTable, texts: Sequence[str]
) -> tuple[list[str], OrderRow | None]:
    """The key as its types write it, and the row."""
    given = [
        sql.SQL("{}::text::{}").format(sql.Literal(text), sql.SQL(column.type))
        for text, column in zip(texts, table.key, strict=True)
    ]
    names = [sql.Identifier(column.name) for column in table.key]
    listed = sql.SQL(", ")
    canonical = sql.SQL(query("look", "canonical_key")).format(
        key=listed.join(
            key_text(column, sql.SQL("({})").format(value)) for column, value in zip(table.key, given, strict=True)
        )
    )
    order = sql.SQL(query("look", "order")).format(
        deadline=deadline_instant(table, sql.Identifier(table.deadline.name)),
        status=sql.SQL("{}::text").format(sql.Identifier(table.status.name)) if table.status else sql.NULL,
        version=sql.SQL("{}::int8").format(sql.Identifier(table.version.name)) if table.version else sql.NULL,
        is_open=sql.SQL("coalesce({}, false)").format(open_condition(table)),
        key=listed.join(key_text(column, name) for column, name in zip(table.key, names, strict=True)),
        table=sql.Identifier(table.schema, table.name),
        same_key=sql.SQL(" AND ").join(
            sql.SQL("{} = {}").format(name, value) for name, value in zip(names, given, strict=True)
        ),
    )
    with connection.cursor(binary=True) as cursor:
        found = cursor.execute(order).fetchone()
        if found is None:
            written = cursor.execute(canonical).fetchone()
            return list(written or texts), None
    now_us, deadline_us, status, version, is_open, *key = found
    return key, OrderRow(deadline_us, status, version, is_open, now_us)


def _records(settings: Settings, key: bytes, count: int) -> tuple[list[Record], str | None]:
    bus = bus_of(settings)
    if bus is None:
        return [], f'sink.kind is "{settings.sink.kind}"'
    try:
        with closing(bus.tail(is_ended=lambda: False)) as tail:
            return tail.about(key, count, SCAN_RECORDS), None
    except CdcwatchError as error:
        return [], str(error)


def _parsed(record: Record) -> dict[str, Any] | None:
    try:
        value = orjson.loads(record.value)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, dict) else None
