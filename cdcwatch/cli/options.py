"""Options that every command takes, in every place: before the command, after its group, after its name."""

# Typer reads these annotations at run time: no deferred annotations in the command line's modules.

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from cdcwatch.configuration import DEFAULT_PATH, is_unconfigured, load_settings
from cdcwatch.errors import ConfigurationError
from cdcwatch.settings import Settings

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "-c", "--config", metavar="FILE", help="Configuration file. Default: ./cdcwatch.toml where there is one."
    ),
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]


TableOption = Annotated[
    str | None,
    typer.Option("--table", metavar="NAME", help="Where several tables are watched: only this one of [[table]]."),
]
ClosedTableOption = Annotated[
    str | None,
    typer.Option(
        "--table",
        metavar="NAME",
        help="With --role close, where several tables are watched: the one of [[table]] that this process closes.",
    ),
]


def of_table(settings: Settings, name: str | None) -> Settings:
    """With the table of that name alone; without a name the only one there is."""
    each = settings.each()
    names = ", ".join(one.table.name for one in each)
    if name is None:
        if len(each) == 1:
            return each[0]
        raise ConfigurationError(f"several tables are watched: {names}", remedy="name one of them with --table")
    for one in each:
        if name in {one.table.name, one.table.name.removeprefix("public.")}:
            return one
    raise ConfigurationError(f"no table {name} is watched", remedy=f"--table takes one of: {names}")


def settings_of(context: typer.Context, config: Path | None) -> Settings:
    """The settings from the nearest `-c` there is: the command's own, its group's, the program's.

    Tells on stderr when nothing at all was configured: what fails then speaks of a database nobody named.
    ConfigurationError for what is no configuration.
    """
    place: Any = context  # typer's own context and the ones above it are of two types
    while config is None and place.parent is not None:
        place = place.parent
        named = place.params.get("config")
        config = None if named is None else Path(named)  # of the contexts above some versions of typer hold the text
    if is_unconfigured(config):
        print(f"no {DEFAULT_PATH} in this directory, no -c FILE: every key has its default", file=sys.stderr)
    return load_settings(config)
