"""`cdcwatch pending` and `cdcwatch events`: looking without touching."""

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cdcwatch.cli.ending import set_by_signals
from cdcwatch.cli.options import ConfigOption, DebugOption, JsonOption, TableOption, of_table, settings_of
from cdcwatch.cli.output import print_json, short_time, table_text
from cdcwatch.errors import ConfigurationError
from cdcwatch.wording import counted, printable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cdcwatch.close.pending import Pending, PendingRow
    from cdcwatch.handoff.bus import Bus
    from cdcwatch.handoff.record import Record
    from cdcwatch.settings import Settings

_DEFAULT_EVENTS = 20


def pending(
    context: typer.Context,
    count: Annotated[int, typer.Option("-n", metavar="N", min=1, help="How many.")] = 20,
    table: TableOption = None,
    json: JsonOption = False,
    config: ConfigOption = None,
    _debug: DebugOption = False,
) -> None:
    """Show the next deadlines of open orders, by the database's clock."""
    from cdcwatch.close.pending import merged, read_pending
    from cdcwatch.database import connect
    from cdcwatch.slot.tables import load_tables

    settings = settings_of(context, config)
    if table is not None:
        settings = of_table(settings, table)
    with connect(settings.postgres.dsn, application_name="cdcwatch pending") as connection:
        tables = load_tables(connection, settings)
        found = merged({one.qualified_name: read_pending(connection, one, count) for one in tables}, count)
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
    key: Annotated[
        list[str] | None,
        typer.Option("--key", metavar="KEY", help="Of this order, as events show it. Repeatable."),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--type",
            metavar="TYPE",
            help="scheduled, moved, cancelled, expired or gap; of dead letters row or close. Repeatable.",
        ),
    ] = None,
    table: TableOption = None,
    topic: Annotated[
        str | None, typer.Option("--topic", metavar="TOPIC", help="Where several tables are watched: this topic alone.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print each record's value as it is, one a line.")] = False,
    config: ConfigOption = None,
    _debug: DebugOption = False,
) -> None:
    """Read the topic as any subscriber would, and print events. Ends at SIGINT and SIGTERM.

    The last ones, and those of -n, stand in the order of their commits. --follow, and --from-beginning without -n,
    print them as they are read: in order within a partition, partitions mixed.
    """
    from cdcwatch.cli.filters import Filter
    from cdcwatch.handoff.tails import TopicTails

    wanted = Filter(key or (), kind or (), dead=dead)
    buses = _buses(settings_of(context, config), table, topic)
    with set_by_signals() as ended, TopicTails(buses, dead=dead, is_ended=ended.is_set, wanted=wanted) as tails:
        if not from_beginning:
            found: Iterable[tuple[str, Record]] = tails.last(_DEFAULT_EVENTS if count is None else count)
        else:
            found = tails.so_far() if count is None else tails.first(count)
        shown = 0
        for shown, one in enumerate(found, start=1):  # noqa: B007
            _print_record(*one, json=json)
        goes_on = follow and not (from_beginning and count is not None)
        if not shown and not ended.is_set():
            _tell_of_none(tails.read_count, goes_on=goes_on, asked=count != 0, dead=dead)
        if goes_on:
            sys.stdout.flush()
            for one in tails.following():
                _print_record(*one, json=json)
                sys.stdout.flush()


def _tell_of_none(read_count: int, *, goes_on: bool, asked: bool, dead: bool) -> None:
    """On stderr: an empty answer looks like a command that does not work."""
    what = "dead letter" if dead else "event"
    if goes_on:
        print(f"waiting for {what}s", file=sys.stderr, flush=True)
    elif asked:
        were = "was" if read_count == 1 else "were"
        print(f"no {what} matches; {counted(read_count, 'record')} {were} read", file=sys.stderr)


def _buses(settings: "Settings", table: str | None, topic: str | None) -> "list[Bus]":
    """Of all tables, or of the one that is meant."""
    from cdcwatch.handoff.bus import bus_of

    each = [of_table(settings, table)] if table is not None else settings.each()
    chosen = [one for one in each if topic in {None, one.topic}]
    if not chosen:
        names = ", ".join(one.topic for one in each)
        raise ConfigurationError(f"no table's topic is {topic}", remedy=f"--topic takes one of: {names}")
    buses = [bus for bus in map(bus_of, chosen) if bus is not None]
    if not buses:
        raise ConfigurationError(
            'sink.kind = "none": no events are published', remedy='set sink.kind to "kafka", "redis" or "file"'
        )
    return buses


def _print_record(topic: str, record: "Record", *, json: bool) -> None:
    """`topic`: where there are several."""
    line = record.value.decode(errors="replace") if json else printable(event_line(record))
    sys.stdout.write(f"{line}\n" if json or not topic else f"{topic}  {line}\n")


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


def _wait_text(wait_s: float) -> str:
    return short_time(wait_s) if wait_s > 0 else f"{short_time(-wait_s)} overdue"


def _pending_document(found: "Pending") -> dict[str, Any]:
    from cdcwatch.close.pending import MOST_OVERDUE_ROWS
    from cdcwatch.instant import format_instant

    return {
        "overdue_rows": found.overdue_rows,
        "overdue_rows_is_lower_bound": found.overdue_rows >= MOST_OVERDUE_ROWS,
        "pending": [
            {
                **({"table": row.table} if row.table else {}),
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
        wait = "overdue" if wait_s is None else _wait_text(wait_s)
        key = ", ".join(row.key.values())
        shown = (key, format_instant(row.deadline_us), wait, "" if row.version is None else str(row.version))
        rows.append((row.table, *shown) if row.table else shown)
    if rows:
        heads = ("key", "deadline", "in", "version")
        print(table_text(("table", *heads) if found.rows[0].table else heads, rows))
    else:
        print("no open order has a deadline")
    more = " or more" if found.overdue_rows >= MOST_OVERDUE_ROWS else ""
    print(f"overdue: {found.overdue_rows}{more}")
