"""`cdcwatch recover` and `cdcwatch snapshot`: the topic is made to say what the table says."""

from typing import TYPE_CHECKING, Annotated

import typer

from cdcwatch.cli.bars import bars
from cdcwatch.cli.ending import ending_by_signal
from cdcwatch.cli.options import ConfigOption, DebugOption, settings_of
from cdcwatch.cli.output import ask
from cdcwatch.cli.run import serve
from cdcwatch.errors import ConfigurationError

if TYPE_CHECKING:
    from cdcwatch.inspection.recovery import Recovery
    from cdcwatch.settings import Settings


def recover(
    context: typer.Context,
    yes: Annotated[bool, typer.Option("--yes", help="Don't ask.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Look, say what would be done, and do nothing.")] = False,
    timeout: Annotated[float, typer.Option(metavar="S", min=0, help="Wait so long for running transactions.")] = 300,
    config: ConfigOption = None,
    debug: DebugOption = False,
) -> None:
    """Mend a slot that is lost, gone or made anew: a new slot first, then the table against the topic.

    What the topic lacks is published as snapshot events, after a stream.gap event that records the gap. Then `run` goes
    on as usual. Refuses when nothing is wrong, and while somebody reads the slot.
    """
    from cdcwatch.inspection.changes import options_of
    from cdcwatch.inspection.recovery import plan_recovery
    from cdcwatch.slot.admin import drop_slot
    from cdcwatch.slot.creation import create_slot

    settings = settings_of(context, config)
    plan = plan_recovery(settings, options_of(settings))
    _print_plan(plan, settings)
    if dry_run:
        return
    ask("Do it?", "recover", yes=yes)
    if plan.drops_slot:
        drop_slot(settings)
        print(f"dropped slot {settings.slot.name}")
    if plan.statements:
        create_slot(settings, timeout_s=timeout, options_of=options_of(settings))
        print(f"created slot {settings.slot.name}", flush=True)
    if settings.sink.kind != "none":
        _reconcile(settings, debug=debug, accept_gap=True)
        print("the topic says what the table says")
    print("go on: cdcwatch run")


def snapshot(
    context: typer.Context,
    config: ConfigOption = None,
    debug: DebugOption = False,
) -> None:
    """Read the table and publish what the topic lacks of it, as snapshot events. Refuses while `run` has the slot."""
    from cdcwatch.slot.admin import require_idle, slot_status

    settings = settings_of(context, config)
    if settings.sink.kind == "none":
        raise ConfigurationError(
            'sink.kind = "none": there is no topic to read the table into',
            remedy='set sink.kind to "kafka", "redis" or "file"',
        )
    require_idle(slot_status(settings))
    _reconcile(settings, debug=debug, reads_again=True)
    print("the topic says what the table says")


def _print_plan(plan: "Recovery", settings: "Settings") -> None:
    print(f"{plan.trouble}")
    print("recover would:")
    if plan.drops_slot:
        print(f"  drop slot {settings.slot.name}, which can't be read any more")
    for statement in plan.statements:
        print(f"  {statement}")
    if settings.sink.kind != "none":
        for one in settings.each():
            print(f"  read {one.topic} to its end, and the open orders of {one.table.name}")
        print("  publish the gap as a stream.gap event, then as snapshot events what the topic lacks:")
        print("  deadlines that it doesn't have, and the end of those that it takes for open")


def _reconcile(settings: "Settings", *, debug: bool, accept_gap: bool = False, reads_again: bool = False) -> None:
    """What `run` begins with, and no more: it has the slot and the topic for itself meanwhile."""
    with ending_by_signal() as ending, bars():
        import msgspec

        from cdcwatch.pipeline.built import require_built
        from cdcwatch.pipeline.service import Service

        # A standby may wait for this slot, with the port open.
        quiet = msgspec.structs.replace(settings, telemetry=msgspec.structs.replace(settings.telemetry, listen=""))
        require_built(quiet, "read")
        serve(
            lambda: Service(
                quiet, closes=False, until_lsn=0, accept_gap=accept_gap, reads_again=reads_again, stands_by=False
            ),
            ending,
            log_format=settings.telemetry.log_format,
            debug=debug,
        )
