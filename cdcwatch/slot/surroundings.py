"""The connection and what stands around it: TLS, a pooler between, the two clocks, transactions that run long."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from psycopg.rows import class_row

from cdcwatch.database import connect, translated
from cdcwatch.errors import CdcwatchError
from cdcwatch.queries import query
from cdcwatch.slot.blockers import Blocker, read_blockers
from cdcwatch.slot.stream import ReplicationConnection

if TYPE_CHECKING:
    import psycopg

    from cdcwatch.settings import Settings

CLOCK_SAMPLES: Final = 5
_APPLICATION: Final = "cdcwatch check"


class ConnectionFacts(Struct, frozen=True):
    """One of the two DSNs, as a connection made with it turned out."""

    is_encrypted: bool
    tls_version: str
    is_local: bool
    """It doesn't leave this machine."""
    is_pooled: bool
    """Another process answers than the one that let us in."""
    verifies_server: bool
    """sslmode is verify-ca or verify-full."""


class ClockFacts(Struct, frozen=True):
    """The database's clock against ours."""

    offset_us: int
    """Positive: the database is ahead."""
    uncertainty_us: int
    """Half the round trip of the best sample."""


class Surroundings(Struct, frozen=True):
    """All of it."""

    main: ConnectionFacts
    stream: ConnectionFacts | None
    """Of postgres.replication_dsn where that is another one and answers."""
    clock: ClockFacts
    running: tuple[Blocker, ...]
    """Transactions that have written, the oldest first."""
    stream_error: CdcwatchError | None
    """Why no replication connection could be made; None when one was."""


def read_surroundings(connection: psycopg.Connection[Any], settings: Settings) -> Surroundings:
    """Asks over `connection`, and makes short connections of its own to the stream's DSN. Changes nothing."""
    postgres = settings.postgres
    stream, stream_error = None, None
    if postgres.for_replication() != postgres.dsn:
        try:
            with connect(postgres.for_replication(), application_name=_APPLICATION) as other:
                stream = read_connection(other)
        except CdcwatchError as error:
            stream_error = error
    if stream_error is None:
        try:
            ReplicationConnection(postgres.for_replication(), application_name=_APPLICATION).close()
        except CdcwatchError as error:
            stream_error = error
    return Surroundings(
        read_connection(connection), stream, read_clock(connection), read_blockers(connection), stream_error
    )


class _Session(Struct, frozen=True):
    backend_pid: int
    is_encrypted: bool
    tls_version: str
    is_local: bool


def read_connection(connection: psycopg.Connection[Any]) -> ConnectionFacts:
    """What the server sees of a connection, and whether it is the server that we reached."""
    with translated(), connection.cursor(row_factory=class_row(_Session)) as cursor:
        session = cursor.execute(query("preflight", "session_facts")).fetchone()
    sslmode = next((option.val for option in connection.pgconn.info if option.keyword == b"sslmode"), None) or b""
    if session is None:  # the server hides the view
        session = _Session(connection.info.backend_pid, is_encrypted=False, tls_version="", is_local=False)
    return ConnectionFacts(
        session.is_encrypted,
        session.tls_version,
        session.is_local,
        session.backend_pid != connection.info.backend_pid,
        sslmode.startswith(b"verify"),
    )


def read_clock(connection: psycopg.Connection[Any]) -> ClockFacts:
    """The sample with the shortest round trip: the answer was made in the middle of it, give or take a half."""
    best: ClockFacts | None = None
    for _ in range(CLOCK_SAMPLES):
        before_us = time.time_ns() // 1000
        with translated():
            row = connection.execute(query("preflight", "server_clock")).fetchone()
        after_us = time.time_ns() // 1000
        now_us = row[0] if row else before_us
        half_us = max(0, after_us - before_us) // 2
        if best is None or half_us < best.uncertainty_us:
            best = ClockFacts(now_us - (before_us + half_us), half_us)
    if best is None:
        raise RuntimeError("at least one sample is taken")
    return best
