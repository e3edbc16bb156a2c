"""`cdcwatch slot …`: the replication slot, for DBAs."""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdcwatch.cli.check import print_checks
from cdcwatch.cli.options import ConfigOption, DebugOption, JsonOption, settings_of
from cdcwatch.cli.output import bytes_text, duration_text, print_json
from cdcwatch.errors import CheckFailedError, ConfigurationError, NotDurableError

if TYPE_CHECKING:
    from cdcwatch.slot.admin import Blocker
    from cdcwatch.slot.status import SlotStatus

app = typer.Typer(help="Make, watch and drop the replication slot.", no_args_is_help=True)


@app.callback()
def _group(config: ConfigOption = None, _debug: DebugOption = False) -> None:
    """Make, watch and drop the replication slot."""


@app.command()
def create(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check, and say what would be made.")] = False,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="S", min=0, help="Seconds to wait for running transactions; 0: no limit."),
    ] = 300,
    config: ConfigOption = None,
    _debug: DebugOption = False,
) -> None:
    """Check, then make the slot. It waits for transactions that are running; out of time, it leaves nothing behind."""
    from cdcwatch.slot.admin import create_slot, plan_slot

    settings = settings_of(context, config)
    if dry_run:
        checks, existing = plan_slot(settings)
        print_checks(checks)
        if any(check.state == "fail" for check in checks):
            raise CheckFailedError("a check failed: no slot would be made", remedy="mend what is marked fail above")
        if existing is not None:
            print(f"slot {existing.name} is already there ({existing.plugin}, database {existing.database})")
        else:
            print(f"would make slot {settings.slot.name} with the plugin {settings.slot.plugin}")
        return
    try:
        with _interruptible():
            created = create_slot(settings, timeout_s=timeout, on_waiting=_print_blockers)
    except KeyboardInterrupt:
        raise NotDurableError(
            "interrupted: no slot was made, nothing was left behind", remedy="run cdcwatch slot create again"
        ) from None
    status = created.status
    if created.was_there:
        print(f"slot {status.name} is already there, as it would be made; nothing was changed")
    else:
        print(f"created slot {status.name}")
    keep = status.keep_bytes
    print(f"  plugin                  {status.plugin}")
    print(f"  database                {status.database}")
    print(f"  consistent point        {status.confirmed_flush_lsn}")
    print(f"  max_slot_wal_keep_size  {'-1 (no limit)' if keep is None else bytes_text(keep)}")
    print_checks(created.warnings)
    print(
        "The server now keeps WAL until it is read here: start `cdcwatch run` soon, and watch retained bytes and"
        " wal_status with `cdcwatch slot status`."
    )


@app.command()
def status(
    context: typer.Context, json: JsonOption = False, config: ConfigOption = None, _debug: DebugOption = False
) -> None:
    """Show position, lag, retained WAL and owner. Exit 1 when WAL that the slot needs is gone or about to go."""
    from cdcwatch.slot.admin import slot_status

    found = slot_status(settings_of(context, config))
    if json:
        print_json(_status_document(found))
    else:
        _print_status(found)
    if found.is_lost:
        raise CheckFailedError(
            f"slot {found.name} is lost: WAL that it needed is gone"
            f"{f' ({found.invalidation_reason})' if found.invalidation_reason else ''}",
            remedy="cdcwatch slot drop, then cdcwatch slot create; changes since then are found by the sweep",
        )
    if found.is_past_threshold:
        raise CheckFailedError(
            f"slot {found.name} is about to be lost: wal_status is {found.wal_status}",
            remedy="let cdcwatch run catch up now, or raise max_slot_wal_keep_size and SELECT pg_reload_conf()",
        )


@app.command()
def drop(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    config: ConfigOption = None,
    _debug: DebugOption = False,
) -> None:
    """Drop the slot: asks first, and refuses while somebody reads it."""
    from cdcwatch.slot.admin import drop_slot, require_droppable, slot_status

    settings = settings_of(context, config)
    found = slot_status(settings)
    require_droppable(found)
    if not yes:
        print(
            f"slot {found.name} (database {found.database}, confirmed up to {found.confirmed_flush_lsn}) holds"
            f" {bytes_text(found.retained_bytes)} of WAL. Changes that were not read from it can't be read any more."
        )
        try:
            is_sure = typer.confirm("Drop it?")
        except typer.Abort:
            raise ConfigurationError("nobody answered whether to drop the slot", remedy="pass --yes") from None
        if not is_sure:
            print("nothing was dropped")
            raise typer.Exit(1)
    drop_slot(settings)
    print(f"dropped slot {found.name}")


@contextmanager
def _interruptible() -> Iterator[None]:
    """SIGTERM ends the wait as Ctrl-C does: with the request cancelled, not abandoned."""

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _print_blockers(blockers: "Sequence[Blocker]") -> None:
    """On stderr, from the watching thread."""
    for blocker in blockers:
        age = (
            "of unknown age (a member of pg_read_all_stats sees it)"
            if blocker.age_s is None
            else f"{duration_text(blocker.age_s)} old"
        )
        who = f"pid {blocker.pid}" if blocker.pid is not None else "no process"
        print(
            f"waiting for a transaction {age}: {who}, {blocker.application or 'no application name'},"
            f" role {blocker.role_name}, database {blocker.database}",
            file=sys.stderr,
            flush=True,
        )


def _status_document(found: "SlotStatus") -> dict[str, Any]:
    return {
        "name": found.name,
        "plugin": found.plugin,
        "database": found.database,
        "active": found.active,
        "owner": {
            "pid": found.owner_pid,
            "application_name": found.owner_application,
            "client_address": found.owner_address,
        }
        if found.owner_pid is not None
        else None,
        "confirmed_flush_lsn": found.confirmed_flush_lsn,
        "restart_lsn": found.restart_lsn,
        "lag_bytes": found.lag_bytes,
        "retained_bytes": found.retained_bytes,
        "wal_status": found.wal_status,
        "safe_wal_bytes": found.safe_wal_bytes,
        "invalidation_reason": found.invalidation_reason,
        "max_slot_wal_keep_bytes": found.keep_bytes,
    }


def _print_status(found: "SlotStatus") -> None:
    lines = {
        "slot": found.name,
        "plugin": found.plugin,
        "database": found.database,
        "read by": found.owner,
        "confirmed_flush_lsn": f"{found.confirmed_flush_lsn} ({bytes_text(found.lag_bytes)} behind)",
        "restart_lsn": f"{found.restart_lsn} ({bytes_text(found.retained_bytes)} retained)",
        "wal_status": found.wal_status or "unknown",
        "safe_wal_size": "no limit" if found.keep_bytes is None else bytes_text(found.safe_wal_bytes),
    }
    for name, text in lines.items():
        print(f"{name:<20}  {text}")
