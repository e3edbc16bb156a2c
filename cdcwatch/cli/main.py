"""The command line: commands and groups, and how errors come out.

Heavy imports (psycopg, confluent_kafka, rich) stand inside the commands: `--help` and a mistyped option answer at once.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from cdcwatch import __version__, failpoints
from cdcwatch.cli import check, demo, explain, look, recover, run, schema, slot, sweep, top
from cdcwatch.cli.examples import examples
from cdcwatch.cli.options import ConfigOption, DebugOption
from cdcwatch.errors import CdcwatchError

_PACKAGE: Final = Path(__file__).parent.parent

app = typer.Typer(
    name="cdcwatch",
    help="Closes orders at their deadline from PostgreSQL's logical replication stream.",
    no_args_is_help=True,
    epilog=examples(""),
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"cdcwatch {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    config: ConfigOption = None,
    _debug: DebugOption = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """What stands before the command: `settings_of` and `main` look at it."""


# Every command stands here once, in the order of `--help`.
app.add_typer(slot.app, name="slot")
app.command("check", epilog=examples("check"))(check.check)
app.command("run", epilog=examples("run"))(run.run)
app.command("sweep", epilog=examples("sweep"))(sweep.sweep)
app.command("recover", epilog=examples("recover"))(recover.recover)
app.command("snapshot", epilog=examples("snapshot"))(recover.snapshot)
app.command("top", epilog=examples("top"))(top.top)
app.command("pending", epilog=examples("pending"))(look.pending)
app.command("events", epilog=examples("events"))(look.events)
app.command("schema", epilog=examples("schema"))(schema.schema)
app.command("explain", epilog=examples("explain"))(explain.explain)
app.command("demo", epilog=examples("demo"))(demo.demo)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs a command and exits with its code; errors are one line and a remedy on stderr."""
    arguments = sys.argv[1:] if arguments is None else arguments
    code = _run(arguments, debug="--debug" in arguments)
    try:
        if sys.stdout is not None:  # None: closed by whoever started us
            sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read us has enough. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)


def _run(arguments: Sequence[str], *, debug: bool) -> int:
    try:
        failpoints.arm(os.environ)
        app(args=list(arguments), prog_name="cdcwatch")
    except SystemExit as ended:  # how typer ends, usage errors (2) included
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except CdcwatchError as error:
        _show_traceback(debug=debug)
        print(f"cdcwatch: {error}\nremedy: {error.remedy}", file=sys.stderr)
        return error.exit_code
    except Exception as error:  # noqa: BLE001
        _show_traceback(debug=debug)
        # Its text may hold row values or a password; type and place hold neither.
        print(
            f"cdcwatch: unexpected {type(error).__name__}{_place(error)}\n"
            "remedy: run it again with --debug and report what it prints",
            file=sys.stderr,
        )
        return 1
    return 0


def _show_traceback(*, debug: bool) -> None:
    if debug:
        import traceback

        traceback.print_exc()


def _place(error: BaseException) -> str:
    """The innermost line of ours: ` at slot/admin.py:42`."""
    place, trace = "", error.__traceback__
    while trace is not None:
        path = Path(trace.tb_frame.f_code.co_filename)
        if path.is_relative_to(_PACKAGE):
            place = f" at {path.relative_to(_PACKAGE)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place
