"""`cdcwatch slot status` and `list`: position, distances, owner, forecast, and the thresholds that alarm."""

import re
import sys
from contextlib import nullcontext
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any, Final

import orjson
import typer

from cdcwatch.cli.ending import set_by_signals
from cdcwatch.cli.options import ConfigOption, DebugOption, JsonOption, settings_of
from cdcwatch.cli.output import bytes_text, clipped, coloured, duration_text, print_json, table_text
from cdcwatch.errors import CheckFailedError
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.inspection.state import SlotState, Watcher
    from cdcwatch.slot.outlook import Thresholds

_UNITS: Final = {"": 1, "B": 1, "kB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_UNIT_S: Final = {"": 1, "s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400}
_CLEAR: Final = "\x1b[H\x1b[2J"


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(B|kB|MB|GB|TB|)", text)
    if match is None:
        raise typer.BadParameter("write it as 512MB, 2GB or a number of bytes")
    return round(float(match[1]) * _UNITS[match[2]])


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d|)", text)
    if match is None:
        raise typer.BadParameter("write it as 90s, 30min, 4h or a number of seconds")
    return float(match[1]) * _UNIT_S[match[2]]


MaxLag = Annotated[
    int, typer.Option("--max-lag", metavar="SIZE", parser=_bytes, help="Alarm beyond it: not confirmed yet.")
]
MaxRetained = Annotated[
    int, typer.Option("--max-retained", metavar="SIZE", parser=_bytes, help="Alarm beyond it: WAL kept on disk.")
]
MinTime = Annotated[
    float,
    typer.Option("--min-time-left", metavar="TIME", parser=_seconds, help="Alarm when the slot is lost sooner."),
]
MaxXminAge = Annotated[
    int, typer.Option("--max-xmin-age", metavar="N", min=1, help="Alarm beyond: transactions catalog rows are kept.")
]
RequireReader = Annotated[bool, typer.Option("--require-reader", help="Alarm while nobody reads the slot.")]
Watch = Annotated[bool, typer.Option("--watch", "-w", help="Again and again, until Ctrl-C.")]
Interval = Annotated[
    float,
    typer.Option(
        "--interval", metavar="TIME", parser=_seconds, help="Between two looks; the WAL rate is measured over it."
    ),
]


def status(
    context: typer.Context,
    max_lag: MaxLag = "1GB",  # type: ignore[assignment]
    max_retained: MaxRetained = "16GB",  # type: ignore[assignment]
    min_time_left: MinTime = "4h",  # type: ignore[assignment]
    max_xmin_age: MaxXminAge = 200_000_000,
    require_reader: RequireReader = False,
    watch: Watch = False,
    interval: Interval = "1s",  # type: ignore[assignment]
    json: JsonOption = False,
    config: ConfigOption = None,
    _debug: DebugOption = False,
) -> None:
    """Show position, lag, retained WAL, owner and how long the slot lasts. Exit 1 past a threshold.

    The forecast is for a slot that stays where it is, at the greater of the WAL rate now and the server's average.
    """
    from cdcwatch.slot.admin import missing

    settings = settings_of(context, config)
    thresholds = _thresholds(max_lag, max_retained, min_time_left, max_xmin_age, require_reader=require_reader)

    def look(watcher: "Watcher") -> "list[SlotState]":
        state = watcher.look()
        if state is None:
            raise missing(settings)
        return [state]

    def show(states: "list[SlotState]") -> None:
        if json:
            _write_json(_document(states[0]), compact=watch)
        else:
            _print_status(states[0])

    _run(context, config, thresholds, look, show, watch=watch, interval_s=interval, plain=json)


def list_slots(
    context: typer.Context,
    max_lag: MaxLag = "1GB",  # type: ignore[assignment]
    max_retained: MaxRetained = "16GB",  # type: ignore[assignment]
    min_time_left: MinTime = "4h",  # type: ignore[assignment]
    max_xmin_age: MaxXminAge = 200_000_000,
    require_reader: RequireReader = False,
    watch: Watch = False,
    interval: Interval = "1s",  # type: ignore[assignment]
    json: JsonOption = False,
    config: ConfigOption = None,
    _debug: DebugOption = False,
) -> None:
    """List every logical slot of the server, whoever made it. Exit 1 when one of them is past a threshold."""
    own = settings_of(context, config).slot.name
    thresholds = _thresholds(max_lag, max_retained, min_time_left, max_xmin_age, require_reader=require_reader)

    def show(states: "list[SlotState]") -> None:
        if json:
            _write_json([_document(state) for state in states], compact=watch)
        else:
            _print_list(states, own)

    _run(
        context,
        config,
        thresholds,
        lambda watcher: watcher.look_at_all(),
        show,
        watch=watch,
        interval_s=interval,
        plain=json,
    )


def _thresholds(
    max_lag: int, max_retained: int, min_time_left: float, max_xmin_age: int, *, require_reader: bool
) -> "Thresholds":
    from cdcwatch.slot.outlook import Thresholds

    return Thresholds(max_lag, max_retained, min_time_left, max_xmin_age, require_reader)


def _run(
    context: typer.Context,
    config: Any,
    thresholds: "Thresholds",
    look: "Callable[[Watcher], list[SlotState]]",
    show: "Callable[[list[SlotState]], None]",
    *,
    watch: bool,
    interval_s: float,
    plain: bool,
) -> None:
    """One look, or one after every interval. Raises for the last look's alarms."""
    from cdcwatch.inspection.state import Watcher
    from cdcwatch.slot.admin import connected

    settings = settings_of(context, config)
    states: list[SlotState] = []
    with connected(settings) as connection, set_by_signals() if watch else nullcontext(Event()) as ended:
        watcher = Watcher(connection, settings, thresholds)
        if interval_s:
            watcher.sample()
        while not ended.wait(interval_s):
            states = look(watcher)
            if watch and not plain and sys.stdout.isatty():
                sys.stdout.write(_CLEAR)
            show(states)
            _print_alarms(states, plain=plain)
            sys.stdout.flush()
            if not watch:
                break
    alarms = [alarm for state in states for alarm in state.alarms]
    if alarms and not watch:
        raise CheckFailedError(
            alarms[0].message + (f" (and {counted(len(alarms) - 1, 'more alarm')})" if len(alarms) > 1 else ""),
            remedy=alarms[0].remedy,
        )


def _write_json(document: Any, *, compact: bool) -> None:
    """A document a look: one a line while watching."""
    if compact:
        sys.stdout.write(orjson.dumps(document).decode() + "\n")
    else:
        print_json(document)


def _document(state: "SlotState") -> dict[str, Any]:
    found, topic = state.status, state.topic
    return {
        "name": found.name,
        "plugin": found.plugin,
        "database": found.database,
        "active": found.active,
        "owner": {
            "pid": found.owner_pid,
            "application_name": found.owner_application,
            "client_address": found.owner_address,
        }
        if found.owner_pid is not None
        else None,
        "inactive_s": found.inactive_s,
        "failover": found.failover,
        "confirmed_flush_lsn": found.confirmed_flush_lsn,
        "restart_lsn": found.restart_lsn,
        "server_lsn": found.server_lsn,
        "lag_bytes": found.lag_bytes,
        "retained_bytes": found.retained_bytes,
        "wal_status": found.wal_status,
        "safe_wal_bytes": found.safe_wal_bytes,
        "invalidation_reason": found.invalidation_reason,
        "max_slot_wal_keep_bytes": found.keep_bytes,
        "catalog_xmin_age": found.catalog_xmin_age,
        "wal_bytes_per_s": state.rate.now,
        "wal_bytes_per_s_average": state.rate.average,
        "time_to_loss_s": state.time_to_loss_s,
        "topic": {"flush_lsn": topic.flush_lsn, "problem": topic.problem, "gap": topic.gap} if topic else None,
        "alarms": [{"what": alarm.what, "message": alarm.message, "remedy": alarm.remedy} for alarm in state.alarms],
    }


def _print_status(state: "SlotState") -> None:
    found = state.status
    idle = f" for {duration_text(found.inactive_s)}" if found.inactive_s is not None and not found.active else ""
    lines = {
        "slot": found.name,
        "plugin": f"{found.plugin}{', failover' if found.failover else ''}",
        "database": found.database,
        "read by": found.owner + idle,
        "confirmed_flush_lsn": f"{found.confirmed_flush_lsn} ({bytes_text(found.lag_bytes)} behind)",
        "topic's flush_lsn": _topic_text(state),
        "restart_lsn": "none: the slot is lost"
        if found.restart_lsn is None
        else f"{found.restart_lsn} ({bytes_text(found.retained_bytes)} retained)",
        "wal_status": found.wal_status or "unknown",
        "safe_wal_size": "no limit" if found.keep_bytes is None else bytes_text(found.safe_wal_bytes),
        "catalog_xmin": f"{found.catalog_xmin_age} transactions old" if found.catalog_xmin_age is not None else "none",
        "WAL rate": _rate_text(state),
        "lost in": _forecast_text(state),
    }
    for name, text in lines.items():
        print(f"{name:<20}  {text}")


def _topic_text(state: "SlotState") -> str:
    topic = state.topic
    if topic is None:
        return "no topic"
    if topic.problem is not None:
        return f"unknown: {topic.problem}"
    return topic.flush_lsn or "none yet: the first run publishes all open orders"


def _rate_text(state: "SlotState") -> str:
    now, average = state.rate.now, state.rate.average
    parts = [] if now is None else [f"{bytes_text(round(now))}/s now"]
    if average is not None:
        parts.append(f"{bytes_text(round(average))}/s on average")
    return ", ".join(parts) or "unknown"


def _forecast_text(state: "SlotState") -> str:
    found, left_s = state.status, state.time_to_loss_s
    if found.is_lost:
        return "it is lost"
    if found.keep_bytes is None:
        return "never (no limit): the disk fills up instead"
    return "unknown" if left_s is None else f"{duration_text(left_s)} at that rate, if nothing more is confirmed"


def _print_list(states: "list[SlotState]", own: str) -> None:
    if not states:
        print("no logical replication slot")
        return
    rows = [
        (
            ("* " if state.status.name == own else "  ") + clipped(state.status.name, 18),
            clipped(state.status.plugin or "", 9),
            clipped(state.status.database or "", 12),
            str(state.status.owner_pid or "-"),
            bytes_text(state.status.lag_bytes).replace("unknown", "-"),
            bytes_text(state.status.retained_bytes).replace("unknown", "-"),
            state.status.wal_status or "-",
        )
        for state in states
    ]
    print(table_text(("  slot", "plugin", "database", "pid", "lag", "kept", "wal"), rows))


def _print_alarms(states: "list[SlotState]", *, plain: bool) -> None:
    if plain:
        return
    for state in states:
        for alarm in state.alarms:
            print(f"{coloured('alarm', 'fail')}  {alarm.message}")
