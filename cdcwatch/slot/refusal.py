"""What the server's refusals around slots and plugins mean: by SQLSTATE, by text only where states share one.

https://www.postgresql.org/docs/current/errcodes-appendix.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdcwatch.database import explain
from cdcwatch.errors import PreconditionError
from cdcwatch.slot.allowlist import AllowList

if TYPE_CHECKING:
    import psycopg

    from cdcwatch.errors import CdcwatchError

_OTHER_MAJOR: Final = ("undefined symbol", "incompatible library", "version mismatch")
OPTION_STATES: Final = ("22023", "0A000")
"""An option that the plugin doesn't know, or a value of one."""
_PUBLICATION: Final = "publication"


def explain_plugin(error: psycopg.Error, plugin: str, server_major: int) -> CdcwatchError:
    """A refusal to load the plugin, to make a slot with it, or to read by it."""
    said = error.diag.message_primary or ""
    if any(text in said for text in _OTHER_MAJOR):
        # One SQLSTATE with other failures to load a library, or none of its own.
        return PreconditionError(
            said,
            remedy=f"install the {plugin} that was built for PostgreSQL {server_major}"
            f" (Debian: postgresql-{server_major}-{plugin}); no extension has to be created",
        )
    remedy = _remedies(plugin, server_major).get(error.sqlstate or "")
    if error.sqlstate == "42501":
        remedy = (
            f"as a superuser: {AllowList(exists=True).remedy(plugin)} (SHOW output_plugin_libraries first: the value"
            " replaces the whole list)"
            if "output plugin" in said
            else "ALTER ROLE … REPLICATION for the role of postgres.dsn, as sql/install.sql does"
        )
    elif error.sqlstate == "42704" and _PUBLICATION in said:
        return _publication_came_late(said)
    return PreconditionError(said, remedy=remedy) if remedy else explain(error)


def explain_stream(error: psycopg.Error) -> CdcwatchError:
    """Why a stream that had begun was ended."""
    said = error.diag.message_primary or ""
    if error.sqlstate == "42704" and _PUBLICATION in said:
        return _publication_came_late(said)
    return explain(error)


def _publication_came_late(said: str) -> PreconditionError:
    """A change in the slot is older than the publication, and pgoutput looks for it as of then: for ever in vain."""
    return PreconditionError(
        f"{said}: the slot holds changes from before the publication was made, and can't pass them",
        remedy="cdcwatch slot advance --to current (what it skips is lost to the topic), or slot drop and slot create,"
        " which makes the publication first; then cdcwatch run --accept-gap",
    )


def _remedies(plugin: str, server_major: int) -> dict[str, str]:
    return {
        "55000": "ALTER SYSTEM SET wal_level = 'logical'; then restart the server",
        "53400": "drop a slot that nobody reads, or raise max_replication_slots and restart the server",
        "58P01": f"install the library of {plugin} on the server, of the server's major version"
        f" (Debian: postgresql-{server_major}-{plugin}); no extension has to be created",
        "25001": "run it outside of a transaction",
        **dict.fromkeys(
            OPTION_STATES,
            f"this {plugin} doesn't know an option that cdcwatch sends: install 2.5 or later"
            f" (Debian: postgresql-{server_major}-{plugin})",
        ),
    }
