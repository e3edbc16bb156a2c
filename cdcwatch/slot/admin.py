"""The slot as a DBA handles it: made after all checks, dropped when nobody reads it, never taken from anybody.

Slots are made over an autocommit connection of their own: a transaction that has written can't make one, and one that
is open would wait for itself.
https://www.postgresql.org/docs/current/logicaldecoding-explanation.html#LOGICALDECODING-REPLICATION-SLOTS
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.rows import class_row

from cdcwatch.database import connect, explain, translated
from cdcwatch.errors import CdcwatchError, ConfigurationError, PreconditionError
from cdcwatch.queries import query
from cdcwatch.slot.allowlist import AllowList
from cdcwatch.slot.preflight import Check, preflight
from cdcwatch.slot.status import SlotStatus, read_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cdcwatch.settings import Settings

APPLICATION: Final = "cdcwatch slot"
_FIRST_LOOK_S = 1.0
_NEXT_LOOK_S = 5.0
_FAILOVER_SINCE = 170000


@dataclass(frozen=True, slots=True)
class Blocker:
    """A transaction that the making of a slot waits for."""

    pid: int | None
    """None for a prepared transaction."""
    age_s: float | None
    """None where this role may not see it."""
    application: str
    role_name: str
    database: str


@dataclass(frozen=True, slots=True)
class CreatedSlot:
    """The slot as it is after `create_slot`."""

    status: SlotStatus
    was_there: bool
    """It existed already, with this plugin in this database, read by nobody; nothing was made."""
    warnings: tuple[Check, ...]


def plan_slot(settings: Settings) -> tuple[list[Check], SlotStatus | None]:
    """What `create_slot` would look at first: every check, and the slot when it is there. Changes nothing."""
    with _connected(settings) as connection:
        return _checks(connection, settings), read_status(connection, settings.slot.name)


def create_slot(
    settings: Settings, *, timeout_s: float, on_waiting: Callable[[Sequence[Blocker]], None] | None = None
) -> CreatedSlot:
    """Checks, then makes the slot; waits up to `timeout_s` (0: without end) for running transactions.

    `on_waiting` is called from another thread with those that it waits for, when it takes longer than a second.
    PreconditionError when a check fails, when the name is taken by another slot, or when time ran out: then nothing is
    left behind; neither when KeyboardInterrupt ends the wait.
    """
    if settings.slot.plugin == "pgoutput":
        raise ConfigurationError("the pgoutput decoder is not in this version", remedy='set slot.plugin = "wal2json"')
    with _connected(settings) as connection:
        checks = _checks(connection, settings)
        existing = read_status(connection, settings.slot.name)
        if existing is not None:
            return CreatedSlot(_same(existing, settings), was_there=True, warnings=_warnings(checks))
        _require(checks)
        if settings.slot.failover and connection.info.server_version < _FAILOVER_SINCE:
            raise ConfigurationError("slot.failover needs PostgreSQL 17 or later", remedy="set slot.failover = false")
        _make(connection, settings, timeout_s, on_waiting)
        made = read_status(connection, settings.slot.name)
    if made is None:
        raise _missing(settings)  # dropped by somebody else since
    return CreatedSlot(made, was_there=False, warnings=_warnings(checks))


def slot_status(settings: Settings) -> SlotStatus:
    """PreconditionError when there is no such slot."""
    with _connected(settings) as connection:
        status = read_status(connection, settings.slot.name)
    if status is None:
        raise _missing(settings)
    return status


def drop_slot(settings: Settings) -> None:
    """PreconditionError when it isn't there, is somebody's, or belongs to another database."""
    with _connected(settings) as connection:
        status = read_status(connection, settings.slot.name)
        if status is None:
            raise _missing(settings)
        require_droppable(status)
        try:
            connection.execute(query("slot", "drop_slot"), {"slot": settings.slot.name})
        except psycopg.errors.ObjectInUse:  # taken since we looked
            raise _active(read_status(connection, settings.slot.name) or status) from None
        except psycopg.errors.UndefinedObject:
            raise _missing(settings) from None
        except psycopg.Error as error:
            raise explain(error) from error


def require_droppable(status: SlotStatus) -> None:
    """PreconditionError when somebody reads the slot, or when it belongs to another database."""
    if status.active:
        raise _active(status)
    if status.database != status.connected_database:
        raise PreconditionError(
            f"slot {status.name} belongs to {f'database {status.database}' if status.database else 'a standby'},"
            f" not to {status.connected_database}",
            remedy="connect to its own database in postgres.dsn, or set another slot.name",
        )


@contextlib.contextmanager
def _connected(settings: Settings) -> Iterator[psycopg.Connection[Any]]:
    """Past a pooler: what is set on this connection must not reach others."""
    with translated(), connect(settings.postgres.for_replication(), application_name=APPLICATION) as connection:
        yield connection


def _checks(connection: psycopg.Connection[Any], settings: Settings) -> list[Check]:
    """Without the slot's own check, which this command is about."""
    return [check for check in preflight(connection, settings) if check.name != "slot"]


def _warnings(checks: Sequence[Check]) -> tuple[Check, ...]:
    """What is left to tell once the slot is there, which answers for its plugin."""
    return tuple(check for check in checks if check.state != "ok" and check.name != "plugin")


def _require(checks: Sequence[Check]) -> None:
    failed = [check for check in checks if check.state == "fail"]
    if len(failed) == 1:
        raise PreconditionError(failed[0].message, remedy=failed[0].remedy)
    if failed:
        raise PreconditionError(
            f"{len(failed)} preconditions are not met: "
            + "; ".join(f"({place}) {check.message}" for place, check in enumerate(failed, 1)),
            remedy=" ".join(f"({place}) {check.remedy}" for place, check in enumerate(failed, 1)),
        )


def _same(existing: SlotStatus, settings: Settings) -> SlotStatus:
    """The slot that is there already, when it is as we would make it and nobody reads it."""
    wanted = settings.slot
    is_wanted = existing.plugin == wanted.plugin and existing.database == existing.connected_database
    if is_wanted and not existing.active and not existing.is_lost:
        return existing
    if existing.is_lost:
        raise PreconditionError(
            f"slot {existing.name} exists and is lost: WAL that it needed is gone",
            remedy="cdcwatch slot drop, then cdcwatch slot create",
        )
    raise PreconditionError(
        f"slot {existing.name} exists already: {existing.plugin or existing.kind}, database {existing.database},"
        f" {f'read by {existing.owner}' if existing.active else 'not active'}",
        remedy="nothing to make: cdcwatch run reads it"
        if is_wanted
        else "set another slot.name, or drop this one: cdcwatch slot drop",
    )


def _make(
    connection: psycopg.Connection[Any],
    settings: Settings,
    timeout_s: float,
    on_waiting: Callable[[Sequence[Blocker]], None] | None,
) -> None:
    slot = settings.slot
    connection.execute(query("slot", "unhurried"), {"timeout_ms": round(timeout_s * 1000)})
    block = "create_failover_slot" if slot.failover else "create_slot"
    try:
        with _watched(settings, connection.info.backend_pid, on_waiting):
            connection.execute(query("slot", block), {"slot": slot.name, "plugin": slot.plugin})
    except psycopg.errors.DuplicateObject:
        raise PreconditionError(
            f"slot {slot.name} was made by somebody else meanwhile", remedy="cdcwatch slot status"
        ) from None
    except psycopg.errors.QueryCanceled:
        _leave_nothing(settings)
        raise PreconditionError(
            f"no slot after {timeout_s:g} s: transactions that were running have not ended; nothing was left behind",
            remedy="end or wait for the transactions named above, or allow more time with --timeout",
        ) from None
    except KeyboardInterrupt:
        _leave_nothing(settings)
        raise
    except psycopg.Error as error:
        raise _explain_creation(error, settings, connection.info.server_version // 10000) from error


def _leave_nothing(settings: Settings) -> None:
    """The server drops an unfinished slot by itself; one that was finished as the cancellation came is dropped here.

    Over a new connection: the other one may be closed.
    """
    with connect(settings.postgres.for_replication(), application_name=APPLICATION) as connection:
        if read_status(connection, settings.slot.name) is not None:
            # Gone meanwhile, or just being made by somebody else under the same name: not ours.
            with contextlib.suppress(psycopg.errors.UndefinedObject, psycopg.errors.ObjectInUse):
                connection.execute(query("slot", "drop_slot"), {"slot": settings.slot.name})


@contextlib.contextmanager
def _watched(
    settings: Settings, creator_pid: int, on_waiting: Callable[[Sequence[Blocker]], None] | None
) -> Iterator[None]:
    """While the body runs longer than a second, tells every few seconds whom it waits for."""
    if on_waiting is None:
        yield
        return
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(settings, creator_pid, on_waiting, done), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


def _watch(
    settings: Settings, creator_pid: int, on_waiting: Callable[[Sequence[Blocker]], None], done: threading.Event
) -> None:
    if done.wait(_FIRST_LOOK_S):
        return
    # Without a second connection the wait goes on unexplained; that is no reason to end it.
    with contextlib.suppress(CdcwatchError, psycopg.Error), _connected(settings) as connection:
        while True:
            with connection.cursor(row_factory=class_row(Blocker)) as cursor:
                blockers = cursor.execute(query("slot", "blockers"), {"creator": creator_pid}).fetchall()
            if blockers:
                on_waiting(blockers)
            if done.wait(_NEXT_LOOK_S if blockers else _FIRST_LOOK_S):
                return


def _explain_creation(error: psycopg.Error, settings: Settings, server_major: int) -> CdcwatchError:
    """What the server's refusal means here; the checks foresee most, but not for every role, nor what changes after.

    https://www.postgresql.org/docs/current/errcodes-appendix.html
    """
    plugin, said = settings.slot.plugin, error.diag.message_primary or ""
    remedies = {
        "55000": "ALTER SYSTEM SET wal_level = 'logical'; then restart the server",
        "53400": "drop a slot that nobody reads, or raise max_replication_slots and restart the server",
        "58P01": f"install the library of {plugin} on the server, of the server's major version"
        f" (Debian: postgresql-{server_major}-{plugin});"
        " no extension has to be created",
        "25001": "run it outside of a transaction",
    }
    if error.sqlstate == "42501":
        remedy = (
            f"as a superuser: {AllowList(exists=True).remedy(plugin)} (SHOW output_plugin_libraries first: the value"
            " replaces the whole list)"
            if "output plugin" in said
            else "ALTER ROLE … REPLICATION for the role of postgres.dsn, as sql/install.sql does"
        )
        return PreconditionError(said, remedy=remedy)
    if error.sqlstate in remedies:
        return PreconditionError(said, remedy=remedies[error.sqlstate])
    if "undefined symbol" in said or "incompatible library" in said:
        return PreconditionError(said, remedy=f"install the {plugin} that was built for this server's major version")
    return explain(error)


def _missing(settings: Settings) -> PreconditionError:
    return PreconditionError(f"there is no slot {settings.slot.name}", remedy="make it: cdcwatch slot create")


def _active(status: SlotStatus) -> PreconditionError:
    return PreconditionError(
        f"slot {status.name} is read by {status.owner}",
        remedy="end that process first (SIGTERM lets cdcwatch run drain); cdcwatch never ends another's connection",
    )
