"""Making a slot: after all checks, the publication before it, within a time limit, and leaving nothing when it fails.

Slots are made over an autocommit connection of their own: a transaction that has written can't make one, and one that
is open would wait for itself.
https://www.postgresql.org/docs/current/logicaldecoding-explanation.html#LOGICALDECODING-REPLICATION-SLOTS
"""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final

import psycopg
from msgspec import Struct
from psycopg import sql

from cdcwatch import failpoints
from cdcwatch.database import connect, explain
from cdcwatch.errors import CdcwatchError, ConfigurationError, PreconditionError
from cdcwatch.queries import query
from cdcwatch.slot.admin import APPLICATION, connected, missing
from cdcwatch.slot.blockers import Blocker, read_blockers
from cdcwatch.slot.facts import Facts, OptionsOf, read_all_facts
from cdcwatch.slot.preflight import Check, judge
from cdcwatch.slot.publication import creation, creation_text, quoted_name
from cdcwatch.slot.refusal import explain_plugin
from cdcwatch.slot.status import SlotStatus, read_status

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cdcwatch.settings import Settings

    Waiting = Callable[[Sequence[Blocker]], None]

_FIRST_LOOK_S: Final = 1.0
_NEXT_LOOK_S: Final = 5.0
_LONGEST_NAME_BYTES: Final = 63


class Plan(Struct, frozen=True):
    """What `create_slot` would look at and do."""

    checks: tuple[Check, ...]
    existing: SlotStatus | None
    statements: tuple[str, ...]
    """SQL, in order; empty when the slot is there."""


class CreatedSlot(Struct, frozen=True):
    """The slot as it is after `create_slot`."""

    status: SlotStatus
    was_there: bool
    """It existed already, with this plugin in this database, read by nobody; nothing was made."""
    warnings: tuple[Check, ...]
    publication_made: bool = False


def plan_slot(settings: Settings, options_of: OptionsOf | None = None, *, is_replaced: bool = False) -> Plan:
    """What `create_slot` would look at first: every check, and the slot when it is there. Changes nothing.

    `is_replaced`: a slot that is there is to be dropped before.
    """
    with connected(settings) as connection:
        facts = read_all_facts(connection, settings, options_of)
        checks = tuple(_checks(facts))
        return Plan(checks, facts.slot, () if facts.slot and not is_replaced else tuple(_statements(facts)))


def create_slot(
    settings: Settings,
    *,
    timeout_s: float,
    on_waiting: Waiting | None = None,
    options_of: OptionsOf | None = None,
) -> CreatedSlot:
    """Checks, then makes the slot; waits up to `timeout_s` (0: without end) for running transactions.

    `on_waiting` is called from another thread with those that it waits for, when it takes longer than a second.
    PreconditionError when a check fails, when the name is taken by another slot, or when time ran out: then nothing is
    left behind; neither when KeyboardInterrupt ends the wait.
    """
    _require_names(settings)
    with connected(settings) as connection:
        facts = read_all_facts(connection, settings, options_of)
        checks = _checks(facts)
        if facts.slot is not None:
            if facts.others:
                # A table that was added to the configuration: the stream would not tell of it.
                require_met([check for check in checks if check.name == "publication"])
            return CreatedSlot(_same(facts.slot, settings), was_there=True, warnings=_warnings(checks))
        require_met(checks)
        publication_made = _make(connection, facts, timeout_s, on_waiting)
        made = read_status(connection, settings.slot.name)
    if made is None:
        raise missing(settings)  # dropped by somebody else since
    return CreatedSlot(made, was_there=False, warnings=_warnings(checks), publication_made=publication_made)


def _require_names(settings: Settings) -> None:
    """The server would cut a longer name without a word; the slot's own is checked as configuration is read."""
    if len(settings.slot.publication.encode()) > _LONGEST_NAME_BYTES:
        raise ConfigurationError(
            f"slot.publication is longer than {_LONGEST_NAME_BYTES} bytes", remedy="choose a shorter name"
        )


def _checks(facts: Facts) -> list[Check]:
    """Without the slot's own check, which this command is about."""
    return [check for check in judge(facts) if check.name != "slot"]


def _warnings(checks: Sequence[Check]) -> tuple[Check, ...]:
    """What is left to tell once the slot is there, which answers for its plugin."""
    return tuple(check for check in checks if check.state != "ok" and check.name not in {"plugin", "publication"})


def require_met(checks: Sequence[Check]) -> None:
    """PreconditionError where one failed."""
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
            remedy="cdcwatch recover; or, where nothing was published, cdcwatch slot drop, then cdcwatch slot create",
        )
    raise PreconditionError(
        f"slot {existing.name} exists already: {existing.plugin or existing.kind}, database {existing.database},"
        f" {f'read by {existing.owner}' if existing.active else 'not active'}",
        remedy="nothing to make: cdcwatch run reads it"
        if is_wanted
        else "set another slot.name, or drop this one: cdcwatch slot drop",
    )


def _needs_publication(facts: Facts) -> bool:
    return facts.settings.slot.plugin == "pgoutput" and facts.publication is None and facts.table is not None


def _statements(facts: Facts) -> Iterator[str]:
    """What would be run, for people to read."""
    slot = facts.settings.slot
    if facts.table is not None and _needs_publication(facts):
        yield creation_text(facts.settings, facts.all_tables, facts.server.version_number)
    failover = ", failover => true" if slot.failover else ""
    yield f"SELECT pg_create_logical_replication_slot('{slot.name}', '{slot.plugin}'{failover});"


def _make(connection: psycopg.Connection[Any], facts: Facts, timeout_s: float, on_waiting: Waiting | None) -> bool:
    """Publication, then slot. Whether a publication was made."""
    settings = facts.settings
    slot, made = settings.slot, False
    connection.execute(query("slot", "unhurried"), {"timeout_ms": round(timeout_s * 1000)})
    try:
        with _watched(settings, connection.info.backend_pid, on_waiting):
            if facts.table is not None and _needs_publication(facts):
                made = True  # before it is: an interruption may come as it is committed
                try:
                    connection.execute(creation(settings, facts.all_tables, facts.server.version_number))
                except psycopg.errors.DuplicateObject:
                    made = False
                    raise
                failpoints.reached("slot.publication_made")
            block = "create_failover_slot" if slot.failover else "create_slot"
            connection.execute(query("slot", block), {"slot": slot.name, "plugin": slot.plugin})
            failpoints.reached("slot.made")
    except psycopg.errors.DuplicateObject:
        if made:
            _leave_nothing(settings, publication_made=True, slot_made=False)
        raise PreconditionError(
            f"slot {slot.name} or its publication was made by somebody else meanwhile", remedy="cdcwatch slot status"
        ) from None
    except psycopg.errors.QueryCanceled:
        _leave_nothing(settings, publication_made=made)
        raise PreconditionError(
            f"no slot after {timeout_s:g} s: transactions that were running have not ended; nothing was left behind",
            remedy="end or wait for the transactions named above, or allow more time with --timeout",
        ) from None
    except psycopg.Error as error:
        if made:
            _leave_nothing(settings, publication_made=True, slot_made=False)
        raise _refused(error, facts) from error
    except BaseException:  # KeyboardInterrupt too
        _leave_nothing(settings, publication_made=made)
        raise
    return made


def _refused(error: psycopg.Error, facts: Facts) -> CdcwatchError:
    """The checks foresee most of it, but not for every role, nor what changes after."""
    return explain_plugin(error, facts.settings.slot.plugin, facts.server.major) if error.sqlstate else explain(error)


def _leave_nothing(settings: Settings, *, publication_made: bool, slot_made: bool = True) -> None:
    """The server drops an unfinished slot by itself; one that was finished as the cancellation came is dropped here.

    Over a new connection: the other one may be closed.
    """
    with connect(settings.postgres.for_replication(), application_name=APPLICATION) as connection:
        if slot_made and read_status(connection, settings.slot.name) is not None:
            # Gone meanwhile, or just being made by somebody else under the same name: not ours.
            with contextlib.suppress(psycopg.errors.UndefinedObject, psycopg.errors.ObjectInUse):
                connection.execute(query("slot", "drop_slot"), {"slot": settings.slot.name})
        if publication_made:
            statement = sql.SQL(query("slot", "drop_publication"))
            connection.execute(statement.format(publication=sql.Identifier(settings.slot.publication)))


def publication_left(settings: Settings) -> str:
    """The statement that removes the publication, which outlives its slot."""
    return f"DROP PUBLICATION {quoted_name(settings.slot.publication)};"


@contextlib.contextmanager
def _watched(settings: Settings, creator_pid: int, on_waiting: Waiting | None) -> Iterator[None]:
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


def _watch(settings: Settings, creator_pid: int, on_waiting: Waiting, done: threading.Event) -> None:
    if done.wait(_FIRST_LOOK_S):
        return
    # Without a second connection the wait goes on unexplained; that is no reason to end it.
    with contextlib.suppress(CdcwatchError, psycopg.Error), connected(settings) as connection:
        while True:
            blockers = read_blockers(connection, creator_pid)
            if blockers:
                on_waiting(blockers)
            if done.wait(_NEXT_LOOK_S if blockers else _FIRST_LOOK_S):
                return
