"""`cdcwatch slot peek`: what the slot holds next, without consuming it."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdcwatch.cli.options import ConfigOption, DebugOption, JsonOption, settings_of
from cdcwatch.cli.output import clipped, print_json, table_text
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from cdcwatch.inspection.peek import Peeked
    from cdcwatch.inspection.trace import Traced


def peek(
    context: typer.Context,
    count: Annotated[int, typer.Option("-n", metavar="N", min=1, help="How many changes.")] = 20,
    explain: Annotated[
        bool, typer.Option("--explain", help="Also the changes that give no event, and why they give none.")
    ] = False,
    json: JsonOption = False,
    config: ConfigOption = None,
    _debug: DebugOption = False,
) -> None:
    """Show the next changes in the slot and the events they would give. Consumes nothing.

    Shows keys, deadlines and statuses: what the topic shows. The server decodes a transaction as a whole, so that a
    huge one takes a while and room for temporary files.
    """
    from cdcwatch.inspection.peek import peek as look

    found = look(settings_of(context, config), count)
    changes = [one for one in found.changes if explain or one.event is not None]
    if json:
        print_json({"changes": [one.document() for one in changes], "is_all": found.is_all, "notes": found.notes})
    else:
        _print(found, changes, explain=explain)


def _print(found: "Peeked", changes: "list[Traced]", *, explain: bool) -> None:
    if changes:
        heads: tuple[str, ...] = ("commit", "change", "key", "gives")
        rows = [_row(one) for one in changes]
        if any(one.table for one in changes):
            heads, rows = ("table", *heads), [(one.table, *row) for one, row in zip(changes, rows, strict=True)]
        print(table_text(heads, rows))
    hidden = len(found.changes) - len(changes)
    if not found.changes:
        print("no change of the table is waiting in the slot")
    elif hidden and not explain:
        print(f"and {counted(hidden, 'change')} without an event: --explain tells why")
    if not found.is_all:
        print("there are more: -n N")
    for note in found.notes:
        print(f"note: {note}")


def _row(one: "Traced") -> tuple[str, ...]:
    return (one.commit_lsn, one.kind, clipped(one.key, 14), _gives(one))


def _gives(one: "Traced") -> str:
    """The event in a few words, or why there is none."""
    from cdcwatch.inspection.trace import UNREADABLE_KIND

    if one.event is None:
        return f"- {one.why}"
    if one.kind == UNREADABLE_KIND:
        return f"dead letter: {one.event['reason']}"
    data: dict[str, Any] = one.event["data"]
    kind = str(one.event["type"]).removeprefix("deadline.")
    reason = f" ({data['reason']})" if data.get("reason") else ""
    return f"{kind}{reason} {data['deadline'] or '-'}"
