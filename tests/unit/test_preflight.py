from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.settings import CloseSettings, PostgresSettings, Settings, SlotSettings
from cdcwatch.slot.allowlist import AllowList
from cdcwatch.slot.blockers import Blocker
from cdcwatch.slot.catalog import TableFacts
from cdcwatch.slot.facts import Facts, Rights, RoleFacts, ServerFacts
from cdcwatch.slot.managed import SERVICES, Service
from cdcwatch.slot.preflight import Check, judge
from cdcwatch.slot.probe import PluginProbe
from cdcwatch.slot.publication import PublicationFacts, tells_notes
from cdcwatch.slot.status import SlotStatus
from cdcwatch.slot.statuses import StatusFacts
from cdcwatch.slot.surroundings import ClockFacts, ConnectionFacts, Surroundings
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


WAY = ConnectionFacts(is_encrypted=True, tls_version="TLSv1.3", is_local=False, is_pooled=False, verifies_server=True)
AROUND = Surroundings(WAY, None, ClockFacts(1500, 200), (), None)
COMPLETE = replace(
    GOOD,
    statuses=StatusFacts(None, (), (), never_open=False),
    surroundings=AROUND,
    probe=PluginProbe(was_loaded=True, knows_options=True),
)
PUBLICATION = PublicationFacts(
    publishes_all=True, via_root=True, has_table=True, columns=[column.name for column in COLUMNS], has_row_filter=False
)
PUBLISHED = replace(
    COMPLETE,
    settings=Settings(slot=SlotSettings(plugin="pgoutput")),
    publication=PUBLICATION,
    slot=replace(SLOT, plugin="pgoutput"),
)
POOLED = replace(AROUND, main=replace(WAY, is_pooled=True))
OLD = Blocker(4711, 125.0, "migrate", "app", "shop")


def _with(part: str, **changes: Any) -> Facts:
    return replace(GOOD, **{part: replace(getattr(GOOD, part), **changes)})


def _closing(action: str, also: str = "", **rights: bool) -> Facts:
    settings = Settings(close=CloseSettings(action=action, also=also))  # type: ignore[arg-type]
    return replace(_with("rights", **{"may_delete": True, **rights}), settings=settings)


def _named(facts: Facts, name: str) -> Check:
    return next(check for check in judge(facts) if check.name == name)


def test_all_is_well() -> None:
    assert {check.state for check in judge(GOOD)} == {"ok"}
    assert len(judge(GOOD)) == 14
    assert {check.state for check in judge(COMPLETE)} == {"ok"}
    assert len(judge(COMPLETE)) == 20
    assert {check.state for check in judge(PUBLISHED)} == {"ok"}


def _around(**changes: Any) -> Facts:
    return replace(COMPLETE, surroundings=replace(AROUND, **changes))


def _server(**changes: Any) -> Facts:
    return replace(COMPLETE, server=replace(SERVER, **changes))


def _failover(**changes: Any) -> Facts:
    facts = replace(_server(version_number=170001, **changes), slot=replace(SLOT, failover=True))
    return replace(facts, settings=Settings(slot=SlotSettings(failover=True)))


@pytest.mark.parametrize(
    ("facts", "name", "state", "remedy"),
    [
        (_around(main=replace(WAY, is_encrypted=False)), "tls", "warn", "sslmode=verify-full"),
        (_around(main=replace(WAY, is_encrypted=False, is_local=True)), "tls", "ok", ""),
        (_around(main=replace(WAY, verifies_server=False)), "tls", "ok", ""),
        (_around(stream=replace(WAY, is_encrypted=False)), "tls", "warn", "to postgres.replication_dsn"),
        (_around(clock=ClockFacts(1_500_000, 200)), "clock", "warn", "set-ntp"),
        (_around(clock=ClockFacts(-1_500_000, 200)), "clock", "warn", "set-ntp"),
        (_around(clock=ClockFacts(1_500_000, 600_000)), "clock", "ok", ""),
        (_around(running=(OLD,)), "transactions", "warn", "SELECT pg_cancel_backend(4711)"),
        (_around(running=(replace(OLD, pid=None),)), "transactions", "warn", "ROLLBACK PREPARED"),
        (_around(running=(replace(OLD, age_s=59.0),)), "transactions", "ok", ""),
        (_around(running=(replace(OLD, age_s=None),)), "transactions", "ok", ""),
        (_around(main=POOLED.main), "pooler", "warn", "set postgres.replication_dsn"),
        (
            _around(main=POOLED.main, stream_error=PreconditionError("unsupported", remedy="x")),
            "pooler",
            "fail",
            "set postgres.replication_dsn",
        ),
        (
            _around(stream_error=UnavailableError("away", remedy="see that it is up")),
            "replication",
            "fail",
            "see that it is up",
        ),
        (_server(encoding="SQL_ASCII"), "encoding", "warn", "ENCODING 'UTF8'"),
        (_server(idle_slot_timeout_s=3600.0), "idle_limit", "warn", "idle_replication_slot_timeout = '7d'"),
        (_server(idle_slot_timeout_s=864_000.0), "idle_limit", "ok", ""),
        (_failover(synchronized_standby_slots="standby"), "failover", "ok", ""),
        (_failover(synchronized_standby_slots=""), "failover", "warn", "synchronized_standby_slots ="),
        (
            replace(_failover(synchronized_standby_slots="s"), slot=SLOT),
            "failover",
            "warn",
            "ALTER_REPLICATION_SLOT cdcwatch_orders (FAILOVER true)",
        ),
        (
            replace(COMPLETE, settings=Settings(slot=SlotSettings(failover=True))),
            "failover",
            "fail",
            "slot.failover = false",
        ),
        (
            replace(COMPLETE, statuses=StatusFacts(("Pending",), ("pending",), (), never_open=False)),
            "status",
            "fail",
            "'Pending'",
        ),
        (
            replace(COMPLETE, statuses=StatusFacts(("open", "shut"), ("pending",), (), never_open=False)),
            "status",
            "fail",
            "open, shut; or ALTER TYPE",
        ),
        (replace(COMPLETE, due_index_is_partial=False), "index", "warn", "WHERE status = 'pending'"),
        (replace(COMPLETE, rights=Rights(True, True, True, False, True)), "row_security", "fail", "CREATE POLICY"),
        (replace(PUBLISHED, publication=None), "publication", "fail", "slot drop, then cdcwatch slot create"),
        (replace(PUBLISHED, publication=None, slot=None), "publication", "fail", "CREATE PUBLICATION cdcwatch_orders"),
        (replace(PUBLISHED, publication=None, slot=None, may_publish=True), "publication", "ok", ""),
    ],
)
def test_what_is_around_is_told_with_its_remedy(facts: Facts, name: str, state: str, remedy: str) -> None:
    check = _named(facts, name)
    assert (check.state, remedy in check.remedy) == (state, True), check
    assert (check.remedy == "") == (state == "ok")


def test_replication_dsn_past_the_pooler_is_well() -> None:
    settings = Settings(postgres=PostgresSettings(dsn="host=pooler", replication_dsn="host=primary"))
    facts = replace(COMPLETE, settings=settings, surroundings=replace(POOLED, stream=WAY))
    assert (_named(facts, "pooler").state, _named(facts, "replication").state) == ("ok", "ok")


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.marker_role)
def test_managed_services_are_never_told_to_alter_system(service: Service) -> None:
    facts = replace(
        COMPLETE,
        server=replace(
            SERVER, service_role=service.marker_role, wal_level="replica", slot_keep_bytes=None, slots_taken=10
        ),
        role=replace(ROLE, has_replication=False),
        allowed=AllowList(exists=True, text="pgoutput"),
        probe=None,
        slot=None,
        surroundings=POOLED,
    )
    checks = judge(facts)
    assert not any("ALTER SYSTEM" in check.remedy for check in checks)
    assert service.name in _named(facts, "server").message
    assert _named(facts, "wal_level").remedy == service.logical
    assert service.replication.format(role="cdcwatch") == _named(facts, "role").remedy
    assert service.direct in _named(facts, "pooler").remedy


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
        (
            _closing("delete", may_delete=False, may_lock=False, may_update=False),
            "rights",
            "fail",
            "GRANT DELETE, UPDATE (id) ON public.orders TO cdcwatch",
        ),
        (_closing("delete", may_update=False), "rights", "ok", ""),
        (_closing("delete", "SELECT 1", may_make_temporary=False), "rights", "fail", "GRANT TEMPORARY"),
        (_with("server", slot_keep_bytes=None), "retention", "warn", "max_slot_wal_keep_size"),
        (_with("server", knows_slot_keep=False), "retention", "warn", "slot status"),
        (replace(GOOD, slot=None), "slot", "warn", "cdcwatch slot create"),
        (_with("slot", plugin="pgoutput"), "slot", "fail", "slot drop"),
        (_with("slot", database="other"), "slot", "fail", "slot drop"),
        (_with("slot", wal_status="lost"), "slot", "fail", "cdcwatch recover"),
    ],
)
def test_what_is_amiss_is_told_with_its_remedy(facts: Facts, name: str, state: str, remedy: str) -> None:
    check = _named(facts, name)
    assert (check.state, remedy in check.remedy) == (state, True), check
    assert (check.remedy == "") == (state == "ok")


def test_closes_that_delete_need_notes_in_the_stream() -> None:
    deleting = replace(
        PUBLISHED, settings=msgspec.structs.replace(PUBLISHED.settings, close=CloseSettings(action="delete"))
    )
    assert _named(deleting, "publication").state == "ok"
    old = replace(deleting, server=replace(SERVER, version_number=130_000))
    check = _named(old, "publication")
    assert (check.state, "before PostgreSQL 14" in check.message) == ("fail", True)
    assert not tells_notes(old.settings, 130_000)


def test_older_minors_are_never_told_of_a_setting_that_would_stop_them() -> None:
    facts = _with("allowed", exists=False, text="")
    assert not any("output_plugin_libraries" in check.message + check.remedy for check in judge(facts))


def test_without_a_table_only_the_table_is_told() -> None:
    facts = replace(GOOD, table=None, rights=None, table_error=PreconditionError("gone", remedy="mend"))
    assert not {"version", "identity", "index", "rights"} & {check.name for check in judge(facts)}
