"""Every precondition of the database, each judged by one pure function over facts read beforehand.

A further check is a function in `CHECKS`. It answers None where it has nothing to say, because what it is about is not
there and another check says so.
https://www.postgresql.org/docs/current/logicaldecoding.html
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from cdcwatch.slot.facts import Facts, read_facts

if TYPE_CHECKING:
    from collections.abc import Callable

    import psycopg

    from cdcwatch.settings import Settings

State = Literal["ok", "warn", "fail"]

OLDEST_SERVER: Final = 120000
_INSTALL_IDENTITY = "as sql/install.sql does with -v identity=on"


@dataclass(frozen=True, slots=True)
class Check:
    """One precondition: a line of `cdcwatch check`."""

    name: str
    state: State
    message: str
    remedy: str = ""
    """SQL or a command that mends it; empty when ok."""


def preflight(connection: psycopg.Connection[Any], settings: Settings) -> list[Check]:
    """Reads the facts over `connection` and judges them all."""
    return judge(read_facts(connection, settings))


def judge(facts: Facts) -> list[Check]:
    """Every check that has something to say, in the order of `CHECKS`. Pure."""
    return [check for judgement in CHECKS if (check := judgement(facts)) is not None]


def _server(facts: Facts) -> Check:
    server = facts.server
    if server.version_number < OLDEST_SERVER:
        return Check("server", "fail", f"PostgreSQL {server.version} is too old", "upgrade to PostgreSQL 12 or later")
    if server.in_recovery:
        return Check(
            "server",
            "fail",
            f"PostgreSQL {server.version} is a standby here: orders are closed on the primary",
            "connect to the primary: postgres.dsn with target_session_attrs=read-write",
        )
    return Check("server", "ok", f"PostgreSQL {server.version}")


def _wal_level(facts: Facts) -> Check:
    level = facts.server.wal_level
    if level == "logical":
        return Check("wal_level", "ok", "wal_level is logical")
    return Check(
        "wal_level",
        "fail",
        f"wal_level is {level}: logical decoding needs logical",
        "ALTER SYSTEM SET wal_level = 'logical'; then restart the server",
    )


def _free_slots(facts: Facts) -> Check:
    taken, allowed = facts.server.slots_taken, facts.server.slots_allowed
    message = f"{taken} of {allowed} replication slots are in use"
    if taken < allowed or facts.slot is not None:
        return Check("slots", "ok", message)
    return Check(
        "slots",
        "fail",
        message,
        "drop a slot that nobody reads (SELECT slot_name, active FROM pg_replication_slots), or"
        f" ALTER SYSTEM SET max_replication_slots = {allowed + 5}; then restart the server",
    )


def _free_walsenders(facts: Facts) -> Check:
    taken, allowed = facts.server.walsenders_taken, facts.server.walsenders_allowed
    message = f"{taken} of {allowed} walsenders are in use"
    if taken < allowed or (facts.slot is not None and facts.slot.active):
        return Check("walsenders", "ok", message)
    return Check(
        "walsenders",
        "fail",
        message,
        "end a replication connection that nobody needs (SELECT pid, application_name FROM pg_stat_replication), or"
        f" ALTER SYSTEM SET max_wal_senders = {allowed + 5}; then restart the server",
    )


def _role(facts: Facts) -> Check:
    role = facts.role
    if role.is_superuser:
        return Check("role", "ok", f"{role.name} is a superuser; a role of sql/install.sql would do")
    if role.has_replication:
        return Check("role", "ok", f"{role.name} has REPLICATION")
    if role.member_of:
        return Check("role", "ok", f"{role.name} is a member of {role.member_of}")
    remedy = f"GRANT {role.service_role} TO {role.name}" if role.service_role else f"ALTER ROLE {role.name} REPLICATION"
    return Check("role", "fail", f"{role.name} may not use replication slots: it lacks REPLICATION", remedy)


def _plugin(facts: Facts) -> Check:
    plugin = facts.settings.slot.plugin
    if plugin == "pgoutput":
        return Check("plugin", "fail", "the pgoutput decoder is not in this version", 'set slot.plugin = "wal2json"')
    if facts.slot is not None and facts.slot.active and facts.slot.plugin == plugin:
        return Check("plugin", "ok", f"{plugin} is at work")
    allowed = facts.allowed
    if not allowed.exists:
        return Check("plugin", "ok", f"this server restricts no plugin; whether {plugin} is there shows at slot create")
    if not allowed.readable:
        return Check(
            "plugin",
            "warn",
            f"this server restricts plugins, and {facts.role.name} may not read output_plugin_libraries:"
            f" whether {plugin} is in it shows at slot create",
            f"as a superuser: SHOW output_plugin_libraries; it must list {plugin}",
        )
    if plugin in allowed.plugins:
        return Check("plugin", "ok", f"{plugin} is in output_plugin_libraries")
    return Check(
        "plugin", "fail", f"output_plugin_libraries does not list {plugin}: {allowed.text}", allowed.remedy(plugin)
    )


def _table(facts: Facts) -> Check:
    if facts.table is None:
        return Check("table", "fail", str(facts.table_error), facts.table_error.remedy if facts.table_error else "")
    key = facts.table.quoted(column.name for column in facts.table.watched.key)
    deadline = facts.table.quoted([facts.table.watched.deadline.name])
    return Check("table", "ok", f"{facts.table.sql_name}, key ({key}), deadline {deadline}")


def _version(facts: Facts) -> Check | None:
    if facts.table is None:
        return None
    if facts.table.watched.version is None:
        return Check(
            "version",
            "warn",
            "no version column: a close relies on status and deadline alone",
            f"ALTER TABLE {facts.table.sql_name} ADD COLUMN version integer NOT NULL DEFAULT 0;"
            ' let every writer count it up, and set table.version = "version"',
        )
    return Check("version", "ok", f"version column {facts.table.quoted([facts.table.watched.version.name])}")


def _identity(facts: Facts) -> Check | None:
    table = facts.table
    if table is None:
        return None
    watched = table.watched
    if watched.identity == "f":
        return Check("identity", "ok", "replica identity FULL: events are exact, at the price of more WAL")
    if table.is_identity_exact:
        return Check("identity", "ok", "replica identity covers the key, status and deadline: events are exact")
    wanted = [column.name for column in (*watched.key, watched.status, watched.deadline) if column is not None]
    index = f"{watched.name}_cdcwatch_identity"
    name = index if index.isidentifier() and index.islower() else '"' + index.replace('"', '""') + '"'
    return Check(
        "identity",
        "warn",
        "replica identity has the key only: an update gives the state it leaves, and an equal state may be repeated",
        f"CREATE UNIQUE INDEX CONCURRENTLY {name} ON {table.sql_name} ({table.quoted(dict.fromkeys(wanted))});"
        f" ALTER TABLE {table.sql_name} REPLICA IDENTITY USING INDEX {name}; ({_INSTALL_IDENTITY};"
        " its columns must be NOT NULL)",
    )


def _index(facts: Facts) -> Check | None:
    table = facts.table
    if table is None or facts.rights is None or not facts.rights.may_read:
        return None
    if facts.due_index:
        return Check("index", "ok", f"due orders are found by the index {facts.due_index}")
    deadline = table.quoted([table.watched.deadline.name])
    return Check(
        "index",
        "warn",
        "no index finds due orders: every look for them reads the whole table",
        f"CREATE INDEX CONCURRENTLY ON {table.sql_name} ({deadline}) WHERE {facts.open_condition}",
    )


def _rights(facts: Facts) -> Check | None:
    if facts.table is None or facts.rights is None:
        return None
    table, role, action = facts.table.sql_name, facts.role.name, facts.settings.close.action
    missing = [] if facts.rights.may_select else ["SELECT"]
    if action in {"update", "claim"} and not facts.rights.may_update:
        missing.append("UPDATE")
    if action == "delete" and not facts.rights.may_delete:
        missing.append("DELETE")
    grants = [f"GRANT {', '.join(missing)} ON {table} TO {role}"] if missing else []
    if not facts.rights.may_use_schema:
        grants.insert(0, f"GRANT USAGE ON SCHEMA {facts.table.sql_schema} TO {role}")
        missing.insert(0, "USAGE of its schema")
    if missing:
        return Check("rights", "fail", f"{role} lacks {', '.join(missing)} on {table}", "; ".join(grants))
    return Check("rights", "ok", f"{role} may read {table} and close its orders")


def _retention(facts: Facts) -> Check:
    server = facts.server
    if not server.knows_slot_keep:
        return Check(
            "retention",
            "warn",
            "this server can't limit the WAL that a slot holds: an unread slot fills the disk",
            "watch `cdcwatch slot status`",
        )
    if server.slot_keep_bytes is None:
        return Check(
            "retention",
            "warn",
            "max_slot_wal_keep_size is -1: a slot that nobody reads holds WAL until the disk is full",
            "ALTER SYSTEM SET max_slot_wal_keep_size = '50GB'; SELECT pg_reload_conf(); choose what the disk can spare."
            " Beyond it the slot is lost instead of the server",
        )
    kept = server.slot_keep_bytes // 2**20
    return Check("retention", "ok", f"max_slot_wal_keep_size is {kept} MB: beyond it the slot is lost")


def _slot(facts: Facts) -> Check:
    wanted, slot = facts.settings.slot, facts.slot
    if slot is None:
        return Check("slot", "warn", f"there is no slot {wanted.name} yet", "cdcwatch slot create")
    another = "set another slot.name, or drop this one: cdcwatch slot drop"
    if slot.kind != "logical":
        return Check("slot", "fail", f"slot {wanted.name} is a physical one", "set another slot.name")
    if slot.database != slot.connected_database:
        return Check(
            "slot", "fail", f"slot {wanted.name} reads database {slot.database}, not {slot.connected_database}", another
        )
    if slot.plugin != wanted.plugin:
        return Check("slot", "fail", f"slot {wanted.name} has the plugin {slot.plugin}, not {wanted.plugin}", another)
    if slot.is_lost:
        return Check(
            "slot",
            "fail",
            f"slot {wanted.name} is lost: WAL that it needed is gone ({slot.invalidation_reason or 'wal_removed'})",
            "cdcwatch slot drop, then cdcwatch slot create; changes since then are found by the sweep",
        )
    return Check("slot", "ok", f"slot {wanted.name}, {slot.plugin}, {'active' if slot.active else 'not active'}")


CHECKS: Final[tuple[Callable[[Facts], Check | None], ...]] = (
    _server,
    _wal_level,
    _free_slots,
    _free_walsenders,
    _role,
    _plugin,
    _table,
    _version,
    _identity,
    _index,
    _rights,
    _retention,
    _slot,
)
