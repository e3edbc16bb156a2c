"""The ledger: a trigger writes every committed row change, closes included, with the time it was made."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection
    from datetime import datetime

    import psycopg

OPEN = frozenset({"pending"})
CLAIMED = "closing"

SCHEMA = """
CREATE TABLE orders (
  id bigint PRIMARY KEY, status text NOT NULL DEFAULT 'pending', expires_at timestamptz NOT NULL,
  version int NOT NULL DEFAULT 0, note text);
CREATE INDEX orders_open ON orders (expires_at) WHERE status = 'pending';
CREATE UNIQUE INDEX orders_identity ON orders (id, status, expires_at);
ALTER TABLE orders REPLICA IDENTITY USING INDEX orders_identity;
CREATE TABLE ledger (
  seq bigserial PRIMARY KEY, at timestamptz NOT NULL DEFAULT clock_timestamp(),
  old_id bigint, new_id bigint, old_status text, new_status text, old_deadline timestamptz, new_deadline timestamptz,
  is_ours boolean NOT NULL DEFAULT current_setting('application_name') = 'cdcwatch close');
CREATE FUNCTION write_ledger() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO ledger (old_id, new_id, old_status, new_status, old_deadline, new_deadline)
  VALUES (OLD.id, NEW.id, OLD.status, NEW.status, OLD.expires_at, NEW.expires_at);
  RETURN NULL;
END $$;
CREATE TRIGGER ledger AFTER INSERT OR UPDATE OR DELETE ON orders FOR EACH ROW EXECUTE FUNCTION write_ledger();
"""


class Entry(NamedTuple):
    """One committed row change. Of one key the entries are in the order of its changes: the row was locked."""

    at: datetime
    old_id: int | None
    new_id: int | None
    old_status: str | None
    new_status: str | None
    old_deadline: datetime | None
    new_deadline: datetime | None
    is_ours: bool
    """Whether a connection that closes made it."""

    @property
    def is_delete_of_ours(self) -> bool:
        """A close, with `close.action = "delete"`."""
        return self.new_id is None and self.is_ours


class Said(NamedTuple):
    """What the topic must say of one change of one key."""

    type: str
    deadline: datetime | None
    previous: datetime | None
    reason: str | None


def read_ledger(connection: psycopg.Connection[Any]) -> list[Entry]:
    """All of it."""
    rows = connection.execute(
        "SELECT at, old_id, new_id, old_status, new_status, old_deadline, new_deadline, is_ours FROM ledger ORDER BY seq"
    )
    return [Entry(*row) for row in rows]


def expected_events(ledger: list[Entry], told: Collection[str] = OPEN) -> dict[Any, list[Said]]:
    """Key to what its subscribers must see, in order. For a table whose replica identity logs status and deadline.

    `told`: the statuses in which a deadline is told as live, that of claimed orders among them.
    """
    expected: dict[Any, list[Said]] = defaultdict(list)
    for entry in ledger:
        was = entry.old_deadline if entry.old_status in told else None
        live = entry.new_deadline if entry.new_status in told else None
        if entry.old_id is not None and entry.old_id != entry.new_id:
            if was is not None:
                ended = ("expired", None) if entry.is_delete_of_ours else ("cancelled", "deleted")
                expected[entry.old_id].append(Said(f"deadline.{ended[0]}", None, was, ended[1]))
            was = None
        if entry.new_id is None or was == live:
            continue
        if live is None:
            why = "deadline_cleared" if entry.new_status in told else entry.new_status
            kind, reason = ("expired", None) if entry.new_status == "expired" else ("cancelled", why)
            said = Said(f"deadline.{kind}", entry.new_deadline, was, reason)
        else:
            said = Said("deadline.scheduled" if was is None else "deadline.moved", live, was, None)
        expected[entry.new_id].append(said)
    return expected


def closes(ledger: list[Entry]) -> list[Entry]:
    """The entries in which an order was closed."""
    return [
        entry
        for entry in ledger
        if entry.is_delete_of_ours or (entry.new_status == "expired" and entry.old_status != "expired")
    ]


def claims(ledger: list[Entry]) -> list[Entry]:
    """The entries in which an order was claimed."""
    return [entry for entry in ledger if entry.new_status == CLAIMED and entry.old_status != CLAIMED]


def assert_closes(ledger: list[Entry], connection: psycopg.Connection[Any], told: Collection[str] = OPEN) -> None:
    """Each close and claim found the order open and due, a close the order claimed where that comes before it; and
    nothing due was left open, nor anything claimed."""
    last = CLAIMED if CLAIMED in told else "pending"
    for entry in claims(ledger):
        assert entry.old_status == "pending", f"claimed in status {entry.old_status}: {entry}"
        assert entry.old_deadline == entry.new_deadline
        assert entry.old_deadline is not None
        assert entry.old_deadline <= entry.at, f"claimed early: {entry}"
    for entry in closes(ledger):
        assert entry.old_status == last, f"closed in status {entry.old_status}: {entry}"
        assert entry.is_delete_of_ours or entry.old_deadline == entry.new_deadline
        assert entry.old_deadline is not None
        assert entry.old_deadline <= entry.at, f"closed early: {entry}"
    ((left,),) = connection.execute(
        "SELECT count(*) FROM orders WHERE status IN ('pending', 'closing') AND expires_at < clock_timestamp() - interval '1 s'"
    )
    assert left == 0, f"{left} due orders were left open"
