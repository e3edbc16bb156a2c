"""What a stream says, as typed values: the same from every output plugin."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol

from cdcwatch.decode.note import Note
from cdcwatch.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cdcwatch.table import Column, Key


class Row(NamedTuple):
    """The watched columns of one row version."""

    deadline_us: int | None
    """Microseconds since 2000-01-01 UTC; None: NULL."""
    status: str | None
    """The status column's text, without the blanks that char(n) is filled up with; None: NULL, or there is none."""
    version: int | None
    """None: the table has none, or the old row's is not logged."""


Kind = Literal["insert", "update", "delete"]
"""What happened to a row. Words, not an Enum: looking one of those up costs more than the comparison."""
INSERT: Final = "insert"
UPDATE: Final = "update"
DELETE: Final = "delete"


class Begin(NamedTuple):
    """A transaction begins; it had committed before the first byte of it was sent."""

    commit_lsn: int
    """Where its commit record stands: known at once, so that nothing waits for the end of a huge transaction."""
    time_us: int
    """Its commit time, microseconds since 2000-01-01 UTC."""
    xid: int
    """Its top-level transaction id, 32 bits."""


class Change(NamedTuple):
    """One changed row of the watched table."""

    kind: Kind
    key: Key
    """The key after the change; of a deleted row, its key."""
    new: Row | None
    """None for a delete."""
    old: Row | None
    """None where the replica identity doesn't log status and deadline: then the old row is unknown."""
    old_key: Key | None = None
    """The key before an update that changed it, else None."""


class Truncate(NamedTuple):
    """The watched table was emptied; no keys are logged."""


class Unreadable(NamedTuple):
    """A change of the watched table, whole as a message, of which a value can't be understood."""

    reason: str
    """Which column, and what is wrong with it; no value of the row."""
    plugin: str
    input_hex: str
    """The plugin's bytes as they came, the first 2 KiB of them; they hold the row."""
    is_truncated: bool
    """Whether there were more."""


class Commit(NamedTuple):
    """The end of a transaction."""

    commit_lsn: int
    end_lsn: int
    """The first position behind the commit record: what may be confirmed once the transaction is durable."""


Message = Begin | Change | Truncate | Unreadable | Note | Commit


class Of(NamedTuple):
    """Where several tables are watched: what is about one of them."""

    table: int
    """Its place among them."""
    message: Change | Truncate | Unreadable | Note


class Together(NamedTuple):
    """Where several tables are watched: what one message of the plugin says of more than one."""

    parts: tuple[Of, ...]


AnyMessage = Message | Of | Together


class Decoder(Protocol):
    """An output plugin's bytes to messages. One decoder lives as long as one connection."""

    def options(self) -> Mapping[str, str]:
        """The plugin options that START_REPLICATION asks for."""
        ...

    def decode(self, payload: bytes | memoryview) -> AnyMessage | None:
        """One message of the plugin; None for what isn't about the watched table.

        DecodeError for what is no message of the plugin, and for what is wrong with every row of the table.
        """
        ...


def is_filled_up(column: Column | None) -> bool:
    """Whether the column's text ends in blanks that mean nothing: char(n), which a cast to text cuts off."""
    return column is not None and column.kind in {"character", "bpchar"}


def no_column(names: Sequence[str]) -> DecodeError:
    """A row without a watched column, of none of the names that it may have."""
    return DecodeError(
        f"the stream has no column {' or '.join(map(repr, names))}: it was dropped or renamed",
        remedy=f'name it in [table] by both its names, as "new_name|{names[0]}", and start again',
    )
