"""Every precondition of the database, each judged by one pure function over facts read beforehand.

A further check is a function in `CHECKS`. It answers None where it has nothing to say, because what it is about is not
there and another check says so.
https://www.postgresql.org/docs/current/logicaldecoding.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from cdcwatch.slot import server_checks, session_checks, table_checks
from cdcwatch.slot.check import Check, State
from cdcwatch.slot.facts import Facts, OptionsOf, read_all_facts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import psycopg

    from cdcwatch.settings import Settings

__all__ = ["CHECKS", "Check", "State", "judge", "preflight"]


def preflight(
    connection: psycopg.Connection[Any], settings: Settings, options_of: OptionsOf | None = None
) -> list[Check]:
    """Reads the facts over `connection` and judges them all.

    `options_of`: what the decoder will ask the output plugin for, to see whether it knows that.
    """
    return judge(read_all_facts(connection, settings, options_of))


def judge(facts: Facts) -> list[Check]:
    """Every check that has something to say, in the order of `CHECKS`. Pure."""
    begin = CHECKS.index(TABLE_CHECKS[0])
    of_server, of_slot = CHECKS[:begin], CHECKS[begin + len(TABLE_CHECKS) :]
    tables = [_named(check, one) for one in (facts, *facts.others) for check in _judged(TABLE_CHECKS, one)]
    return [*_judged(of_server, facts), *tables, *_judged(of_slot, facts)]


def _judged(judgements: Iterable[Callable[[Facts], Check | None]], facts: Facts) -> list[Check]:
    return [check for judgement in judgements if (check := judgement(facts)) is not None]


def _named(check: Check, facts: Facts) -> Check:
    """Where there are several tables, every line about one says which."""
    name = facts.settings.table.name
    if not facts.settings.is_shared or name in check.message:
        return check
    return replace(check, message=f"{name}: {check.message}")


def slot(facts: Facts) -> Check:
    """The slot itself, where it is there."""
    wanted, found = facts.settings.slot, facts.slot
    if found is None:
        return Check("slot", "warn", f"there is no slot {wanted.name} yet", "cdcwatch slot create")
    another = "set another slot.name, or drop this one: cdcwatch slot drop"
    if found.kind != "logical":
        return Check("slot", "fail", f"slot {wanted.name} is a physical one", "set another slot.name")
    if found.database != found.connected_database:
        return Check(
            "slot",
            "fail",
            f"slot {wanted.name} reads database {found.database}, not {found.connected_database}",
            another,
        )
    if found.plugin != wanted.plugin:
        return Check("slot", "fail", f"slot {wanted.name} has the plugin {found.plugin}, not {wanted.plugin}", another)
    if found.is_lost:
        return Check(
            "slot",
            "fail",
            f"slot {wanted.name} is lost: WAL that it needed is gone ({found.invalidation_reason or 'wal_removed'})",
            "cdcwatch recover",
        )
    return Check("slot", "ok", f"slot {wanted.name}, {found.plugin}, {'active' if found.active else 'not active'}")


TABLE_CHECKS: Final[tuple[Callable[[Facts], Check | None], ...]] = (
    table_checks.table,
    table_checks.columns,
    table_checks.time_zone,
    table_checks.version,
    table_checks.identity,
    table_checks.status,
    table_checks.index,
    table_checks.rights,
    table_checks.row_security,
    table_checks.publication,
)
"""Of each table by itself."""

CHECKS: Final[tuple[Callable[[Facts], Check | None], ...]] = (
    server_checks.server_version,
    session_checks.pooler,
    session_checks.replication,
    session_checks.tls,
    server_checks.encoding,
    session_checks.clock,
    server_checks.wal_level,
    server_checks.free_slots,
    server_checks.free_walsenders,
    server_checks.role,
    server_checks.plugin,
    *TABLE_CHECKS,
    session_checks.sweep,
    session_checks.transactions,
    server_checks.retention,
    server_checks.idle_timeout,
    server_checks.failover,
    slot,
)
