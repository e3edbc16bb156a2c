from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cdcwatch.errors import PreconditionError
from cdcwatch.settings import Settings
from cdcwatch.slot.allowlist import AllowList
from cdcwatch.slot.catalog import TableFacts
from cdcwatch.slot.facts import Facts, Rights, RoleFacts, ServerFacts
from cdcwatch.slot.preflight import Check, judge
from cdcwatch.slot.status import SlotStatus
from cdcwatch.table import Column, WatchedTable

COLUMNS = tuple(
    Column(*pair)
    for pair in (
        ("id", "bigint"),
        ("status", "text"),
        ("expires_at", "timestamp with time zone"),
        ("version", "integer"),
    )
)
WATCHED = WatchedTable(
    "public", "orders", 16384, COLUMNS[:1], COLUMNS[2], COLUMNS[1], COLUMNS[3], frozenset({"pending"}), "expired", "f"
)
TABLE = TableFacts(
    WATCHED,
    "public",
    "public.orders",
    {column.name: column.name for column in COLUMNS},
    frozenset(column.name for column in COLUMNS),
    ("id",),
)
SLOT = SlotStatus(
    name="cdcwatch_orders",
    kind="logical",
    plugin="wal2json",
    database="shop",
    connected_database="shop",
    active=False,
    owner_pid=None,
    owner_application=None,
    owner_address=None,
    confirmed_flush_lsn="0/1",
    restart_lsn="0/1",
    lag_bytes=0,
    retained_bytes=0,
    wal_status="reserved",
    safe_wal_bytes=None,
    invalidation_reason=None,
    keep_bytes=None,
)
SERVER = ServerFacts(150020, "15.20", "logical", False, 10, 1, 10, 1, 2**30, True)
ROLE = RoleFacts("cdcwatch", False, True, None, None)
GOOD = Facts(
    Settings(),
    SERVER,
    ROLE,
    AllowList(exists=True, text="pgoutput, wal2json"),
    TABLE,
    None,
    Rights(True, True, True, False),
    "orders_cdcwatch_open",
    "status = 'pending'",
    SLOT,
)


def _with(part: str, **changes: Any) -> Facts:
    return replace(GOOD, **{part: replace(getattr(GOOD, part), **changes)})


def _named(facts: Facts, name: str) -> Check:
    return next(check for check in judge(facts) if check.name == name)


def test_all_is_well() -> None:
    assert {check.state for check in judge(GOOD)} == {"ok"}
    assert len(judge(GOOD)) == 14


@pytest.mark.parametrize(
    ("facts", "name", "state", "remedy"),
    [
        (_with("server", version_number=110000), "server", "fail", "upgrade"),
        (_with("server", in_recovery=True), "server", "fail", "primary"),
        (_with("server", wal_level="replica"), "wal_level", "fail", "wal_level = 'logical'; then restart"),
        (replace(_with("server", slots_taken=10), slot=None), "slots", "fail", "max_replication_slots = 15"),
        (_with("server", slots_taken=10), "slots", "ok", ""),
        (_with("server", walsenders_taken=10), "walsenders", "fail", "max_wal_senders = 15"),
        (_with("role", has_replication=False), "role", "fail", "ALTER ROLE cdcwatch REPLICATION"),
        (_with("role", has_replication=False, member_of="rds_replication"), "role", "ok", ""),
        (
            _with("role", has_replication=False, service_role="rds_replication"),
            "role",
            "fail",
            "GRANT rds_replication TO cdcwatch",
        ),
        (_with("allowed", text="pgoutput"), "plugin", "fail", "'pgoutput', 'wal2json';"),
        (_with("allowed", readable=False, text=""), "plugin", "warn", "SHOW output_plugin_libraries"),
        (_with("allowed", exists=False, text=""), "plugin", "ok", ""),
        (
            replace(GOOD, table=None, rights=None, table_error=PreconditionError("gone", remedy="mend")),
            "table",
            "fail",
            "mend",
        ),
        (_with("table", watched=replace(WATCHED, version=None)), "version", "warn", "ADD COLUMN version"),
        (
            _with("table", watched=replace(WATCHED, identity="d"), identity_columns=frozenset({"id"})),
            "identity",
            "warn",
            (
                "CREATE UNIQUE INDEX CONCURRENTLY orders_cdcwatch_identity ON public.orders (id, status, expires_at);"
                " ALTER TABLE public.orders REPLICA IDENTITY USING INDEX orders_cdcwatch_identity;"
            ),
        ),
        (_with("table", watched=replace(WATCHED, identity="i")), "identity", "ok", ""),
        (replace(GOOD, due_index=""), "index", "warn", "ON public.orders (expires_at) WHERE status = 'pending'"),
        (_with("rights", may_update=False), "rights", "fail", "GRANT UPDATE ON public.orders TO cdcwatch"),
        (
            _with("rights", may_select=False, may_use_schema=False),
            "rights",
            "fail",
            "GRANT USAGE ON SCHEMA public TO cdcwatch; GRANT SELECT ON public.orders TO cdcwatch",
        ),
        (_with("server", slot_keep_bytes=None), "retention", "warn", "max_slot_wal_keep_size"),
        (_with("server", knows_slot_keep=False), "retention", "warn", "slot status"),
        (replace(GOOD, slot=None), "slot", "warn", "cdcwatch slot create"),
        (_with("slot", plugin="pgoutput"), "slot", "fail", "slot drop"),
        (_with("slot", database="other"), "slot", "fail", "slot drop"),
        (_with("slot", wal_status="lost"), "slot", "fail", "slot drop"),
    ],
)
def test_what_is_amiss_is_told_with_its_remedy(facts: Facts, name: str, state: str, remedy: str) -> None:
    check = _named(facts, name)
    assert (check.state, remedy in check.remedy) == (state, True), check
    assert (check.remedy == "") == (state == "ok")


def test_older_minors_are_never_told_of_a_setting_that_would_stop_them() -> None:
    facts = _with("allowed", exists=False, text="")
    assert not any("output_plugin_libraries" in check.message + check.remedy for check in judge(facts))


def test_without_a_table_only_the_table_is_told() -> None:
    facts = replace(GOOD, table=None, rights=None, table_error=PreconditionError("gone", remedy="mend"))
    assert not {"version", "identity", "index", "rights"} & {check.name for check in judge(facts)}
