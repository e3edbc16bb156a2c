"""`cdcwatch run`: the service."""

import logging
from contextlib import nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from cdcwatch.cli.bars import bars
from cdcwatch.cli.ending import Ending, ending_by_signal
from cdcwatch.cli.options import ClosedTableOption, ConfigOption, DebugOption, of_table, settings_of
from cdcwatch.errors import ConfigurationError
from cdcwatch.lsn import parse_lsn

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.pipeline.service import Service
    from cdcwatch.pipeline.sweeper import Sweeper
    from cdcwatch.pipeline.worker import Worker
    from cdcwatch.settings import Settings


class Role(StrEnum):
    """Which part of the service a process is."""

    ALL = "all"
    READ = "read"
    CLOSE = "close"
    SWEEP = "sweep"


def run(
    context: typer.Context,
    config: ConfigOption = None,
    debug: DebugOption = False,
    role: Annotated[
        Role,
        typer.Option(
            help="all: everything; read: slot to topic, no closing; close: topic to closing; sweep: closing by polling."
        ),
    ] = Role.ALL,
    until: Annotated[
        str | None,
        typer.Option(metavar="LSN|current", help="End by itself once everything up to there is confirmed."),
    ] = None,
    accept_gap: Annotated[
        bool,
        typer.Option(
            "--accept-gap", help="The slot no longer holds what follows the topic: read the table again and go on."
        ),
    ] = False,
    table: ClosedTableOption = None,
) -> None:
    """Read the slot, publish deadline events, close orders at their deadline. SIGTERM drains, confirms and exits 0."""
    with ending_by_signal() as ending:
        settings = settings_of_role(settings_of(context, config), role, table, is_one=True)
        until_lsn = _parsed(until)
        if role in {Role.SWEEP, Role.CLOSE}:
            if until is not None or accept_gap:
                raise ConfigurationError(
                    f"--until and --accept-gap are about the stream, which --role {role} doesn't read",
                    remedy="leave them out",
                )
            if role is Role.SWEEP:
                sweep_until_stopped(settings, ending, debug=debug)
            else:
                close_until_stopped(settings, ending, debug=debug)
            return
        from cdcwatch.pipeline.built import require_built
        from cdcwatch.pipeline.service import Service

        require_built(settings, role)
        with bars() if until is not None else nullcontext():
            serve(
                lambda: Service(
                    settings,
                    closes=role is Role.ALL,
                    until_lsn=until_lsn,
                    until_current=until == "current",
                    accept_gap=accept_gap,
                    announce_ready=lambda: print("READY", flush=True),
                ),
                ending,
                log_format=settings.telemetry.log_format,
                debug=debug,
            )


def settings_of_role(settings: "Settings", role: Role, table: str | None, *, is_one: bool = False) -> "Settings":
    """With the table that a worker has; every other role has all. `is_one`: where several are watched, one is named."""
    if table is not None and role is not Role.CLOSE:
        raise ConfigurationError("--table belongs to --role close", remedy="leave it out: one process has all tables")
    return of_table(settings, table) if role is Role.CLOSE and (is_one or table is not None) else settings


def sweep_until_stopped(settings: "Settings", ending: Ending, *, debug: bool) -> None:
    """`--role sweep`."""
    from cdcwatch.pipeline.built import require_built
    from cdcwatch.pipeline.sweeper import Sweeper, require_sweeping

    require_built(settings, "sweep")
    require_sweeping(settings, once=False)
    serve(
        lambda: Sweeper(settings, announce_ready=lambda: print("READY", flush=True)),
        ending,
        log_format=settings.telemetry.log_format,
        debug=debug,
    )


def close_until_stopped(settings: "Settings", ending: Ending, *, debug: bool) -> None:
    """`--role close`."""
    from cdcwatch.pipeline.built import require_built
    from cdcwatch.pipeline.worker import Worker, require_closing

    require_built(settings, "close")
    require_closing(settings)
    serve(
        lambda: Worker(settings, announce_ready=lambda: print("READY", flush=True)),
        ending,
        log_format=settings.telemetry.log_format,
        debug=debug,
    )


def serve(made: "Callable[[], Service | Sweeper | Worker]", ending: Ending, *, log_format: str, debug: bool) -> None:
    """Runs a service until it ends, or a signal ends it; begins anew where it says so."""
    from cdcwatch.log import configure_log, told_of
    from cdcwatch.pipeline.beginning import StartOverError

    configure_log(log_format, level=logging.DEBUG if debug else logging.INFO)
    while not ending.is_asked_for:
        service = made()
        ending.stops(service)
        try:
            service.run()
        except StartOverError as error:
            if not ending.is_asked_for:
                logging.getLogger("cdcwatch").warning("%s; beginning anew", error, extra=told_of(error))
        else:
            return


def _parsed(until: str | None) -> int | None:
    if until is None or until == "current":
        return None
    try:
        return parse_lsn(until)
    except ValueError:
        raise ConfigurationError(
            "--until takes an LSN or `current`", remedy="write it as 0/1A2B390, or as current"
        ) from None
