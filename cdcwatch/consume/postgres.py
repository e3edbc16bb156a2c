"""The level in PostgreSQL: durable, and where the handler's transaction can hold the record, the effect exactly once.

The table is `cdcwatch.processed_events` (sql/install_consume.sql), in the database of the service. Two ways of use:

- as any store: rows are taken in hand, the handler runs, rows are completed, each in a statement of its own;
- `transaction`: the row is written as completed in the transaction that the handler is given. What commits is effect
  and record together. Another that wants the same event waits at the primary key until then.
  https://www.postgresql.org/docs/current/sql-insert.html#SQL-ON-CONFLICT
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from cdcwatch.consume.store import KEEP_S, BusyError, Claim, Verdict
from cdcwatch.database import explain, parse_dsn
from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.queries import query, script

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from cdcwatch.consume.event import Identity

_DEFAULTS: Final = {
    "application_name": "cdcwatch consume",
    "connect_timeout": "5",
    "client_encoding": "UTF8",
    # A dead peer is noticed in seconds.
    "keepalives_idle": "5",
    "keepalives_interval": "3",
    "keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
_LONGEST_BYTES: Final = 1000
"""An index row of PostgreSQL takes 2,700 bytes."""
_LOCK_WAIT: Final = "1s"
_INSTALL: Final = "psql -f sql/install_consume.sql, and grant the role its rights as that file says"


class PostgresStore:
    """`dsn`: libpq's keywords or a URI, or what gives an autocommit connection. A connection a thread that handles.

    `keep_s`: what `purge` takes for old unless told.
    """

    name = "postgres"
    rank = 3

    def __init__(self, dsn: str | Callable[[], psycopg.Connection[Any]], *, keep_s: float = KEEP_S) -> None:
        """ConfigurationError for a DSN that can't be read."""
        self._keep_s, self._group = keep_s, ""
        if isinstance(dsn, str):
            parameters: dict[str, Any] = {**_DEFAULTS, **parse_dsn(dsn)}
            self._connect: Callable[[], psycopg.Connection[Any]] = lambda: psycopg.connect(
                **parameters, autocommit=True, prepare_threshold=None
            )
        else:
            self._connect = dsn
        self._own = threading.local()
        self._all: set[psycopg.Connection[Any]] = set()
        self._lock = threading.Lock()

    # -- as of Store ---------------------------------------------------------------------------------------------------

    def open(self, group: str) -> None:
        """As of Store. PreconditionError without the table or the rights to it."""
        self._group = group
        self.known([])

    def close(self) -> None:
        """As of Store."""
        with self._lock:
            connections, self._all = self._all, set()
        for connection in connections:
            connection.close()
        self._own = threading.local()

    def known(self, identities: Sequence[Identity]) -> set[Identity]:
        """As of Store."""
        return self._found("known", identities)

    def remember(self, identities: Collection[Identity]) -> None:
        """As of Store; a deeper level than this there is none."""

    def begin(self, identities: Sequence[Identity], owner: str, lease_s: float) -> list[Claim]:
        """As of Store."""
        with self._working() as connection:
            return self._begin(connection, identities, owner, lease_s, "processing")

    def _begin(
        self,
        connection: psycopg.Connection[Any],
        identities: Sequence[Identity],
        owner: str,
        lease_s: float,
        state: str,
    ) -> list[Claim]:
        wanted = {_storable(identity): place for place, identity in enumerate(identities)}
        claims = [Claim(Verdict.BUSY)] * len(identities)
        told = self._run(connection, "begin", wanted, owner=owner, lease_s=lease_s, state=state)
        for source, event_id, verdict, attempts, is_takeover, wait_s in told:
            claims[wanted[source, event_id]] = Claim(
                Verdict(verdict),
                attempts,
                is_takeover and verdict == Verdict.OURS.value,
                wait_s if verdict == Verdict.BUSY.value else 0.0,
            )
        return claims

    def complete(self, identities: Sequence[Identity], owner: str) -> set[Identity]:
        """As of Store."""
        return set(identities) - self._found("complete", identities, owner=owner)

    def fail(self, identity: Identity, owner: str, error: str, *, is_given_up: bool) -> None:
        """As of Store."""
        self._fail(identity, owner, error, is_given_up=is_given_up, counted=0)

    def fail_after_rollback(self, identity: Identity, owner: str, error: str) -> None:
        """The same after `transaction`: the attempt is counted here, unless `note_attempt` has counted it."""
        self._fail(identity, owner, error, is_given_up=False, counted=1)

    def _fail(self, identity: Identity, owner: str, error: str, *, is_given_up: bool, counted: int) -> None:
        source, event_id = _storable(identity)
        with self._working() as connection:
            connection.execute(
                query("consume", "fail"),
                {
                    "consumer": self._group,
                    "source": source,
                    "id": event_id,
                    "owner": owner,
                    "error": error,
                    "is_given_up": is_given_up,
                    "counted": counted,
                },
            )

    def release(self, identities: Sequence[Identity], owner: str) -> None:
        """As of Store."""
        self._found("release", identities, owner=owner)

    def renew(self, identities: Collection[Identity], owner: str, lease_s: float) -> set[Identity]:
        """As of Store."""
        return set(identities) - self._found("renew", identities, owner=owner, lease_s=lease_s)

    def forget(self, identities: Iterable[Identity]) -> int:
        """As of Store."""
        return len(self._found("forget", list(identities)))

    def purge(self, older_than_s: float | None = None, *, batch_rows: int = 1000) -> int:
        """As of Store, `batch_rows` a transaction. None: what is older than `keep_s`."""
        if not self._group:
            raise PreconditionError("the store has no group yet", remedy="store.open(group) first")
        age_s, purged = self._keep_s if older_than_s is None else older_than_s, 0
        while True:
            with self._working() as connection:
                told = {"consumer": self._group, "older_than_s": age_s, "rows": batch_rows}
                rows = connection.execute(query("consume", "purge"), told).rowcount
            purged += rows
            if rows < batch_rows:
                return purged

    # -- the transaction -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def transaction(
        self, identities: Sequence[Identity], owner: str
    ) -> Iterator[tuple[psycopg.Connection[Any], list[Claim]]]:
        """Writes these as completed in a transaction that commits with the block, which handles those that are OURS.

        BusyError when another's transaction has one of them; UnavailableError without the server, over the COMMIT too:
        then nobody knows, and the next attempt is told. What the block raises passes through, and so does what the
        COMMIT itself is refused for (a deferred constraint): nothing of it is kept.
        """
        with self._working(is_ours=False) as connection, connection.transaction():
            try:
                claims = self._begin_inside(connection, identities, owner)
            except psycopg.errors.LockNotAvailable as error:
                raise BusyError from error
            except psycopg.Error as error:
                raise _explained(error) from error
            yield connection, claims
            if connection.broken:
                raise UnavailableError("the connection to PostgreSQL broke", remedy="see that the server is up")
            if connection.info.transaction_status != TransactionStatus.INTRANS:
                # A COMMIT would be answered with ROLLBACK, and nobody told.
                raise psycopg.errors.InFailedSqlTransaction("the handler left its transaction failed, or ended it")

    def _begin_inside(
        self, connection: psycopg.Connection[Any], identities: Sequence[Identity], owner: str, state: str = "completed"
    ) -> list[Claim]:
        """Waits a little for another's transaction, and leaves the handler the lock_timeout that the session has."""
        with connection.pipeline():
            connection.execute("SELECT set_config('lock_timeout', %s, true)", [_LOCK_WAIT])
            claims = self._begin(connection, identities, owner, 0.0, state)
            connection.execute("SET LOCAL lock_timeout TO DEFAULT")
        return claims

    def note_attempt(self, identity: Identity, owner: str) -> Claim:
        """Counts an attempt that `transaction` begins next, so that it is counted even if its process dies over it.

        There is no lease to it: another may begin at once, if no transaction has the event. BusyError as there.
        """
        with self._working() as connection, connection.transaction():
            try:
                return self._begin_inside(connection, [identity], owner, "processing")[0]
            except psycopg.errors.LockNotAvailable as error:
                raise BusyError from error

    def install(self) -> None:
        """Makes the table where it is missing, as sql/install_consume.sql does: needs CREATE on the database."""
        with self._working() as connection:
            connection.execute(script("install_consume"))

    # -- connections ---------------------------------------------------------------------------------------------------

    def _found(self, name: str, identities: Collection[Identity], **told: object) -> set[Identity]:
        """Those that the query `name` returns."""
        wanted = {_storable(identity): identity for identity in identities}
        with self._working() as connection:
            rows = self._run(connection, name, wanted, **told)
        return {wanted[source, event_id] for source, event_id in rows}

    def _run(
        self, connection: psycopg.Connection[Any], name: str, wanted: Collection[tuple[str, str]], **told: object
    ) -> list[Any]:
        sources, ids = [source for source, _ in wanted], [event_id for _, event_id in wanted]
        parameters = {"consumer": self._group, "sources": sources, "ids": ids, **told}
        with psycopg.Cursor(connection) as cursor:  # whatever rows the caller's connection gives
            cursor.execute(query("consume", name), parameters)
            return cursor.fetchall()

    @contextlib.contextmanager
    def _working(self, *, is_ours: bool = True) -> Iterator[psycopg.Connection[Any]]:
        """This thread's connection. `is_ours`: all that is done on it; psycopg's errors are then translated."""
        connection: psycopg.Connection[Any] | None = getattr(self._own, "connection", None)
        if connection is None or connection.closed:
            connection = self._own.connection = self._connected()
        try:
            yield connection
        except psycopg.Error as error:
            if connection.closed:
                raise UnavailableError(
                    f"PostgreSQL: {type(error).__name__}", remedy="see that the server is up"
                ) from error
            if is_ours:
                raise _explained(error) from error
            raise
        finally:
            if connection.closed or connection.info.transaction_status != TransactionStatus.IDLE:
                self._drop(connection)

    def _connected(self) -> psycopg.Connection[Any]:
        try:
            connection = self._connect()
        except psycopg.Error as error:
            raise _explained(error) from error
        with self._lock:
            self._all.add(connection)
        try:
            if not connection.autocommit:
                connection.autocommit = True
            # An acknowledged record that a crash of the server takes away is an event lost: its offset is committed.
            connection.execute(
                "SELECT set_config('synchronous_commit', 'on', false)"
                " WHERE current_setting('synchronous_commit') = 'off'"
            )
        except psycopg.Error as error:
            self._drop(connection)
            raise _explained(error) from error
        return connection

    def _drop(self, connection: psycopg.Connection[Any]) -> None:
        connection.close()
        self._own.connection = None
        with self._lock:
            self._all.discard(connection)


def _explained(error: psycopg.Error) -> Exception:
    if isinstance(error, psycopg.errors.UndefinedTable | psycopg.errors.InvalidSchemaName):
        return PreconditionError("PostgreSQL has no table cdcwatch.processed_events", remedy=_INSTALL)
    if isinstance(error, psycopg.errors.InsufficientPrivilege):
        return PreconditionError("no right to cdcwatch.processed_events", remedy=_INSTALL)
    return explain(error)


def _storable(identity: Identity) -> tuple[str, str]:
    """PostgreSQL's texts hold no NUL, and its index no long ones: of such a hash."""
    return _short(identity.source), _short(identity.id)


def _short(text: str) -> str:
    if "\0" not in text and len(text) * 4 <= _LONGEST_BYTES:
        return text
    data = text.encode("utf-8", "surrogatepass")
    return text if "\0" not in text and len(data) <= _LONGEST_BYTES else f"sha256:{hashlib.sha256(data).hexdigest()}"
