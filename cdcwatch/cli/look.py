"""`cdcwatch pending` and `cdcwatch events`: looking without touching."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdcwatch.cli.options import ConfigOption, DebugOption, JsonOption, settings_of
from cdcwatch.cli.output import duration_text, print_json, table_text

if TYPE_CHECKING:
    from cdcwatch.close.pending import Pending, PendingRow
    from cdcwatch.handoff.tail import Record

_DEFAULT_EVENTS = 20


def pending(
    context: typer.Context,
    count: Annotated[int, typer.Option("-n", metavar="N", min=1, help="How many.")] = 20,
    json: JsonOption = False,
    config: ConfigOption = None,
    _debug: DebugOption = False,
) -> None:
    """Show the next deadlines of open orders, by the database's clock."""
    from cdcwatch.close.pending import read_pending
    from cdcwatch.database import connect
    from cdcwatch.slot.catalog import load_table

    settings = settings_of(context, config)
    with connect(settings.postgres.dsn, application_name="cdcwatch pending") as connection:
        found = read_pending(connection, load_table(connection, settings), count)
    if json:
        print_json(_pending_document(found))
    else:
        _print_pending(found)


def events(
    context: typer.Context,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes.")] = False,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="All that the topic holds.")] = False,
    count: Annotated[
        int | None,
        typer.Option(
            "-n", metavar="N", min=0, help="The last N (with --from-beginning: the first N) instead of the last 20."
        ),
    ] = None,
    dead: Annotated[
        bool, typer.Option("--dead", help="The dead letters: rows not understood, orders not closed.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="Print each record's value as it is, one a line.")] = False,
    config: ConfigOption = None,
    _debug: DebugOption = False,
) -> None:
    """Read the topic as any subscriber would, and print events. Ends at SIGINT and SIGTERM."""
    from cdcwatch.handoff.tail import TopicTail

    kafka = settings_of(context, config).kafka
    if dead:
        from cdcwatch.handoff.dead_letters import of_dead_letters

        kafka = of_dead_letters(kafka)
    with _ending_signals() as ended, TopicTail(kafka, is_ended=ended.is_set) as tail:
        if from_beginning:
            for record in islice(tail.so_far(), count):
                _print_record(record, json=json)
        else:
            for record in tail.last(_DEFAULT_EVENTS if count is None else count):
                _print_record(record, json=json)
        if follow and not (from_beginning and count is not None):
            sys.stdout.flush()
            for record in tail.following():
                _print_record(record, json=json)
                sys.stdout.flush()


@contextmanager
def _ending_signals() -> Iterator[Event]:
    """SIGINT and SIGTERM set the event inside, and are what they were afterwards."""
    ended = Event()
    before = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield ended
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _print_record(record: "Record", *, json: bool) -> None:
    sys.stdout.write((record.value.decode(errors="replace") if json else event_line(record)) + "\n")


def event_line(record: "Record") -> str:
    """Time, type without its prefix, key, deadline, the reason where there is one, and whether it is of a snapshot.

    Of a dead letter its id, the plugin (of an order that could not be closed: its key) and the reason.
    """
    import orjson

    try:
        event: dict[str, Any] = orjson.loads(record.value)
        if "about" in event:
            what = event["plugin"] if event["about"] == "row" else ", ".join(event["key"].values())
            return f"{event['id']}  {what}  {event['reason']}"
        data = event["data"]
        parts = [
            event["time"],
            f"{event['type'].removeprefix('deadline.'):<9}",
            str(event["subject"]),
            str(data.get("deadline") or "-"),
            *([str(data["reason"])] if data.get("reason") else []),
            *(["[snapshot]"] if data.get("snapshot") else []),
        ]
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
        return f"not a deadline event: partition {record.partition}, offset {record.offset}"
    return "  ".join(parts)


def _wait_s(row: "PendingRow") -> float | None:
    """Seconds from the database's now to the deadline; None for -infinity."""
    from cdcwatch.instant import NEGATIVE_INFINITY_US

    return None if row.deadline_us == NEGATIVE_INFINITY_US else (row.deadline_us - row.now_us) / 1e6


def _pending_document(found: "Pending") -> dict[str, Any]:
    from cdcwatch.close.pending import MOST_OVERDUE_ROWS
    from cdcwatch.instant import format_instant

    return {
        "overdue_rows": found.overdue_rows,
        "overdue_rows_is_lower_bound": found.overdue_rows >= MOST_OVERDUE_ROWS,
        "pending": [
            {
                "key": row.key,
                "deadline": format_instant(row.deadline_us),
                "in_s": _wait_s(row),
                "version": row.version,
            }
            for row in found.rows
        ],
    }


def _print_pending(found: "Pending") -> None:
    from cdcwatch.close.pending import MOST_OVERDUE_ROWS
    from cdcwatch.instant import format_instant

    rows: list[tuple[str, ...]] = []
    for row in found.rows:
        wait_s = _wait_s(row)
        if wait_s is None:
            wait = "overdue"
        else:
            wait = duration_text(wait_s) if wait_s > 0 else f"{duration_text(-wait_s)} overdue"
        key = ", ".join(row.key.values())
        rows.append((key, format_instant(row.deadline_us), wait, "" if row.version is None else str(row.version)))
    if rows:
        print(table_text(("key", "deadline", "in", "version"), rows))
    else:
        print("no open order has a deadline")
    more = " or more" if found.overdue_rows >= MOST_OVERDUE_ROWS else ""
    print(f"overdue: {found.overdue_rows}{more}")
