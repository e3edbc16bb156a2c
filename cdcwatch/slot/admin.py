"""The slot as a DBA handles it: looked at, advanced, dropped when nobody reads it, never taken from anybody.

https://www.postgresql.org/docs/current/functions-admin.html#FUNCTIONS-REPLICATION
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Final

import psycopg

from cdcwatch.database import connect, explain, translated
from cdcwatch.errors import ConfigurationError, PreconditionError
from cdcwatch.lsn import format_lsn, parse_lsn
from cdcwatch.queries import query
from cdcwatch.slot.status import SlotStatus, read_all, read_status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdcwatch.settings import Settings

APPLICATION: Final = "cdcwatch slot"
_LOST_REMEDY: Final = "cdcwatch recover; or cdcwatch slot drop, when nobody needs it"


@contextlib.contextmanager
def connected(settings: Settings) -> Iterator[psycopg.Connection[Any]]:
    """Past a pooler: what is set on this connection must not reach others."""
    with translated(), connect(settings.postgres.for_replication(), application_name=APPLICATION) as connection:
        yield connection


def slot_status(settings: Settings) -> SlotStatus:
    """PreconditionError when there is no such slot."""
    with connected(settings) as connection:
        return found_status(connection, settings)


def found_status(connection: psycopg.Connection[Any], settings: Settings) -> SlotStatus:
    """The same over a connection that is there."""
    status = read_status(connection, settings.slot.name)
    if status is None:
        raise missing(settings)
    return status


def slot_list(settings: Settings) -> list[SlotStatus]:
    """Every logical slot of the server."""
    with connected(settings) as connection:
        return read_all(connection)


def drop_slot(settings: Settings) -> None:
    """PreconditionError when it isn't there, is somebody's, or belongs to another database."""
    with connected(settings) as connection:
        status = found_status(connection, settings)
        require_idle(status)
        try:
            connection.execute(query("slot", "drop_slot"), {"slot": settings.slot.name})
        except psycopg.errors.ObjectInUse:  # taken since we looked
            raise active(read_status(connection, settings.slot.name) or status) from None
        except psycopg.errors.UndefinedObject:
            raise missing(settings) from None
        except psycopg.Error as error:
            raise explain(error) from error


def advance_target(connection: psycopg.Connection[Any], status: SlotStatus, to: str) -> int:
    """`to`, an LSN or `current`, as a position the slot may be moved to.

    ConfigurationError when it is no LSN, lies beyond the server's WAL or behind the slot; PreconditionError when the
    slot is in use, another database's or lost.
    """
    require_idle(status)
    if status.is_lost:
        raise PreconditionError(
            f"slot {status.name} is lost: there is nothing left to move it over", remedy=_LOST_REMEDY
        )
    row = connection.execute(query("slot", "flushed_lsn")).fetchone()
    current_lsn = parse_lsn(row[0]) if row else 0
    try:
        target_lsn = current_lsn if to == "current" else parse_lsn(to)
    except ValueError:
        raise ConfigurationError(
            "--to takes an LSN or `current`", remedy="write it as 0/1A2B390, or as current"
        ) from None
    if target_lsn > current_lsn:
        raise ConfigurationError(
            f"{to} lies beyond the server's WAL, which ends at {format_lsn(current_lsn)}",
            remedy="name an LSN up to there, or current",
        )
    confirmed = status.confirmed_flush_lsn or "0/0"
    if target_lsn < parse_lsn(confirmed):
        raise ConfigurationError(
            f"{to} lies behind the slot, which is confirmed up to {confirmed}: a slot never goes back",
            remedy="name an LSN after it; what was confirmed can't be read again",
        )
    return target_lsn


def advance_slot(settings: Settings, target_lsn: int) -> str:
    """Moves the slot and returns where it stands then. Errors as of `advance_target`."""
    with connected(settings) as connection:
        status = found_status(connection, settings)
        target_lsn = advance_target(connection, status, format_lsn(target_lsn))
        try:
            row = connection.execute(
                query("slot", "advance_slot"), {"slot": status.name, "lsn": format_lsn(target_lsn)}
            ).fetchone()
        except psycopg.errors.ObjectInUse:
            raise active(read_status(connection, settings.slot.name) or status) from None
        return str(row[0]) if row else format_lsn(target_lsn)


def require_idle(status: SlotStatus) -> None:
    """PreconditionError when somebody reads the slot, or when it belongs to another database."""
    if status.active:
        raise active(status)
    if status.database != status.connected_database:
        raise PreconditionError(
            f"slot {status.name} belongs to {f'database {status.database}' if status.database else 'a standby'},"
            f" not to {status.connected_database}",
            remedy="connect to its own database in postgres.dsn, or set another slot.name",
        )


def missing(settings: Settings) -> PreconditionError:
    """There is no slot of that name."""
    return PreconditionError(
        f"there is no slot {settings.slot.name}",
        remedy="make it: cdcwatch slot create; where there was one, cdcwatch recover",
    )


def active(status: SlotStatus) -> PreconditionError:
    """Somebody reads it."""
    return PreconditionError(
        f"slot {status.name} is read by {status.owner}",
        remedy="end that process first (SIGTERM lets cdcwatch run drain); cdcwatch never ends another's connection",
    )
