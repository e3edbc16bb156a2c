"""The leaves of a partitioned table: what is logged of a change is each leaf's own affair, not its parent's.

With publish_via_partition_root pgoutput speaks in the parent's name, so that a leaf which logs less than the parent
promises would be believed to have changed less.
https://www.postgresql.org/docs/current/sql-altertable.html#SQL-ALTERTABLE-REPLICA-IDENTITY
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cdcwatch.errors import PreconditionError
from cdcwatch.table import Leaf

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_NAMED: Final = 3


@dataclass(frozen=True, slots=True)
class Partition:
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

    @property
    def leaf(self) -> Leaf:
        """What the stream's readers need of it."""
        return Leaf(self.oid, self.schema, self.name, self.filenode)

    def logs(self, columns: frozenset[str]) -> bool:
        """Whether the WAL tells these columns of an old row."""
        return self.identity == "f" or columns <= set(self.identity_columns)


def require_whole(table: str, leaves: Sequence[Partition], identity: str, promised: frozenset[str]) -> None:
    """PreconditionError unless every leaf is in the WAL and logs what the parent's replica identity promises."""
    foreign = [leaf.sql_name for leaf in leaves if leaf.kind != "r"]
    if foreign:
        raise PreconditionError(
            f"{table} has partitions that are not in this server's WAL: {_named(foreign)}",
            remedy="; ".join(f"ALTER TABLE {table} DETACH PARTITION {leaf}" for leaf in foreign[:_MOST_NAMED]),
        )
    unlogged = [leaf.sql_name for leaf in leaves if leaf.persistence != "p"]
    if unlogged:
        raise PreconditionError(
            f"{table} has partitions that are unlogged: {_named(unlogged)}",
            remedy="; ".join(f"ALTER TABLE {leaf} SET LOGGED" for leaf in unlogged[:_MOST_NAMED]),
        )
    weaker = [leaf for leaf in leaves if not (leaf.logs(promised) and (identity != "f" or leaf.identity == "f"))]
    if weaker:
        wanted = {"f": "FULL", "i": "USING INDEX its_index (its part of the parent's index)"}.get(identity, "DEFAULT")
        raise PreconditionError(
            f"{len(weaker)} of {len(leaves)} partitions of {table} log less of an old row than it promises:"
            f" {_named([leaf.sql_name for leaf in weaker])} (a partition does not inherit the replica identity)",
            remedy="; ".join(f"ALTER TABLE {leaf.sql_name} REPLICA IDENTITY {wanted}" for leaf in weaker[:_MOST_NAMED])
            + (f"; and {len(weaker) - _MOST_NAMED} more" if len(weaker) > _MOST_NAMED else ""),
        )


def _named(names: Sequence[str]) -> str:
    more = len(names) - _MOST_NAMED
    return ", ".join(names[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
