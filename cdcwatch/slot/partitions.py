"""The leaves of a partitioned table: what is logged of a change is each leaf's own affair, not its parent's.

With publish_via_partition_root pgoutput speaks in the parent's name, so that a leaf which logs less than the parent
promises would be believed to have changed less.
https://www.postgresql.org/docs/current/sql-altertable.html#SQL-ALTERTABLE-REPLICA-IDENTITY
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

from cdcwatch.errors import PreconditionError
from cdcwatch.table import Leaf

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_NAMED: Final = 3


class Partition(Struct, frozen=True):
    """A leaf."""

    oid: int
    schema: str
    name: str
    filenode: int
    sql_name: str
    kind: str
    persistence: str
    identity: str
    """pg_class.relreplident."""
    identity_columns: list[str]
    """Of identity d and i."""
    identity_part: str | None = None
    """Its part of the index that is the parent's replica identity, as SQL writes it; None where there is none."""
    stamp: str = ""
    """Of its attachment."""

    @property
    def leaf(self) -> Leaf:
        """What the stream's readers need of it."""
        return Leaf(self.oid, self.schema, self.name, self.filenode, self.stamp)

    def logs(self, columns: frozenset[str]) -> bool:
        """Whether the WAL tells these columns of an old row."""
        return self.identity == "f" or columns <= set(self.identity_columns)

    def like_its_parent(self, identity: str) -> str:
        """The statement that gives it the parent's replica identity, where that is `identity`."""
        wanted = {"f": "FULL", "i": f"USING INDEX {self.identity_part or '…'}"}.get(identity, "DEFAULT")
        return f"ALTER TABLE {self.sql_name} REPLICA IDENTITY {wanted}"


def require_whole(table: str, leaves: Sequence[Partition], identity: str, promised: frozenset[str]) -> None:
    """PreconditionError unless every leaf is in the WAL and logs what the parent's replica identity promises."""
    foreign = [leaf.sql_name for leaf in leaves if leaf.kind != "r"]
    if foreign:
        raise PreconditionError(
            f"{table} has partitions that are not in this server's WAL: {named(foreign)}",
            remedy="; ".join(f"ALTER TABLE {table} DETACH PARTITION {leaf}" for leaf in foreign[:_MOST_NAMED]),
        )
    unlogged = [leaf.sql_name for leaf in leaves if leaf.persistence != "p"]
    if unlogged:
        raise PreconditionError(
            f"{table} has partitions that are unlogged: {named(unlogged)}",
            remedy="; ".join(f"ALTER TABLE {leaf} SET LOGGED" for leaf in unlogged[:_MOST_NAMED]),
        )
    weaker = [leaf for leaf in leaves if not (leaf.logs(promised) and (identity != "f" or leaf.identity == "f"))]
    if weaker:
        raise PreconditionError(
            f"{len(weaker)} of {len(leaves)} partitions of {table} log less of an old row than it promises:"
            f" {named([leaf.sql_name for leaf in weaker])} (a partition does not inherit the replica identity)",
            remedy=several([leaf.like_its_parent(identity) for leaf in weaker]),
        )


def several(statements: Sequence[str]) -> str:
    """Statements to copy: the first few, and how many more there are like them."""
    more = len(statements) - _MOST_NAMED
    return "; ".join(statements[:_MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")


def named(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
