"""The replica identity that makes events exact: who lacks it, and the statements that give it. Pure.

https://www.postgresql.org/docs/current/sql-altertable.html#SQL-ALTERTABLE-REPLICA-IDENTITY
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cdcwatch.slot.partitions import several
from cdcwatch.slot.publication import quoted_name

if TYPE_CHECKING:
    from cdcwatch.slot.catalog import TableFacts
    from cdcwatch.slot.partitions import Partition


def exact_columns(table: TableFacts) -> list[str]:
    """Key, status, deadline: what the WAL must tell of an old row."""
    watched = table.watched
    columns = [*watched.key, watched.status, watched.deadline]
    return list(dict.fromkeys(column.name for column in columns if column is not None))


def inexact_leaves(table: TableFacts) -> list[Partition]:
    """The partitions that don't log them, whatever their parent does."""
    wanted = frozenset(exact_columns(table))
    return [leaf for leaf in table.partitions or () if not leaf.logs(wanted)]


def making_exact(table: TableFacts) -> str:
    """The statements that do it; of a partitioned table each partition first: no index is built under a lock."""
    wanted, name = exact_columns(table), table.sql_name
    nullable = [table.quoted([column]) for column in wanted if column in table.nullable]
    actions = ", ".join(f"ALTER COLUMN {column} SET NOT NULL" for column in nullable)
    steps = [f"ALTER TABLE {name} {actions}"] if actions else []
    leaves = inexact_leaves(table)
    if table.watched.identity == "f":
        steps = [several([leaf.like_its_parent("f") for leaf in leaves])]
    elif leaves:
        steps.append(several([_of_leaf(leaf, table, table.quoted(wanted)) for leaf in leaves]))
    if not table.is_identity_exact:
        index = quoted_name(f"{table.watched.name}_cdcwatch_identity")
        concurrently = " CONCURRENTLY" if table.partitions is None else ""
        steps.append(
            f"CREATE UNIQUE INDEX{concurrently} {index} ON {name} ({table.quoted(wanted)});"
            f" ALTER TABLE {name} REPLICA IDENTITY USING INDEX {index}"
        )
    return "; ".join(steps)


def _of_leaf(leaf: Partition, table: TableFacts, columns: str) -> str:
    """By its part of the parent's index where that is there; else by an index that the parent's takes for its part."""
    if leaf.identity_part is not None and table.is_identity_exact:
        return leaf.like_its_parent("i")
    index = quoted_name(f"{leaf.name}_cdcwatch_identity")
    return (
        f"CREATE UNIQUE INDEX CONCURRENTLY {index} ON {leaf.sql_name} ({columns});"
        f" ALTER TABLE {leaf.sql_name} REPLICA IDENTITY USING INDEX {index}"
    )
