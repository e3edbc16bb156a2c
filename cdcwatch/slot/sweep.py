"""What the sweep finds on the servers: its table of instances, and a standby that may be scanned instead."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from cdcwatch.database import connect, translated
from cdcwatch.errors import CdcwatchError
from cdcwatch.queries import query

if TYPE_CHECKING:
    import psycopg

    from cdcwatch.settings import Settings

_ASK_AGAIN_S: Final = 0.02
_ANSWER_TIMEOUT_S: Final = 15.0


class StandbyFacts(Struct, frozen=True):
    """The server of sweep.dsn."""

    error: CdcwatchError | None = None
    """Why it can't be asked."""
    is_ours: bool = True
    """A standby of the server and database of postgres.dsn."""
    keeps_up: bool = True
    """It has replayed, within sweep.max_delay_ms, what the primary had when it was asked."""


class SweepFacts(Struct, frozen=True):
    """Read once."""

    may_register: bool | None
    """Whether instances can share the work; None: there is no table for it."""
    standby: StandbyFacts | None
    """None without sweep.dsn."""


def read_sweep(connection: psycopg.Connection[Any], settings: Settings) -> SweepFacts:
    """Asks over `connection`, and the standby over one of its own. Changes nothing."""
    with translated():
        row = connection.execute(query("sweep", "may_register")).fetchone()
    return SweepFacts(row[0] if row else None, _standby(connection, settings) if settings.sweep.dsn else None)


def _standby(connection: psycopg.Connection[Any], settings: Settings) -> StandbyFacts:
    dsn, until_s = settings.sweep.dsn, time.monotonic() + settings.sweep.max_delay_ms / 1000
    try:
        with translated(), connect(dsn, application_name="cdcwatch check", answer_timeout_s=_ANSWER_TIMEOUT_S) as other:
            ours = connection.execute(query("sweep", "identity")).fetchone()
            theirs = other.execute(query("sweep", "identity")).fetchone()
            if ours is None or theirs is None or ours[:2] != theirs[:2] or not theirs[2]:
                return StandbyFacts(is_ours=False)
            row = connection.execute(query("sweep", "position")).fetchone()
            target = {"lsn": row[0] if row else None}
            while True:
                row = other.execute(query("sweep", "replayed"), target).fetchone()
                if row == (True,):
                    return StandbyFacts()
                if time.monotonic() >= until_s:
                    return StandbyFacts(keeps_up=False)
                time.sleep(_ASK_AGAIN_S)
    except CdcwatchError as error:
        return StandbyFacts(error)
