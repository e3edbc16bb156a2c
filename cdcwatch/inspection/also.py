"""Whether the SQL of `close.also` can be run: parsed, its names looked up, and not run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from cdcwatch.close.statements import CloseStatements
from cdcwatch.database import explain
from cdcwatch.errors import CdcwatchError
from cdcwatch.queries import query
from cdcwatch.slot.catalog import read_table
from cdcwatch.slot.check import Check, failed

if TYPE_CHECKING:
    from cdcwatch.settings import Settings

_REMEDY: Final = "mend close.also: `closed` has the key columns, the deadline and the version"
_SEVERAL: Final = "cannot insert multiple commands"


def also_check(connection: psycopg.Connection[Any], settings: Settings) -> Check | None:
    """None where there is no such SQL, or other lines tell what is in its way.

    Of one statement rights are looked at too, by EXPLAIN; several can't be explained, and are a function's body here.
    https://www.postgresql.org/docs/current/sql-explain.html
    """
    also = settings.close.also.strip().rstrip(";")
    if not also or settings.close.action == "none":
        return None
    try:
        table = read_table(connection, settings).watched
    except CdcwatchError:
        return None
    statements = CloseStatements(table, changes={}, has_also=True, page_rows=1)
    try:
        with connection.transaction(force_rollback=True):
            connection.execute(statements.make_closed)
            _parse(connection, also)
    except psycopg.Error as error:
        return _judged(error)
    return Check("also", "ok", "close.also is understood; it was not run")


def _judged(error: psycopg.Error) -> Check | None:
    if error.sqlstate is None:
        return failed("also", explain(error))
    said = error.diag.message_primary or ""
    if not isinstance(error, psycopg.errors.InsufficientPrivilege):
        return Check("also", "fail", f"close.also can't be run: {said}", _REMEDY)
    if "temporary" in said:
        return None  # `rights` tells
    return Check("also", "fail", f"close.also is refused: {said}", "grant it to our role")


def _parse(connection: psycopg.Connection[Any], also: str) -> None:
    try:
        with connection.transaction():
            # In binary, for the extended protocol: the simple one would explain the first of several, and run the rest.
            connection.execute(f"EXPLAIN {also}".encode(), binary=True)
            return
    except psycopg.errors.SyntaxError as error:
        if _SEVERAL not in str(error):
            raise
    connection.execute(sql.SQL(query("preflight", "understand")).format(body=sql.Literal(also)))
