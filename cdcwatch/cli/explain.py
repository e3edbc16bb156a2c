"""`cdcwatch explain KEY`: what cdcwatch knows of one order."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdcwatch.cli.options import ConfigOption, DebugOption, JsonOption, TableOption, of_table, settings_of
from cdcwatch.cli.output import print_json, short_time, table_text
from cdcwatch.wording import printable

if TYPE_CHECKING:
    from cdcwatch.inspection.order import OrderStory


def explain(
    context: typer.Context,
    key: Annotated[
        list[str],
        typer.Argument(
            metavar="KEY",
            help="The key; of several columns, each one's text. Write -- before a minus.",
        ),
    ],
    count: Annotated[int, typer.Option("-n", metavar="N", min=1, help="How many of its last events.")] = 10,
    table: TableOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
    _debug: DebugOption = False,
) -> None:
    """Show what cdcwatch knows of one order: its row, whether it is in the window, its last events in the topic."""
    from cdcwatch.inspection.order import explain_order

    story = explain_order(of_table(settings_of(context, config), table), key, count)
    if json:
        print_json(_document(story))
    else:
        _print(story)


def _document(story: "OrderStory") -> dict[str, Any]:
    from cdcwatch.instant import format_instant

    row = story.row
    return {
        "key": dict(story.key),
        "row": None
        if row is None
        else {
            "status": row.status,
            "deadline": None if row.deadline_us is None else format_instant(row.deadline_us),
            "version": row.version,
            "is_open": row.is_open,
            "database_now": format_instant(row.now_us),
            "in_s": story.wait_s,
        },
        "window": story.window,
        "remedy": None if story.unread is None else story.unread.remedy,
        "horizon_s": story.horizon_s,
        "events": list(story.events),
        "topic_problem": story.topic_problem,
    }


def _print(story: "OrderStory") -> None:
    from cdcwatch.instant import format_instant

    row, wait_s = story.row, story.wait_s
    print(f"{'key':<10}  {printable(', '.join(f'{name} = {text}' for name, text in story.key.items()))}")
    if row is None:
        print(f"{'row':<10}  none")
    else:
        wait = ""
        if wait_s is not None:
            past = "overdue" if row.is_open else "ago"
            wait = f" (in {short_time(wait_s)})" if wait_s > 0 else f" ({short_time(-wait_s)} {past})"
        deadline = "none" if row.deadline_us is None else format_instant(row.deadline_us)
        print(f"{'status':<10}  {printable(row.status or '-')} ({'open' if row.is_open else 'not open'})")
        print(f"{'deadline':<10}  {deadline}{wait}")
        print(f"{'version':<10}  {'-' if row.version is None else row.version}")
    print(f"{'window':<10}  {story.window}")
    if story.unread is not None:
        print(f"{'':<10}  remedy: {story.unread.remedy}")
    if story.topic_problem is not None:
        print(f"{'events':<10}  unknown: {story.topic_problem}")
    elif not story.events:
        print(f"{'events':<10}  none in the topic")
    else:
        print(table_text(("time", "event", "deadline"), [_event_row(event) for event in story.events]))


def _event_row(event: dict[str, Any]) -> tuple[str, str, str]:
    from cdcwatch.deadline.event import GAP_TYPE

    data = event.get("data") or {}
    kind = str(event.get("type", "")).removeprefix("deadline.")
    # A gap's is a sentence, and no order's own: `events` shows it.
    reason = f" ({data['reason']})" if data.get("reason") and kind != GAP_TYPE else ""
    mark = " [snapshot]" if data.get("snapshot") else ""
    return str(event.get("time", "")), f"{kind}{reason}{mark}", str(data.get("deadline") or "-")
