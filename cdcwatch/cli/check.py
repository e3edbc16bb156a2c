"""`cdcwatch check`: every precondition, one line each."""

from typing import TYPE_CHECKING

import typer

from cdcwatch.cli.options import ConfigOption, DebugOption, JsonOption, settings_of
from cdcwatch.cli.output import coloured, print_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdcwatch.slot.preflight import Check


def check(
    context: typer.Context, json: JsonOption = False, config: ConfigOption = None, _debug: DebugOption = False
) -> None:
    """Check every precondition of the database: ok, warn or fail, and the remedy. Exit 1 when one fails."""
    from dataclasses import asdict

    from cdcwatch.database import connect
    from cdcwatch.slot.preflight import preflight

    settings = settings_of(context, config)
    with connect(settings.postgres.dsn, application_name="cdcwatch check") as connection:
        checks = preflight(connection, settings)
    failed = any(one.state == "fail" for one in checks)
    if json:
        print_json({"ok": not failed, "checks": [asdict(one) for one in checks]})
    else:
        print_checks(checks)
    raise typer.Exit(1 if failed else 0)


def print_checks(checks: "Iterable[Check]") -> None:
    """A line each, the remedy on its own below."""
    for one in checks:
        print(f"{coloured(f'{one.state:<4}', one.state)}  {one.name:<10}  {one.message}")
        if one.remedy:
            print(f"                  remedy: {one.remedy}")
