"""`cdcwatch slot …`: the replication slot, for DBAs. Making, moving and dropping; looking is in `slot_state`."""

import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cdcwatch.cli import slot_peek, slot_state
from cdcwatch.cli.check import print_checks
from cdcwatch.cli.examples import examples
from cdcwatch.cli.options import ConfigOption, DebugOption, settings_of
from cdcwatch.cli.output import ask, bytes_text, duration_text
from cdcwatch.errors import CheckFailedError, ConfigurationError, NotDurableError

if TYPE_CHECKING:
    from cdcwatch.inspection.skip import Skipped
    from cdcwatch.settings import Settings
    from cdcwatch.slot.blockers import Blocker
    from cdcwatch.slot.creation import CreatedSlot, Plan
    from cdcwatch.slot.status import SlotStatus

app = typer.Typer(
    help="Make, watch, look into, move and drop the replication slot.", no_args_is_help=True, epilog=examples("slot")
)
_UNTOUCHED: Final = "The table itself is untouched, but nothing is closed until"
YesOption = Annotated[bool, typer.Option("--yes", help="Don't ask.")]


@app.callback()
def _group(config: ConfigOption = None, _debug: DebugOption = False) -> None:
    """Make, watch, look into, move and drop the replication slot."""


@app.command(epilog=examples("slot create"))
def create(
    context: typer.Context,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check, and print what would be run.")] = False,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="S", min=0, help="Seconds to wait for running transactions; 0: no limit."),
    ] = 300,
    failover: Annotated[
        bool, typer.Option("--failover", help="Synchronised to standbys, as slot.failover. PostgreSQL 17 and later.")
    ] = False,
    plugin: Annotated[
        str | None, typer.Option("--plugin", metavar="wal2json|pgoutput", help="In place of slot.plugin.")
    ] = None,
    snapshot: Annotated[
        bool,
        typer.Option(
            "--snapshot",
            help="Forget the topic's progress of this slot, so that the next run publishes all open orders first.",
        ),
    ] = False,
    config: ConfigOption = None,
    _debug: DebugOption = False,
) -> None:
    """Check, then make the slot; for pgoutput its publication before it. What Kafka lacks doesn't stop it.

    It waits for transactions that are running, and names them; out of time or interrupted, it leaves nothing behind.
    """
    from cdcwatch.inspection.changes import options_of
    from cdcwatch.inspection.preflight import broker_checks
    from cdcwatch.slot.creation import create_slot, plan_slot

    settings = _chosen(settings_of(context, config), failover=failover, plugin=plugin)
    if snapshot and settings.sink.kind == "none":
        raise ConfigurationError('--snapshot is about the topic, and sink.kind is "none"', remedy="leave it out")
    broker = broker_checks(settings)
    if dry_run:
        _print_plan(plan_slot(settings, options_of(settings)), settings, broker, snapshot=snapshot)
        return
    unfit = next((one for one in broker if one.state == "fail"), None)
    if snapshot and unfit is not None:
        raise CheckFailedError(f"no slot was made: {unfit.message}", remedy=unfit.remedy)
    try:
        with _interruptible():
            created = create_slot(
                settings, timeout_s=timeout, on_waiting=_print_blockers, options_of=options_of(settings)
            )
    except KeyboardInterrupt:
        raise NotDurableError(
            "interrupted: no slot was made, nothing was left behind", remedy="run cdcwatch slot create again"
        ) from None
    _print_created(created, settings)
    print_checks([*created.warnings, *(one for one in broker if one.state != "ok")])
    _tell_of_snapshot(settings, forced=snapshot, reachable=unfit is None)
    print(
        "The server now keeps WAL until it is read: start `cdcwatch run` soon, and watch\n"
        "retained bytes, safe_wal_size and the forecast with `cdcwatch slot status`."
    )


def _chosen(settings: "Settings", *, failover: bool, plugin: str | None) -> "Settings":
    """The settings with what the command line says instead."""
    import msgspec

    if plugin not in {None, "wal2json", "pgoutput"}:
        raise ConfigurationError("--plugin takes wal2json or pgoutput", remedy="name one of the two")
    slot = settings.slot
    chosen: dict[str, Any] = {"failover": failover or slot.failover, "plugin": plugin or slot.plugin}
    return msgspec.structs.replace(settings, slot=msgspec.structs.replace(slot, **chosen))


def _print_plan(plan: "Plan", settings: "Settings", broker: "Sequence[Any]", *, snapshot: bool) -> None:
    from cdcwatch.handoff.bus import bus_of

    print_checks([*plan.checks, *broker])
    if any(check.state == "fail" for check in plan.checks):
        raise CheckFailedError("a check failed: no slot would be made", remedy="mend what is marked fail above")
    if plan.existing is not None:
        print(f"slot {plan.existing.name} is already there ({plan.existing.plugin}, database {plan.existing.database})")
    else:
        print(f"would make slot {settings.slot.name} with the plugin {settings.slot.plugin}:")
        for statement in plan.statements:
            print(f"  {statement}")
    if snapshot:
        place = bus.progress_place if (bus := bus_of(settings)) else ""
        print(f"would forget the progress of {settings.slot.name} in {place}")


def _print_created(created: "CreatedSlot", settings: "Settings") -> None:
    status = created.status
    if created.publication_made:
        print(f"created publication {settings.slot.publication}")
    if created.was_there:
        print(f"slot {status.name} is already there, as it would be made; nothing was changed")
    else:
        print(f"created slot {status.name}")
    keep = status.keep_bytes
    print(f"  plugin                  {status.plugin}")
    print(f"  database                {status.database}")
    print(f"  consistent point        {status.confirmed_flush_lsn}")
    print(f"  failover                {'yes' if status.failover else 'no'}")
    print(f"  max_slot_wal_keep_size  {'-1 (no limit)' if keep is None else bytes_text(keep)}")


def _tell_of_snapshot(settings: "Settings", *, forced: bool, reachable: bool) -> None:
    """What the next run begins with."""
    from cdcwatch.handoff.bus import bus_of

    bus = bus_of(settings)
    if bus is None or not reachable:
        return
    if forced:
        bus.forget_progress()
    elif bus.progress() is not None:
        print(
            "The topic holds progress of a slot of this name. If that was another slot, run\n"
            "stops with a gap: run --accept-gap, or slot create --snapshot, reads the table."
        )
        return
    print("The first run publishes all open orders as snapshot events.")


@app.command(epilog=examples("slot advance"))
def advance(
    context: typer.Context,
    to: Annotated[str, typer.Option("--to", metavar="LSN|current", help="Where to; current: the end of the WAL now.")],
    yes: YesOption = False,
    config: ConfigOption = None,
    _debug: DebugOption = False,
) -> None:
    """Move the slot over changes that shall never be read: shows what they are, and asks first.

    Refuses while somebody reads the slot; never goes back, nor beyond the server's WAL. Afterwards the slot is beyond
    the topic's progress: run stops with a gap, until run --accept-gap reads the table again.
    """
    from cdcwatch.lsn import format_lsn
    from cdcwatch.slot.admin import advance_slot, advance_target, connected, found_status

    settings = settings_of(context, config)
    with connected(settings) as connection:
        found = found_status(connection, settings)
        target_lsn = advance_target(connection, found, to)
    print(f"slot {found.name} would move from {found.confirmed_flush_lsn} to {format_lsn(target_lsn)} and skip:")
    _print_loss(settings, found, target_lsn)
    print(f"  {_UNTOUCHED} `run --accept-gap`; then what is overdue is closed first.")
    ask("Move it?", "move the slot", yes=yes)
    print(f"slot {found.name} stands at {advance_slot(settings, target_lsn)}")
    if settings.sink.kind != "none":
        print(
            "Where the topic holds progress of this slot, the slot is beyond it now: `cdcwatch run`\n"
            "stops with a gap. The way on is `cdcwatch run --accept-gap`: it reads the table and\n"
            "publishes what the topic lacks as snapshot events."
        )


@app.command(epilog=examples("slot drop"))
def drop(
    context: typer.Context,
    yes: YesOption = False,
    config: ConfigOption = None,
    _debug: DebugOption = False,
) -> None:
    """Drop the slot: shows what was never read from it, asks unless --yes, and refuses while somebody reads it."""
    from cdcwatch.slot.admin import drop_slot, require_idle, slot_status
    from cdcwatch.slot.creation import publication_left

    settings = settings_of(context, config)
    found = slot_status(settings)
    require_idle(found)
    print(
        f"slot {found.name} (database {found.database}, confirmed up to {found.confirmed_flush_lsn}) holds"
        f" {bytes_text(found.retained_bytes)} of WAL. Never read from it:"
    )
    _print_loss(settings, found, None)
    print(f"  {_UNTOUCHED} `slot create` and\n  `run --accept-gap`; then what is overdue is closed first.")
    ask("Drop it?", "drop the slot", yes=yes)
    drop_slot(settings)
    print(f"dropped slot {found.name}")
    if found.plugin == "pgoutput":
        print(f"Its publication is still there; when nobody else reads by it: {publication_left(settings)}")


def _print_loss(settings: "Settings", found: "SlotStatus", upto_lsn: int | None) -> None:
    """What would never be read. It may be that which can't be read that is to be skipped: then it is unknown."""
    from cdcwatch.errors import CdcwatchError
    from cdcwatch.inspection.changes import require_readable
    from cdcwatch.inspection.skip import skipped
    from cdcwatch.slot.admin import connected

    try:
        require_readable(found)
        with connected(settings) as connection:
            _print_skipped(skipped(connection, settings, found, upto_lsn))
    except CdcwatchError as error:
        print(f"  what, can't be read: {error}")


def _print_skipped(lost: "Skipped") -> None:
    more = " or more" if lost.is_lower_bound else ""
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(lost.changes.items()))
    events = ", ".join(f"{count} {kind}" for kind, count in sorted(lost.events.items()))
    print(f"  changes of the table    {lost.change_count}{more}{f' ({kinds})' if kinds else ''}")
    print(f"  events never published  {lost.events.total()}{more}{f' ({events})' if events else ''}")
    print(f"  open deadlines          {lost.live_orders}{more} that the topic would not learn")
    print(f"  ended deadlines         {lost.ended_orders}{more} that the topic would take for open")


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
        print(f"waiting for a transaction {age}: {blocker.who}", file=sys.stderr, flush=True)


app.command("status", epilog=examples("slot status"))(slot_state.status)
app.command("list", epilog=examples("slot list"))(slot_state.list_slots)
app.command("peek", epilog=examples("slot peek"))(slot_peek.peek)
