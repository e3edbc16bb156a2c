"""Ordinary connections to PostgreSQL, and what its errors mean to an operator.

Every connection is autocommit and keeps no session state, so that it works through a pooler in transaction mode.
"""

from __future__ import annotations

import contextlib
import re
import time
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import conninfo
from psycopg.adapt import Buffer, Dumper, Loader
from psycopg.pq import Format
from psycopg.types.numeric import Int8BinaryLoader

from cdcwatch.errors import CdcwatchError, ConfigurationError, PreconditionError, UnavailableError
from cdcwatch.instant import instant_sql, parse_instant

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    from psycopg.abc import PQGen

_CONNECT_TIMEOUT_S = 10
_WAIT_INTERVAL_S: Final = 0.1

_Answer = TypeVar("_Answer")
_Row = TypeVar("_Row")

# Linux gives up on unacknowledged bytes after this; a dead peer is noticed in seconds, not in 15 minutes.
_TCP = {"keepalives_idle": "5", "keepalives_interval": "3", "keepalives_count": "3", "tcp_user_timeout": "15000"}

_POOLER = re.compile(r"unsupported startup parameter|pgbouncer|pooler", re.IGNORECASE)
_PLAIN_PASSWORD = re.compile(r"(password\s*=\s*)('(?:[^'\\]|\\.)*'|\S+)|(://[^:/@\s]*:)[^\s]*@", re.IGNORECASE)

# libpq gives no SQLSTATE while it connects: these refusals are known by their text, and no retry helps.
_REFUSED = (
    (re.compile(r"password authentication failed|no password supplied", re.IGNORECASE), "28P01"),
    (
        re.compile(r"no pg_hba\.conf entry|not permitted to log in|authentication failed|role .* does not exist"),
        "28000",
    ),
    (re.compile(r"database .* does not exist"), "3D000"),
)

_CANCEL_TIMEOUT_S: Final = 1.0
_NO_TLS: Final = "the server's side: ssl = on with ssl_cert_file and ssl_key_file; ours: sslmode in the DSN"
# What libpq says of a value that it can't use.
_INVALID: Final = re.compile(r"invalid (\S+ value|port number|integer value)")
# What else ends a connection in the making, with a remedy of its own: no retry helps, as with a wrong password.
_BARRED: Final = (
    (
        re.compile(r"certificate verify failed|certificate has expired|unable to get local issuer"),
        "set sslrootcert to the authority of the server's certificate, or renew what has expired",
    ),
    (
        re.compile(r"server certificate for .* does not match host name|host name must be specified"),
        "connect by a name that the server's certificate holds (host=…, and hostaddr=… for the address)",
    ),
    (re.compile(r"root certificate file .* does not exist"), "set sslrootcert to the authority's file"),
    (re.compile(r"does not support SSL"), f"let it encrypt: {_NO_TLS}"),
    (
        re.compile(r"private key file|certificate file|requires a valid client certificate|certificate authentication"),
        "mend sslcert, sslkey (chmod 600) and sslpassword in the DSN",
    ),
    (
        re.compile(r"permission denied for database"),
        "GRANT CONNECT ON DATABASE … TO …, for the database and the role of postgres.dsn, as sql/install.sql does",
    ),
    (
        re.compile(r"to start (walsender|WAL sender)"),
        "ALTER ROLE … REPLICATION for the role of postgres.dsn, as sql/install.sql does",
    ),
    (re.compile(r"no pg_hba\.conf entry for .*no encryption"), "encrypt the link: sslmode=verify-full in the DSN"),
)

# Somebody's time limit, a cancel, a lock or a conflict: nothing that the next attempt must meet again.
_TRANSIENT = frozenset({"25P03", "25P04", "40001", "40P01", "55P03", "57014"})
_REMEDIES = {
    "28P01": "set the right password (PGPASSFILE, a service file or the DSN)",
    "28000": "make the role (sql/install.sql) or name another in postgres.dsn, and let it in from this address: a line"
    " in pg_hba.conf, then SELECT pg_reload_conf()",
    "3D000": "name an existing database in postgres.dsn",
    "53300": "raise max_connections, or lower close.concurrency",
    "42501": "grant the role what it lacks: see sql/install.sql and `cdcwatch check`",
    "53400": "drop a slot that nobody reads (cdcwatch slot list), or raise max_replication_slots and restart",
    "57014": "a time limit of the role ended it: see statement_timeout in `ALTER ROLE … SET`, and try again",
    "55P03": "somebody holds the lock: see pg_locks, and try again",
    "58P01": "install the output plugin's library on the server: docs/runbook.md; no extension has to be created",
    "22023": "the server's output plugin is too old: `cdcwatch check` tells more",
    "08P01": "connect directly, past any pooler: set postgres.replication_dsn",
    "25006": "connect to the primary: target_session_attrs=read-write",
    "57P03": "wait: the server is starting up or shutting down",
    "42P01": "name the table in table.name as schema.table; `cdcwatch check` shows near matches",
    "42703": "name existing columns in the configuration; `cdcwatch check` shows the table's",
    "42704": "make the slot: cdcwatch slot create",
    "55000": "see `cdcwatch slot status`",
    "55006": "wait for the other process, or end it",
}


class Instant(int):
    """Microseconds since 2000-01-01 UTC, as a statement's timestamptz parameter."""


class _InstantDumper(Dumper):
    """ISO text with its offset: read alike under every DateStyle and TimeZone."""

    def dump(self, obj: Any) -> Buffer:
        return instant_sql(int(obj)).encode()


class _InstantTextLoader(Loader):
    """Text form, for connections that did not ask for binary. Needs ISO, which `connect` sets."""

    def load(self, data: Buffer) -> int:
        return parse_instant(bytes(data).decode())


class MangledText(str):
    r"""Stands for bytes that are no UTF-8, to be shown: `\xe9`. As a key it would be another row's."""

    __slots__ = ()


class _AnyTextLoader(Loader):
    """Text of a SQL_ASCII database."""

    def load(self, data: Buffer) -> str:
        try:
            return bytes(data).decode()
        except UnicodeDecodeError:
            return MangledText(bytes(data).decode(errors="backslashreplace"))


class _AnyTextBinaryLoader(_AnyTextLoader):
    format = Format.BINARY


class NoAnswerError(psycopg.OperationalError):
    """The server stayed silent for too long."""


class BoundedConnection(psycopg.Connection[_Row]):
    """A connection that is given up when the server stays silent for too long.

    libpq waits for an answer for ever, and TCP's own limits don't help where a proxy or a firewall in between goes on
    acknowledging what it swallows.
    """

    answer_timeout_s: float | None = None
    """None: it waits for ever."""

    def wait(self, gen: PQGen[_Answer], interval: float = _WAIT_INTERVAL_S, timeout: float | None = None) -> _Answer:
        """As psycopg's, which everything goes through that waits for the server."""
        if self.answer_timeout_s is not None:
            gen = bounded(gen, self.answer_timeout_s, self._give_up)
        if timeout is None:  # psycopg before 3.3 knows no such argument
            return super().wait(gen, interval)
        return super().wait(gen, interval, timeout)

    def _give_up(self) -> None:
        """Closes, and lets the server know, if it lives: a statement that hangs would keep its locks.

        Never by PQcancel, which waits without an end and holds up every thread of the process meanwhile.
        https://www.postgresql.org/docs/current/libpq-cancel.html
        """
        if psycopg.capabilities.has_cancel_safe():
            with contextlib.suppress(psycopg.Error):
                self.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
        self.close()


def bounded(
    gen: PQGen[_Answer], timeout_s: float, give_up: Callable[[], None], now_s: Callable[[], float] = time.monotonic
) -> Generator[Any, Any, _Answer]:
    """The generator, ended by OperationalError once the socket was not ready for so long, `give_up` being called.

    Its consumer sends 0 (psycopg's READY_NONE) at each interval without readiness: the clock is read then only.
    https://www.psycopg.org/psycopg3/docs/api/connections.html#psycopg.Connection.wait
    """
    silent_since_s: float | None = None
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            if ready != 0:
                silent_since_s = None
            elif silent_since_s is None:
                silent_since_s = now_s()
            elif now_s() - silent_since_s >= timeout_s:
                give_up()
                raise NoAnswerError(f"no answer for {timeout_s:g} s")
            wanted = gen.send(ready)
    except StopIteration as end:
        answer: _Answer = end.value
        return answer


def connect(
    dsn: str, *, application_name: str, answer_timeout_s: float | None = None
) -> psycopg.Connection[tuple[Any, ...]]:
    """An autocommit connection on which timestamptz is integer microseconds since 2000 (cursors: `binary=True`).

    A statement may take `answer_timeout_s`; None: as long as it likes.
    UnavailableError when the server can't be reached now; ConfigurationError or PreconditionError when no retry helps.
    """
    with translated():
        parameters = parse_dsn(dsn)
        defaults = {
            "application_name": application_name,
            "connect_timeout": str(_CONNECT_TIMEOUT_S),
            "client_encoding": "UTF8",  # else a SQL_ASCII database's texts would be bytes
            **_TCP,
        }
        made: BoundedConnection[tuple[Any, ...]] = BoundedConnection.connect(
            conninfo.make_conninfo("", **{**defaults, **parameters}), autocommit=True, prepare_threshold=None
        )
        made.answer_timeout_s = answer_timeout_s
        accept_any_bytes(made)
    register_instants(made)
    return made


def parse_dsn(dsn: str) -> dict[str, str]:
    """Libpq's keywords of a DSN, read the way libpq does; only what the DSN itself says.

    ConfigurationError when it can't be read, or reads as something its author can't have meant: an unescaped `@`, `/`
    or `:` in a URI's password moves part of it into host, port or database, and from there into error messages.
    """
    try:
        parameters = {key: str(value) for key, value in conninfo.conninfo_to_dict(dsn).items()}
    except psycopg.ProgrammingError:
        raise _unreadable_dsn() from None  # libpq's text quotes the part of the DSN it stumbled over
    port = parameters.get("port", "")
    uri = dsn.lstrip().startswith(("postgresql://", "postgres://"))
    displaced = uri and any("@" in parameters.get(key, "") for key in ("host", "port", "dbname"))
    if displaced or not all(part.isdigit() or not part for part in port.split(",")):
        raise _unreadable_dsn()
    return parameters


def _unreadable_dsn() -> ConfigurationError:
    return ConfigurationError(
        "postgres.dsn can't be read as libpq keywords or as a URI",
        remedy="percent-encode special characters of a URI, or use keywords, PGPASSFILE or a service file",
    )


def accept_any_bytes(connection: psycopg.Connection[Any]) -> None:
    """In a SQL_ASCII database texts may hold any bytes, which the server refuses to send to a client of UTF-8.

    One such row would fail every statement that meets it, and pgoutput's stream for ever.
    https://www.postgresql.org/docs/current/multibyte.html
    """
    if connection.info.parameter_status("server_encoding") != "SQL_ASCII":
        return
    connection.execute("SET client_encoding = 'SQL_ASCII'")
    for name in (0, "text", "varchar", "bpchar", "name"):  # 0: whatever has no loader of its own
        connection.adapters.register_loader(name, _AnyTextLoader)
        connection.adapters.register_loader(name, _AnyTextBinaryLoader)


def register_instants(connection: psycopg.Connection[Any]) -> None:
    """Lets a connection read timestamptz as integers and take `Instant` parameters."""
    adapters = connection.adapters
    # In binary it is the integer we want: int64 microseconds since 2000, infinities included.
    adapters.register_loader("timestamptz", Int8BinaryLoader)
    adapters.register_loader("timestamptz", _InstantTextLoader)
    _InstantDumper.oid = psycopg.postgres.types["timestamptz"].oid
    adapters.register_dumper(Instant, _InstantDumper)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Turns psycopg's errors inside into ours: one line, a remedy, no password and no row values."""
    try:
        yield
    except psycopg.Error as error:
        raise explain(error) from error


def redact(text: str) -> str:
    """The text without anything that looks like a password of a DSN."""
    return _PLAIN_PASSWORD.sub(lambda match: f"{match[1] or match[3]}…{'@' if match[3] else ''}", text)


def named(error: psycopg.Error) -> str:
    """The SQLSTATE, its name and the constraint: the message, where a trigger made it, may quote the row."""
    constraint = f", constraint {error.diag.constraint_name}" if error.diag.constraint_name else ""
    # Class 42: a column or a right that is gone, an identity that doesn't fit. The table or the role, not the order.
    remedy = "; see `cdcwatch check`" if (error.sqlstate or "").startswith("42") else ""
    return f"SQLSTATE {error.sqlstate} ({type(error).__name__}{constraint}){remedy}"


def explain(error: psycopg.Error, said: str = "") -> CdcwatchError:
    """What a PostgreSQL or libpq error means: by SQLSTATE where there is one. `said` stands for the server's words.

    https://www.postgresql.org/docs/current/errcodes-appendix.html
    """
    state = error.sqlstate or ""
    # The primary message names objects and settings; detail and context may quote rows, so they are left out.
    said = (
        said or error.diag.message_primary or redact(str(error)).strip().splitlines()[0]
        if str(error).strip()
        else state
    )
    if isinstance(error, psycopg.ProgrammingError) and not state:
        return _unreadable_dsn()
    if _POOLER.search(said):
        return PreconditionError(
            f"PostgreSQL: {said}", remedy="connect directly, past the pooler: set postgres.replication_dsn"
        )
    if not state and _INVALID.search(said):
        return ConfigurationError(f"PostgreSQL: {said}", remedy="mend postgres.dsn, or the PG… variable it comes from")
    if not state:
        barred = next((remedy for text, remedy in _BARRED if text.search(said)), None)
        if barred is not None:
            return PreconditionError(f"PostgreSQL: {said}", remedy=barred)
    state = state or next((known for text, known in _REFUSED if text.search(said)), "")
    if state[:2] in {"08", "57", "53", ""} or state in _TRANSIENT:
        remedy = _REMEDIES.get(state, "see that the server is up and reachable")
        return UnavailableError(f"PostgreSQL: {said}", remedy=remedy)
    return PreconditionError(
        f"PostgreSQL: {said}{f' (SQLSTATE {state})' if state and state not in said else ''}",
        remedy=_REMEDIES.get(state, "see the server's log, and `cdcwatch check`"),
    )
