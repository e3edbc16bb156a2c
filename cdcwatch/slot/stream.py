"""The edge to the walsender: one replication connection, on psycopg's libpq layer.

https://www.postgresql.org/docs/current/protocol-replication.html
https://www.psycopg.org/psycopg3/docs/api/pq.html
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

import psycopg
from msgspec import Struct
from psycopg import conninfo

from cdcwatch.database import BoundedConnection, accept_any_bytes, explain, parse_dsn, redact, translated
from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.instant import from_unix_us
from cdcwatch.lsn import parse_lsn
from cdcwatch.queries import query
from cdcwatch.slot.protocol import (
    KEEPALIVE,
    XLOG_DATA,
    parse_keepalive,
    standby_status_update,
    start_lsn,
    start_replication,
)
from cdcwatch.slot.refusal import explain_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psycopg.pq.abc import PGconn

_PINNED: Final = {
    "DateStyle": "ISO",
    "TimeZone": "UTC",
    "IntervalStyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
    "client_min_messages": "warning",  # wal2json warns of changes that it leaves out
}
_TCP: Final = {
    "keepalives_idle": "5",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
    "connect_timeout": "10",
}
_FAREWELL_S: Final = 2.0
# For the questions before the stream; the stream itself has `wal_sender_timeout`.
_ANSWER_TIMEOUT_S: Final = 30.0

_log = logging.getLogger(__name__)


class SlotFacts(Struct, frozen=True):
    """The slot and its server, as they stood when the connection was made."""

    system_identifier: str
    timeline: int
    database: str
    plugin: str
    confirmed_flush_lsn: int
    wal_sender_timeout_s: float
    """0: the server waits for ever."""
    server_lsn: int = 0
    """Where the server's WAL ended."""
    walsender_pid: int = 0
    """The server's process at the other end of this connection."""
    ancestry: tuple[tuple[int, int], ...] = ()
    """Earlier timelines of the server's, and the LSN at which each was left."""


class Holder(Struct, frozen=True):
    """Who has the slot."""

    pid: int
    application: str
    address: str


class SlotBusyError(UnavailableError):
    """Another process reads the slot."""

    def __init__(self, slot: str, holder: Holder | None) -> None:
        who = f"pid {holder.pid} ({holder.application or 'no name'}, {holder.address or 'local'})" if holder else "?"
        super().__init__(
            f"the slot {slot!r} is read by {who}",
            remedy="nothing: this process is its standby and takes over by itself",
        )
        self.holder = holder


class Slot(Protocol):
    """A replication slot to be read: what the reader is given, so that a simulation can hand it another."""

    def acquire(self, options: Mapping[str, str]) -> tuple[SlotFacts, SlotStream]:
        """Takes the slot and begins its stream. SlotBusyError while another process reads it; UnavailableError."""
        ...


class SlotStream(Protocol):
    """A running stream of one slot. UnavailableError from any method: make a new one."""

    @property
    def received_lsn(self) -> int:
        """The last position that came in on this connection."""
        ...

    def fileno(self) -> int:
        """To wait on."""
        ...

    def read(self, limit_bytes: int) -> list[memoryview]:
        """Whole messages that are there now, about `limit_bytes` of them; never waits."""
        ...

    def send_status(self, flush_lsn: int, *, reply_requested: bool = False) -> None:
        """Tells the server what is durable; never waits."""
        ...

    def close(self) -> None:
        """Says goodbye, so that what was sent is read."""
        ...


class PostgresSlot:
    """One slot of one server."""

    def __init__(self, dsn: str, name: str, *, plugin: str, warned: Callable[[str], None] = lambda _said: None) -> None:
        """`plugin`: whose options `acquire` gets. `warned` hears, while the stream is read, what the server says."""
        self._dsn, self._name, self._plugin, self._warned = dsn, name, plugin, warned
        self._waiting: ReplicationConnection | None = None

    def acquire(self, options: Mapping[str, str]) -> tuple[SlotFacts, ReplicationStream]:
        """Keeps its connection while the slot is busy, so that a standby costs the server one, not one a second."""
        connection, self._waiting = self._waiting or ReplicationConnection(self._dsn), None
        try:
            facts = connection.facts(self._name)
            self._require_plugin(facts.plugin)
            stream = connection.start(self._name, options, facts.confirmed_flush_lsn)
            connection.tell(self._warned)
        except SlotBusyError:
            self._waiting = connection
            raise
        except BaseException:
            connection.close()
            raise
        return facts, stream

    def _require_plugin(self, found: str) -> None:
        """Told here, as another plugin would complain of our options instead."""
        if found != self._plugin:
            raise PreconditionError(
                f"slot {self._name} has the plugin {found}, not {self._plugin}",
                remedy=f"set slot.plugin = \"{found}\", or make the slot anew: docs/runbook.md, 'Changing the plugin'",
            )


class ReplicationConnection:
    """A connection of the walsender: pinned and verified, not streaming yet."""

    def __init__(self, dsn: str, *, application_name: str = "cdcwatch") -> None:
        """UnavailableError or PreconditionError; DSNs are merged by libpq's rules, never formatted."""
        with translated():
            parameters = parse_dsn(dsn)
            options = " ".join(f"-c {name}={value}" for name, value in _PINNED.items())
            given = str(parameters.get("options") or "")
            parameters["options"] = f"{given} {options}".strip()
            parameters["replication"] = "database"
            merged = conninfo.make_conninfo("", **{"application_name": application_name, **_TCP, **parameters})
            self._connection = BoundedConnection.connect(
                # The walsender knows simple queries only: parameters are put in on our side.
                merged,
                autocommit=True,
                cursor_factory=psycopg.ClientCursor,
            )
            self._connection.answer_timeout_s = _ANSWER_TIMEOUT_S
        self.pid = self._connection.info.backend_pid
        try:
            self._verify_session()
            with translated():
                accept_any_bytes(self._connection)
        except BaseException:
            self._connection.close()
            raise

    def _verify_session(self) -> None:
        """A pooler or a login trigger may undo what was asked for; then every instant would be a guess."""
        for name, wanted in _PINNED.items():
            found = str(self._one(f"SHOW {name}")[0])
            if found.split(",", maxsplit=1)[0] != wanted:
                raise PreconditionError(
                    f"the replication session has {name} = {found!r} and needs {wanted!r}",
                    remedy="connect directly, past the pooler: set postgres.replication_dsn",
                )

    def _one(self, statement: str) -> tuple[Any, ...]:
        with translated():
            row: tuple[Any, ...] | None = self._connection.execute(statement.encode()).fetchone()
        if row is None:
            raise UnavailableError("PostgreSQL: an answer without a row", remedy="see the server's log")
        return row

    def facts(self, slot: str) -> SlotFacts:
        """PreconditionError where the slot is missing, lost, physical or another database's."""
        system_identifier, timeline, server_lsn, database = self._one("IDENTIFY_SYSTEM")
        with translated():
            row = self._connection.execute(query("stream", "slot_facts"), {"slot": slot}).fetchone()
        if row is None:
            raise _no_slot(slot)
        plugin, slot_database, confirmed, wal_status, timeout_ms = row
        if wal_status == "lost":
            raise PreconditionError(
                f"the slot {slot!r} is lost: the server removed WAL it still needed",
                remedy="cdcwatch recover: makes a new slot, then reads the table again for what the topic lacks",
            )
        if slot_database != database:
            raise PreconditionError(
                f"the slot {slot!r} belongs to the database {slot_database!r}, not {database!r}",
                remedy="set postgres.dsn to that database, or slot.name to a slot of this one",
            )
        return SlotFacts(
            str(system_identifier),
            int(timeline),
            str(database),
            str(plugin),
            parse_lsn(confirmed),
            int(timeout_ms) / 1000,
            parse_lsn(server_lsn),
            self.pid,
            self._ancestry(int(timeline)),
        )

    def _ancestry(self, timeline: int) -> tuple[tuple[int, int], ...]:
        """Of a server that was promoted or restored once; empty where its history file is gone."""
        if timeline == 1:
            return ()
        try:
            row = self._connection.execute(f"TIMELINE_HISTORY {timeline:d}".encode()).fetchone()
        except psycopg.errors.UndefinedFile:
            return ()
        except psycopg.Error as error:
            raise explain(error) from error
        return parse_history(row[1]) if row is not None else ()

    def start(self, slot: str, options: Mapping[str, str], confirmed_flush_lsn: int) -> ReplicationStream:
        """Begins the stream where the slot stands. SlotBusyError while another process has it."""
        try:
            self._connection.execute(start_replication(slot, options))
        except psycopg.errors.ObjectInUse:
            raise SlotBusyError(slot, self._holder(slot)) from None
        except psycopg.errors.UndefinedObject:
            raise _no_slot(slot) from None
        except psycopg.Error as error:
            raise explain(error) from error
        return ReplicationStream(self._connection, confirmed_flush_lsn)

    def tell(self, warned: Callable[[str], None]) -> None:
        """Hands on the server's notices and warnings, while something is read."""
        self._connection.add_notice_handler(lambda notice: warned(notice.message_primary or ""))

    def _holder(self, slot: str) -> Holder | None:
        with translated():
            row = self._connection.execute(query("stream", "slot_holder"), {"slot": slot}).fetchone()
        return None if row is None else Holder(int(row[0]), row[1] or "", row[2] or "")

    def close(self) -> None:
        """Without a goodbye."""
        self._connection.close()


class ReplicationStream:
    """The COPY BOTH part of a connection. Nothing in here waits but `close`."""

    def __init__(self, connection: psycopg.Connection[Any], confirmed_flush_lsn: int) -> None:
        self._connection = connection
        self._pgconn: PGconn = connection.pgconn
        self._pgconn.nonblocking = 1
        self._received_lsn = confirmed_flush_lsn  # all before it came on an earlier one

    @property
    def received_lsn(self) -> int:
        """The last position that came in."""
        return self._received_lsn

    def fileno(self) -> int:
        """Libpq's socket."""
        return self._pgconn.socket

    def read(self, limit_bytes: int) -> list[memoryview]:
        """Drains libpq and the socket until nothing more is there or the limit is reached."""
        messages: list[memoryview] = []
        size_bytes = 0
        pgconn = self._pgconn
        get, append = pgconn.get_copy_data, messages.append
        try:
            while size_bytes < limit_bytes:
                # libpq takes 16 to 32 KiB a call, so one call is not a drain.
                pgconn.consume_input()
                before = size_bytes
                while True:
                    length, message = get(1)
                    if length <= 0:
                        break
                    size_bytes += length
                    append(message)
                if length < 0:
                    self._ended()
                if size_bytes == before:
                    break
        except psycopg.OperationalError as error:
            raise UnavailableError(
                f"the replication connection broke: {redact(str(error)).strip().splitlines()[0]}",
                remedy="see that the server is up; cdcwatch connects again by itself",
            ) from error
        self._note_position(messages)
        return messages

    def _note_position(self, messages: list[memoryview]) -> None:
        for message in reversed(messages):
            kind = message[0]
            if kind == XLOG_DATA:
                self._received_lsn = max(self._received_lsn, start_lsn(message))
                return
            if kind == KEEPALIVE:
                self._received_lsn = max(self._received_lsn, parse_keepalive(message).wal_end)

    def _ended(self) -> None:
        """The server closed the stream: what it said decides whether to come back."""
        result = self._pgconn.get_result()
        if result is not None and result.error_message:
            raise explain_stream(psycopg.errors.error_from_result(result))
        raise UnavailableError("the server ended the stream", remedy="cdcwatch connects again by itself")

    def send_status(self, flush_lsn: int, *, reply_requested: bool = False) -> None:
        """Received and flushed positions. What the socket can't take now goes with the next call."""
        update = standby_status_update(
            received_lsn=self._received_lsn,
            flush_lsn=min(flush_lsn, self._received_lsn),
            at_us=from_unix_us(time.time_ns() // 1000),
            reply_requested=reply_requested,
        )
        try:
            if self._pgconn.flush() == 0:
                self._pgconn.put_copy_data(update)
                self._pgconn.flush()
        except psycopg.OperationalError as error:
            raise UnavailableError(
                f"the replication connection broke: {redact(str(error)).strip().splitlines()[0]}",
                remedy="see that the server is up; cdcwatch connects again by itself",
            ) from error

    def close(self) -> None:
        """Ends the copy and reads until the server has, so that the last status update isn't lost with a reset."""
        with contextlib.suppress(psycopg.Error):
            self._pgconn.put_copy_end()
            give_up_s = time.monotonic() + _FAREWELL_S
            while time.monotonic() < give_up_s and self._pgconn.flush() == 1:
                time.sleep(0.001)
            while time.monotonic() < give_up_s:
                self._pgconn.consume_input()
                length, _ = self._pgconn.get_copy_data(1)
                if length < 0:
                    break
                if length == 0:
                    time.sleep(0.001)
        self._connection.close()


def _no_slot(slot: str) -> PreconditionError:
    return PreconditionError(
        f"there is no slot {slot!r}", remedy="cdcwatch slot create; where there was one, cdcwatch recover"
    )


def parse_history(content: str | bytes) -> tuple[tuple[int, int], ...]:
    """A timeline history file: lines of a timeline, the LSN at which it was left, and words; `#` begins a comment."""
    text = content if isinstance(content, str) else bytes(content).decode(errors="replace")
    lines = [line.split(maxsplit=2) for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return tuple((int(timeline), parse_lsn(lsn)) for timeline, lsn, *_ in lines)
