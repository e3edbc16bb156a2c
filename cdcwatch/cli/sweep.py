"""`cdcwatch sweep`: the compensation scan by itself, and with --once from cron."""

from typing import Annotated

import typer

from cdcwatch.cli.bars import bars
from cdcwatch.cli.ending import ending_by_signal
from cdcwatch.cli.options import ConfigOption, DebugOption, JsonOption, settings_of
from cdcwatch.cli.output import print_json
from cdcwatch.cli.run import serve, sweep_until_stopped
from cdcwatch.errors import CheckFailedError, ConfigurationError


def sweep(
    context: typer.Context,
    once: Annotated[bool, typer.Option("--once", help="Close what is overdue now, and end.")] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
    debug: DebugOption = False,
) -> None:
    """Close overdue orders by looking into the table: no slot, no Kafka. The same as `run --role sweep`.

    With --once: exit 1 when some can't be closed, as the database refuses them or others hold them.
    """
    with ending_by_signal() as ending:
        settings = settings_of(context, config)
        if not once:
            if json:
                raise ConfigurationError("--json belongs to --once", remedy="leave it out, or add --once")
            sweep_until_stopped(settings, ending, debug=debug)
            return
        from cdcwatch.pipeline.built import require_built
        from cdcwatch.pipeline.sweeper import Sweeper, require_sweeping

        require_built(settings, "sweep")
        require_sweeping(settings, once=True)
        sweeper = Sweeper(settings, once=True)
        with bars():
            serve(lambda: sweeper, ending, log_format=settings.telemetry.log_format, debug=debug)
        if json:
            print_json({"closed": sweeper.closed, "left": sweeper.left})
        else:
            print(f"closed: {sweeper.closed}" + (f", left: {sweeper.left}" if sweeper.left else ""))
        if sweeper.left:
            raise CheckFailedError(
                f"{sweeper.left} overdue, and not closed: the database refuses them, or other transactions hold them",
                remedy="see the log above, and `cdcwatch pending`",
            )
