"""A partitioned table of orders that keeps the ledger, and partitions of it that log what their parent promises."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tests.oracle.ledger import SCHEMA

if TYPE_CHECKING:
    import psycopg

PARTITIONED = SCHEMA.replace("note text);", "note text) PARTITION BY RANGE (id);")
"""By the key; without a partition yet."""


def standalone(name: str) -> str:
    """A table of its own that can be attached: its columns stand in another order."""
    index = f"{name.rpartition('.')[2]}_identity"
    return (
        f"CREATE TABLE {name} (version int NOT NULL DEFAULT 0, note text, expires_at timestamptz NOT NULL,"
        f" status text NOT NULL DEFAULT 'pending', id bigint PRIMARY KEY);"
        f"CREATE UNIQUE INDEX {index} ON {name} (id, status, expires_at);"
        f"ALTER TABLE {name} REPLICA IDENTITY USING INDEX {index};"
    )


def attach(name: str, begin: int | str, end: int | str, to: str = "orders") -> str:
    return f"ALTER TABLE {to} ATTACH PARTITION {name} FOR VALUES FROM ({begin}) TO ({end});"


def add_leaf(connection: psycopg.Connection[Any], name: str, begin: int | str, end: int | str) -> None:
    """A new, empty partition; MINVALUE and MAXVALUE are bounds too."""
    connection.execute(standalone(name) + attach(name, begin, end))  # type: ignore[call-overload]
