"""The watched table as the catalog describes it, and the one encoding of an order's key."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson
from msgspec import Struct
from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MODIFIER: Final = re.compile(r"\([^)]*\)")
INTEGER_TYPES: Final = frozenset({"smallint", "integer", "bigint"})

Key = int | str
"""An order's key inside cdcwatch: an int for one integer column (a fifth of a text's memory), else its canonical text.

The canonical text is the column's own text for one column, and a JSON array of the columns' texts for several. It is
the Kafka key too, so that equal keys are equal bytes.
"""


class Column(Struct, frozen=True):
    """A column: its name and its type as `format_type` spells it (`bigint`, `numeric(12,2)`, `shop.order_status`)."""

    name: str
    type: str
    base: str = ""
    """Of a domain, the type that it comes down to."""
    others: tuple[str, ...] = ()
    """What it may have been called, or may come to be: rows carry the names of their own time."""

    @property
    def names(self) -> tuple[str, ...]:
        """By which of them it is found in a row: the first that the row has."""
        return (self.name, *self.others)

    @property
    def kind(self) -> str:
        """The type without domain and modifiers: `character` of character(5), `timestamp with time zone`."""
        return _MODIFIER.sub("", self.base or self.type)


class Attachment(NamedTuple):
    """A partition, and since when it is one."""

    oid: int
    stamp: str = ""
    """Another one after it, or what it is a partition of, was detached and attached again; empty: not known."""

    def is_over(self, now: Attachment) -> bool:
        """Whether the same partition was away in between."""
        return bool(self.stamp) and self.stamp != now.stamp


class PublicationStamp(NamedTuple):
    """By which transactions a publication is as it is: one that was altered and put back has another."""

    publication: str = ""
    """Of itself; empty where there is none, or nobody knows."""
    members: str = ""
    """Of its entries that hold the table; empty where it has none of its own, or where they were to be altered."""
    goes_with_column: bool = False
    """The transaction that wrote the entries altered a column too: how a listed column must be retyped."""

    def was_altered(self, now: PublicationStamp) -> bool:
        """Whether changes may have been left out in between.

        Not where a column was altered in the same transaction: nobody else saw what the publication was meanwhile.
        """
        if self.publication != now.publication:
            return True
        return bool(self.members) and self.members != now.members and not now.goes_with_column


NO_PUBLICATION: Final = PublicationStamp()


class ClaimStatuses(NamedTuple):
    """What an order goes through whose close calls something outside (`close.claim`)."""

    processing: str
    """Between the claim and the outside's answer: the deadline is no longer armed, and still told as live."""
    failed: str


class Leaf(NamedTuple):
    """A partition that holds rows."""

    oid: int
    schema: str
    name: str
    filenode: int
    """pg_class.relfilenode: another one after a TRUNCATE, and after whatever else rewrites it."""
    stamp: str = ""
    """As of its attachment."""

    @property
    def attachment(self) -> Attachment:
        """What the progress record holds of it."""
        return Attachment(self.oid, self.stamp)


class WatchedTable(Struct, frozen=True):
    """What the rooms need to know of the table; made by `cdcwatch.slot.catalog`."""

    schema: str
    name: str
    oid: int
    key: tuple[Column, ...]
    deadline: Column
    status: Column | None
    version: Column | None
    open: frozenset[str]
    """Texts of the statuses in which the deadline is live; empty without a status column."""
    closed_status: str
    """The status that a close writes."""
    identity: str = "d"
    """pg_class.relreplident: d(efault), n(othing), f(ull), i(ndex)."""
    logs_old_rows: bool = False
    """Whether the replica identity logs the old status and deadline of every changed row."""
    columns: tuple[Column, ...] = ()
    encoding: str = ""
    """The database's encoding as Python names it; empty for UTF-8 and where there is none (SQL_ASCII)."""
    zone: str = ""
    """Of a deadline without time zone: the zone whose local time it is; empty for a timestamptz."""
    leaves: tuple[Leaf, ...] | None = None
    """Of a partitioned table; None for an ordinary one."""
    publication: PublicationStamp = NO_PUBLICATION
    """That pgoutput reads by."""
    claim: ClaimStatuses | None = None
    """Of `close.action = "claim"`."""
    deletes: bool = False
    """`close.action = "delete"`: a close takes the row away and writes no status."""

    def takes_same_statements(self, other: WatchedTable) -> bool:
        """Whether what was made for the other serves this one: further columns, leaves and publication are no part."""
        return self == replace(other, columns=self.columns, leaves=self.leaves, publication=self.publication)

    @property
    def told(self) -> frozenset[str]:
        """The statuses in which subscribers take the deadline for live: the open ones, and that of a claimed order."""
        return self.open | {self.claim.processing} if self.claim is not None else self.open

    @property
    def qualified_name(self) -> str:
        """`schema.name`, for people: not quoted."""
        return f"{self.schema}.{self.name}"

    @property
    def has_integer_key(self) -> bool:
        """Whether keys are Python ints."""
        return len(self.key) == 1 and self.key[0].type in INTEGER_TYPES


def canonical_key(texts: Sequence[str], *, integer: bool) -> Key:
    """The key of an order from its key columns' texts, in the key's column order."""
    if len(texts) == 1:
        return int(texts[0]) if integer else texts[0]
    return orjson.dumps(list(texts)).decode()


def key_texts(key: Key, columns: int) -> list[str]:
    """The key columns' texts again: the inverse of `canonical_key`."""
    if columns == 1:
        return [str(key)]
    texts: list[str] = orjson.loads(key) if isinstance(key, str) else [str(key)]
    return texts


def key_mapping(key: Key, columns: Sequence[Column]) -> Mapping[str, str]:
    """Column name to text, as the topic's `data.key` and logs show it."""
    return dict(zip((column.name for column in columns), key_texts(key, len(columns)), strict=True))
