"""A database server in memory: rows, a log of transactions, one slot whose walsender speaks wal2json."""

from __future__ import annotations

import copy
import json
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from cdcwatch.close.outcome import Closed, CloseReport
from cdcwatch.decode.note import CLOSING
from cdcwatch.errors import UnavailableError
from cdcwatch.slot.stream import Holder, SlotBusyError, SlotFacts
from tests import wal2json
from tests.fakes.slot import FACTS, keepalive, take, xlog_data
from tests.fakes.table import FakeDatabase, FakeRow, FakeTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cdcwatch.deadline.schedule import Due
    from tests.fakes.table import FakeClock

FIRST_LSN = 0x1000
COMMIT_BYTES = 0x30


class RowChange(NamedTuple):
    """One row before and after."""

    old_key: int | None
    old: FakeRow | None
    new_key: int | None
    new: FakeRow | None


TRUNCATE = RowChange(None, None, None, None)


@dataclass(frozen=True)
class Transaction:
    """A committed one, as the ledger keeps it. Without changes: another table's."""

    xid: int
    first_lsn: int
    commit_lsn: int
    end_lsn: int
    time_us: int
    changes: tuple[RowChange, ...]
    closing: tuple[int, ...] = ()
    """The orders that it closes by deleting them, as it says before it does."""


class Closure(NamedTuple):
    """A close, as an audit trigger sees it."""

    key: int
    was: FakeRow
    claimed: Due
    now_us: int


@dataclass
class Rules:
    """What the database checks in a close; a mutation takes one away."""

    checks_deadline: bool = True
    checks_version: bool = True


@dataclass
class Server:
    """What outlives every connection."""

    is_full: bool
    """Whether the replica identity logs whole old rows."""
    database: FakeDatabase = field(default_factory=FakeDatabase)
    log: list[Transaction] = field(default_factory=list)
    closures: list[Closure] = field(default_factory=list)
    rules: Rules = field(default_factory=Rules)
    lsn: int = FIRST_LSN
    xid: int = 1000
    confirmed_lsn: int = FIRST_LSN
    kept_lsn: int = FIRST_LSN
    """The confirmed position that a crash goes back to."""
    pid: int = 100
    _messages: dict[int, list[bytes]] = field(default_factory=dict)
    sender: SimStream | None = None
    confirming: Callable[[int], None] = lambda _lsn: None
    """Called with every flush position that reaches the server."""

    @property
    def rows(self) -> dict[int, FakeRow]:
        """By key."""
        return self.database.rows  # type: ignore[return-value]

    def commit(self, changes: Sequence[RowChange], closing: Sequence[int] = ()) -> Transaction:
        """Into the log; the rows were changed already."""
        self.xid += 1
        first_lsn = self.lsn
        commit_lsn = first_lsn + 0x10 * (len(changes) + 1)
        self.lsn = commit_lsn + COMMIT_BYTES
        done = Transaction(
            self.xid, first_lsn, commit_lsn, self.lsn, self.database.now_us, tuple(changes), tuple(closing)
        )
        self.log.append(done)
        return done

    def insert(self, key: int, row: FakeRow) -> RowChange:
        """A new row."""
        self.rows[key] = row
        return RowChange(None, None, key, copy.copy(row))

    def update(self, key: int, new_key: int | None = None, **values: object) -> RowChange:
        """Changes a row, its version too, as any application with an optimistic lock does."""
        old = self.rows.pop(key)
        new = replace(old, **{"version": old.version + 1, **values})  # type: ignore[arg-type]
        new_key = key if new_key is None else new_key
        self.rows[new_key] = new
        return RowChange(key, copy.copy(old), new_key, copy.copy(new))

    def delete(self, key: int) -> RowChange:
        """The row is gone."""
        return RowChange(key, copy.copy(self.rows.pop(key)), None, None)

    def truncate(self) -> RowChange:
        """All rows are gone, and none is logged."""
        self.rows.clear()
        return TRUNCATE

    def crash(self) -> None:
        """An immediate stop and a start: the slot goes back to what was on disk."""
        self.cut()
        self.confirmed_lsn = self.kept_lsn

    def cut(self) -> None:
        """Ends the walsender."""
        if self.sender is not None:
            self.sender.is_up = False
            self.sender = None

    def checkpoint(self) -> None:
        """The slot's position reaches the disk."""
        self.kept_lsn = self.confirmed_lsn

    def messages(self, done: Transaction) -> list[bytes]:
        """What the plugin makes of a transaction, whenever it is asked."""
        made = self._messages.get(done.xid)
        if made is None:
            made = self._messages[done.xid] = list(self._decoded(done))
        return made

    def _decoded(self, done: Transaction) -> Iterator[bytes]:
        when = {"xid": done.xid, "time_us": done.time_us}
        yield xlog_data(wal2json.begin(done.commit_lsn, done.end_lsn, **when), done.first_lsn)
        if done.closing:
            note = {"note": CLOSING, "table_oid": self.database.watched.oid, "keys": done.closing}
            yield xlog_data(wal2json.message(json.dumps(note), lsn=done.first_lsn, **when), done.first_lsn)
        for number, change in enumerate(done.changes):
            yield xlog_data(self._line(change, when), done.first_lsn + 0x10 * number)
        yield xlog_data(wal2json.commit(done.commit_lsn, done.end_lsn, **when), done.end_lsn)

    def _line(self, change: RowChange, when: Mapping[str, int]) -> bytes:
        watched = self.database.watched
        if change is TRUNCATE:
            return wal2json.render("T", watched, **when)
        columns = None if change.new is None else _columns(change.new_key, change.new)
        identity = None
        if change.old is not None:
            identity = _columns(change.old_key, change.old) if self.is_full else {"id": change.old_key}
        action = "I" if identity is None else "D" if columns is None else "U"
        return wal2json.render(action, watched, columns=columns, identity=identity, **when)

    def facts(self) -> SlotFacts:
        """As a new connection finds them."""
        return replace(FACTS, confirmed_flush_lsn=self.confirmed_lsn, server_lsn=self.lsn, walsender_pid=self.pid)


class SimSlot:
    """One process's way to the slot."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def acquire(self, options: Mapping[str, str]) -> tuple[SlotFacts, SimStream]:
        """As PostgresSlot's."""
        server = self._server
        if not server.database.is_up:
            raise UnavailableError("the server is away", remedy="bring it back")
        if server.sender is not None:
            raise SlotBusyError("orders", Holder(1, "cdcwatch", ""))
        server.pid += 1
        server.sender = SimStream(server, server.pid)
        return server.facts(), server.sender


class SimStream:
    """A walsender and the network to it. The scheduler moves messages and status updates; what is under way can be lost."""

    def __init__(self, server: Server, pid: int) -> None:
        self._server = server
        self.pid = pid
        self.is_up = True
        self.received_lsn = server.confirmed_lsn
        self.sent_lsn = server.confirmed_lsn
        self._next = next(
            (at for at, done in enumerate(server.log) if done.commit_lsn >= server.confirmed_lsn), len(server.log)
        )
        self._unsent: deque[bytes] = deque()
        self.arrived: deque[bytes] = deque()
        self.statuses: deque[int] = deque()

    def pump(self, messages: int) -> None:
        """Decodes and sends so many messages, and takes in what the client has said."""
        if not self.is_up:
            return
        while self.statuses:
            self._confirm(self.statuses.popleft())
        for _ in range(messages):
            if not self._unsent and self._next < len(self._server.log):
                self._decode(self._server.log[self._next])
                self._next += 1
            if not self._unsent:
                return
            self.arrived.append(self._unsent.popleft())

    def keep_alive(self, *, reply_requested: bool) -> None:
        """Says how far it is: everything that is sent is before it."""
        if not self.is_up:
            return
        caught_up = not self._unsent and self._next == len(self._server.log)
        if caught_up:
            self.sent_lsn = self._server.lsn
        self.arrived.append(keepalive(self.sent_lsn, reply_requested=reply_requested))

    def _decode(self, done: Transaction) -> None:
        self._unsent += self._server.messages(done)
        self.sent_lsn = done.end_lsn

    def _confirm(self, flush_lsn: int) -> None:
        server = self._server
        server.confirming(flush_lsn)
        server.confirmed_lsn = max(server.confirmed_lsn, flush_lsn)

    # -- the client's side: SlotStream ------------------------------------------------------------------------------

    def fileno(self) -> int:
        """There is nothing to wait on."""
        return -1

    def read(self, limit_bytes: int) -> list[memoryview]:
        """As ReplicationStream's."""
        self._check()
        taken, self.received_lsn = take(self.arrived, limit_bytes, self.received_lsn)
        return taken

    def send_status(self, flush_lsn: int, *, reply_requested: bool = False) -> None:
        """Under way from now on."""
        self._check()
        self.statuses.append(min(flush_lsn, self.received_lsn))

    def close(self) -> None:
        """A goodbye: what was said arrives."""
        if self.is_up:
            while self.statuses:
                self._confirm(self.statuses.popleft())
            self._server.cut()

    def _check(self) -> None:
        if not self.is_up:
            raise UnavailableError("the replication connection broke", remedy="it connects again by itself")


class SimTable(FakeTable):
    """A connection whose closes go into the log, as one transaction a batch."""

    def __init__(self, server: Server, clock: FakeClock) -> None:
        super().__init__(server.database, clock)
        self._server = server

    def close(self, batch: Sequence[Due]) -> CloseReport:
        """As PostgresTable's; the audit sees every row that was closed, and what was claimed of it."""
        server = self._server
        before = {due.key: copy.copy(row) for due in batch if (row := server.rows.get(due.key)) is not None}  # type: ignore[call-overload]
        try:
            report = super().close(batch)
            self._close_without_check(batch, report)
        finally:
            claims = {due.key: due for due in batch}
            changes, deleted = [], []
            for key, was in before.items():
                row = server.rows.get(key)  # type: ignore[call-overload]
                if row == was:
                    continue
                server.closures.append(Closure(key, was, claims[key], server.database.now_us))  # type: ignore[arg-type]
                if row is None:
                    deleted.append(key)
                    changes.append(RowChange(key, was, None, None))  # type: ignore[arg-type]
                else:
                    changes.append(RowChange(key, was, key, copy.copy(row)))  # type: ignore[arg-type]
            if changes:
                server.commit(changes, deleted)  # type: ignore[arg-type]
        return report

    def _close_without_check(self, batch: Sequence[Due], report: CloseReport) -> None:
        """What a statement that lacks a guard would close as well."""
        rules, server = self._server.rules, self._server
        if rules.checks_deadline and rules.checks_version:
            return
        for due in batch:
            row = server.rows.get(due.key)  # type: ignore[call-overload]
            if row is None or row.status != "pending" or row.deadline_us is None:
                continue
            fits = row.version == due.version or not rules.checks_version
            if fits and (row.deadline_us <= server.database.now_us or not rules.checks_deadline):
                row.status, row.version = "expired", row.version + 1
                report.closed.append(Closed(due.key, due.deadline_us, row.version, server.database.now_us))
                report.unclosed[:] = [one for one in report.unclosed if one.due.key != due.key]


def _columns(key: int | None, row: FakeRow) -> dict[str, object]:
    deadline = None if row.deadline_us is None else wal2json.instant(row.deadline_us)
    return {"id": key, "status": row.status, "expires_at": deadline, "version": row.version}
