"""`cdcwatch demo`: everything at once on this machine, from nothing."""

import re
import shutil
import sys
from contextlib import AbstractContextManager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from cdcwatch.cli.options import DebugOption, JsonOption
from cdcwatch.cli.output import print_json
from cdcwatch.errors import CheckFailedError

if TYPE_CHECKING:
    from rich.console import Console

    from cdcwatch.demo.performance import Picture, View
    from cdcwatch.demo.summary import Summaries, Summary
    from cdcwatch.demo.world import World

_DEFAULT_S: Final = 20.0
_UNIT_S: Final = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


class Tables(StrEnum):
    """What the shop sells."""

    ONE = "one"
    SEVERAL = "several"


def _duration_s(text: str) -> float:
    """`20s`, `2m`, `1h`, or plain seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|)", text)
    if match is None or not float(match[1]):
        raise typer.BadParameter("write it as 20s, 2m or 1h")
    return float(match[1]) * _UNIT_S[match[2]]


def demo(
    duration_s: Annotated[
        float | None,
        typer.Option(
            "--for",
            metavar="DURATION",
            parser=_duration_s,
            help="End after that long (20s, 2m), compare table and topic, exit 1 when they differ. Default: 20s;"
            " on a terminal, until Ctrl-C.",
        ),
    ] = None,
    json: JsonOption = False,
    rate: Annotated[
        float, typer.Option("--rate", metavar="N", min=1, max=10_000, help="Orders a second, over all tables.")
    ] = 200,
    plugin: Annotated[
        str | None,
        typer.Option("--plugin", metavar="NAME", help="wal2json or pgoutput. Default: wal2json where there is one."),
    ] = None,
    tables: Annotated[
        Tables, typer.Option("--tables", help="one: orders; several: orders, reservations and coupons in one process.")
    ] = Tables.ONE,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the directory: data, logs, configuration.")] = False,
    _debug: DebugOption = False,
) -> None:
    """Show it all at work: PostgreSQL, Kafka, a shop with orders that expire, and cdcwatch; then clean up."""
    from rich.console import Console

    from cdcwatch.demo.performance import Wish, perform
    from cdcwatch.demo.stands import ONE, SEVERAL
    from cdcwatch.demo.world import isolate

    if plugin not in {None, "wal2json", "pgoutput"}:
        raise typer.BadParameter("it is wal2json or pgoutput", param_hint="--plugin")
    console = Console()
    is_live = not json and console.is_terminal and not console.is_dumb_terminal
    if duration_s is None and not is_live:
        duration_s = _DEFAULT_S
    isolate()
    summary = perform(
        Wish(duration_s, rate, keep, plugin, SEVERAL if tables is Tables.SEVERAL else ONE),
        tell=_say_nothing if json and not keep else _say,
        view=_live(console) if is_live else None,
    )
    if json:
        print_json(summary.document())
    else:
        print(summary.text())
    _require_agreement(summary)


def _require_agreement(summary: "Summary | Summaries") -> None:
    if summary.comparisons and not summary.agrees:
        raise CheckFailedError(
            "the table, the topic and what the shop did don't agree",
            remedy="run it again with --keep; the logs in the directory it names tell what happened",
        )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _say_nothing(_text: str) -> None:
    """For --json."""


def _live(console: "Console") -> "View":
    from cdcwatch.demo.picture import LivePicture

    def view(world: "World") -> AbstractContextManager["Picture"]:
        return LivePicture(console, world, _program())

    return view


def _program() -> str:
    """What to type for this program from here."""
    called = Path(sys.argv[0])
    if called.name == "__main__.py":
        return f"{sys.executable} -m cdcwatch"
    found = shutil.which(called.name)
    return called.name if found and Path(found).samefile(called) else str(called)
