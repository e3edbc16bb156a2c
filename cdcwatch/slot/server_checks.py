"""Checks of the server and the role: what logical decoding takes, and how long the server keeps WAL. Pure.

https://www.postgresql.org/docs/current/logicaldecoding.html
https://www.postgresql.org/docs/current/runtime-config-replication.html
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cdcwatch.slot.check import Check, failed
from cdcwatch.slot.encodings import codec
from cdcwatch.slot.managed import set_parameter

if TYPE_CHECKING:
    from cdcwatch.slot.facts import Facts

OLDEST_SERVER: Final = 130_000
FAILOVER_SINCE: Final = 170_000
_SHORT_IDLE_S: Final = 86_400.0
_DAY_S: Final = 86_400
_HOUR_S: Final = 3600


def server_version(facts: Facts) -> Check:
    """New enough, and the primary."""
    server = facts.server
    where = f" ({server.service.name})" if server.service else ""
    if server.version_number < OLDEST_SERVER:
        return Check("server", "fail", f"PostgreSQL {server.version} is too old", "upgrade to PostgreSQL 13 or later")
    if server.in_recovery:
        return Check(
            "server",
            "fail",
            f"PostgreSQL {server.version} is a standby here: orders are closed on the primary",
            "connect to the primary: postgres.dsn with target_session_attrs=read-write",
        )
    if server.service is not None and server.service.note:
        return Check("server", "warn", f"PostgreSQL {server.version}{where}: {server.service.note}", "keep it in mind")
    return Check("server", "ok", f"PostgreSQL {server.version}{where}")


def encoding(facts: Facts) -> Check:
    """Known, so that texts reach us as the UTF-8 that JSON and Kafka keys are."""
    name = facts.server.encoding
    if name == "SQL_ASCII":
        return Check(
            "encoding",
            "warn",
            "the database's encoding is SQL_ASCII: a row with bytes in its key or status that are no UTF-8 becomes a"
            " dead letter",
            "move the database to one with ENCODING 'UTF8' (pg_dump, createdb -E UTF8 -T template0, pg_restore), or"
            " keep keys and statuses in ASCII",
        )
    is_known = name == "UTF8" or codec(name) != ""
    if facts.settings.slot.plugin == "wal2json" and not is_known:
        return Check(
            "encoding",
            "warn",
            f"wal2json sends texts in the database's encoding, {name}, which we can't read",
            'set slot.plugin = "pgoutput", whose texts the server converts',
        )
    return Check("encoding", "ok", f"the database's encoding is {name}")


def wal_level(facts: Facts) -> Check:
    """Logical."""
    level = facts.server.wal_level
    if level == "logical":
        return Check("wal_level", "ok", "wal_level is logical")
    service = facts.server.service
    return Check(
        "wal_level",
        "fail",
        f"wal_level is {level}: logical decoding needs logical",
        service.logical if service else "ALTER SYSTEM SET wal_level = 'logical'; then restart the server",
    )


def free_slots(facts: Facts) -> Check:
    """One for ours, unless it is there."""
    taken, allowed = facts.server.slots_taken, facts.server.slots_allowed
    message = f"{taken} of {allowed} replication slots are in use"
    if taken < allowed or facts.slot is not None:
        return Check("slots", "ok", message)
    return Check(
        "slots",
        "fail",
        message,
        "drop a slot that nobody reads (cdcwatch slot list), or "
        + set_parameter(facts.server.service, "max_replication_slots", str(allowed + 5), restart=True),
    )


def free_walsenders(facts: Facts) -> Check:
    """One for ours, unless it is at work."""
    taken, allowed = facts.server.walsenders_taken, facts.server.walsenders_allowed
    message = f"{taken} of {allowed} walsenders are in use"
    if taken < allowed or (facts.slot is not None and facts.slot.active):
        return Check("walsenders", "ok", message)
    return Check(
        "walsenders",
        "fail",
        message,
        "end a replication connection that nobody needs (SELECT pid, application_name FROM pg_stat_replication), or "
        + set_parameter(facts.server.service, "max_wal_senders", str(allowed + 5), restart=True),
    )


def role(facts: Facts) -> Check:
    """REPLICATION, as the server or a managed service grants it."""
    one = facts.role
    if one.is_superuser:
        return Check("role", "ok", f"{one.name} is a superuser; a role of sql/install.sql would do")
    if one.has_replication:
        return Check("role", "ok", f"{one.name} has REPLICATION")
    if one.member_of:
        return Check("role", "ok", f"{one.name} is a member of {one.member_of}")
    message = f"{one.name} may not use replication slots: it lacks REPLICATION"
    if one.service_role:
        return Check("role", "fail", message, f"GRANT {one.service_role} TO {one.name}")
    service = facts.server.service
    wanted = service.replication if service else "ALTER ROLE {role} REPLICATION"
    return Check("role", "fail", message, wanted.format(role=one.name))


def plugin(facts: Facts) -> Check:  # noqa: PLR0911  a line of the report each
    """Let in, there, of this major version, and new enough for our options: by the list, and by having loaded it."""
    name = facts.settings.slot.plugin
    if facts.slot is not None and facts.slot.active and facts.slot.plugin == name:
        return Check("plugin", "ok", f"{name} is at work")
    allowed, probe = facts.allowed, facts.probe
    if allowed.exists and allowed.readable and name not in allowed.plugins:
        service = facts.server.service
        remedy = allowed.remedy(name)
        if service is not None:
            remedy = service.set("output_plugin_libraries", ",".join([*allowed.kept, name]), restart=False)
        instead = " (pgoutput is part of the server: slot.plugin)" if name != "pgoutput" else ""
        return Check("plugin", "fail", f"output_plugin_libraries does not list {name}: {allowed.text}{instead}", remedy)
    if probe is not None and probe.refusal is not None:
        return failed("plugin", probe.refusal)
    if probe is not None and probe.was_loaded:
        asked = " and knows every option" if probe.knows_options else ""
        return Check("plugin", "ok", f"the server loads {name}{asked}")
    if name == "pgoutput":
        return Check("plugin", "ok", "pgoutput is part of the server")
    if allowed.exists and not allowed.readable:
        return Check(
            "plugin",
            "warn",
            f"this server restricts plugins, and {facts.role.name} may not read output_plugin_libraries:"
            f" whether {name} is in it shows at slot create",
            f"as a superuser: SHOW output_plugin_libraries; it must list {name}",
        )
    listed = f"{name} is in output_plugin_libraries" if allowed.exists else "this server restricts no plugin"
    return Check("plugin", "ok", f"{listed}; whether it can be loaded shows at slot create")


def retention(facts: Facts) -> Check:
    """How much WAL an unread slot may keep."""
    server = facts.server
    if not server.knows_slot_keep:
        return Check(
            "retention",
            "warn",
            "this server can't limit the WAL that a slot holds: an unread slot fills the disk",
            "watch it: cdcwatch slot status --watch",
        )
    if server.slot_keep_bytes is None:
        return Check(
            "retention",
            "warn",
            "max_slot_wal_keep_size is -1: a slot that nobody reads holds WAL until the disk is full; choose as <SIZE>"
            " what the disk can spare (docs/runbook.md): beyond it the slot is lost instead of the server",
            set_parameter(server.service, "max_slot_wal_keep_size", "'<SIZE>'", restart=False),
        )
    kept = server.slot_keep_bytes // 2**20
    return Check("retention", "ok", f"max_slot_wal_keep_size is {kept} MB: beyond it the slot is lost")


def idle_timeout(facts: Facts) -> Check | None:
    """`idle_replication_slot_timeout` of PostgreSQL 18: a reader that is away for longer loses its slot."""
    timeout_s = facts.server.idle_slot_timeout_s
    if timeout_s is None:
        return None
    text = f"{timeout_s / _DAY_S:g} d" if timeout_s >= _DAY_S else f"{timeout_s / _HOUR_S:.3g} h"
    message = (
        f"idle_replication_slot_timeout is {text}: a slot that nobody reads for that long is lost; it must be longer"
        " than your longest outage, or 0"
    )
    if timeout_s < _SHORT_IDLE_S:
        remedy = set_parameter(facts.server.service, "idle_replication_slot_timeout", "'7d'", restart=False)
        return Check("idle_limit", "warn", message, remedy)
    return Check("idle_limit", "ok", message)


def failover(facts: Facts) -> Check | None:
    """With slot.failover: the server knows it, the slot has it, and standbys are waited for."""
    if not facts.settings.slot.failover:
        return None
    server, slot = facts.server, facts.slot
    if server.version_number < FAILOVER_SINCE:
        return Check(
            "failover",
            "fail",
            f"slot.failover needs PostgreSQL 17 or later, and this is {server.version}",
            "set slot.failover = false; docs/runbook.md tells what to do at a failover without it",
        )
    if slot is not None and not slot.failover:
        return Check(
            "failover",
            "warn",
            f"slot {slot.name} is not synchronised to standbys",
            "stop cdcwatch run, and on a replication connection (psql 'replication=database …'):"
            f" ALTER_REPLICATION_SLOT {slot.name} (FAILOVER true)",
        )
    if not server.synchronized_standby_slots:
        return Check(
            "failover",
            "warn",
            "synchronized_standby_slots is empty: cdcwatch may be ahead of the standby that takes over",
            "ALTER SYSTEM SET synchronized_standby_slots = 'physical_slot_of_the_standby'; SELECT pg_reload_conf();"
            " on the standby: sync_replication_slots = on, hot_standby_feedback = on, dbname in primary_conninfo",
        )
    return Check("failover", "ok", "the slot is synchronised to standbys, which are waited for")
