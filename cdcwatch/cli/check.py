"""`cdcwatch check`: every precondition, one line each."""

from typing import TYPE_CHECKING, Annotated

import typer

from cdcwatch.cli.options import ClosedTableOption, ConfigOption, DebugOption, JsonOption, settings_of
from cdcwatch.cli.output import coloured, print_json, wrapped
from cdcwatch.cli.run import Role, settings_of_role

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdcwatch.slot.check import Check


def check(
    context: typer.Context,
    role: Annotated[Role, typer.Option(help="Of what `run --role` needs.")] = Role.ALL,
    table: ClosedTableOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
    _debug: DebugOption = False,
) -> None:
    """Check every precondition of database and broker: ok, warn or fail, and the remedy.

    Exit 1 when one fails for what a server said, 3 when none does but a server can't be reached. Changes nothing: for a
    second at most a temporary slot shows whether the output plugin can be loaded.
    """
    from msgspec.structs import asdict

    from cdcwatch.inspection.preflight import all_checks
    from cdcwatch.pipeline.built import require_built
    from cdcwatch.slot.check import exit_code

    settings = settings_of_role(settings_of(context, config), role, table)
    require_built(settings, role)
    checks, error = all_checks(settings, role)
    code = error.exit_code if error is not None else exit_code(checks)
    if json:
        print_json({"ok": code == 0, "checks": [asdict(one) for one in checks]})
    else:
        print_checks(checks)
    if error is not None:
        raise error
    raise typer.Exit(code)


def print_checks(checks: "Iterable[Check]") -> None:
    """A line each, the remedy on its own below."""
    for one in checks:
        head = f"{coloured(f'{one.state:<4}', one.state)}  {one.name:<13}  "
        print(head + wrapped(one.message, indent=21))
        if one.remedy:
            # Never broken: it is there to be copied.
            print(f"{'':<21}remedy: {one.remedy}")
