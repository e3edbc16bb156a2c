"""How `cdcwatch top` draws what `/status` says: fits 80 columns and 24 lines. Pure."""

from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cdcwatch.cli.output import bytes_text, clipped, duration_text, short_time
from cdcwatch.wording import printable

_BARS: Final = "▁▂▃▄▅▆▇█"
_BUCKETS: Final = ("0.5ms", "10ms", "250ms", "5s")
"""Below the histogram: what its first, fifth, ninth and thirteenth bar end at."""
_EVERY: Final = 4
_BAR_WIDTH: Final = 2
_STYLES: Final = {"scheduled": "cyan", "moved": "yellow", "cancelled": "dim", "expired": "magenta"}
_MOST_ALARMS: Final = 3
_NO_LIMIT: Final = "may fill the disk"
"""The slot, on a server without max_slot_wal_keep_size."""
_LINES: Final = 4
"""Of a stage."""


def drawn(told: dict[str, Any], *, width: int = 80, height: int = 24, trouble: str = "") -> RenderableType:
    """`told`: of `/status`. `trouble`: why it is not of now."""
    above: list[RenderableType] = [_head(told, trouble), *_alarms(told, width), Text(), _stages(told), Text()]
    above += [_lateness(told["lateness"]), Text()] if "closer" in told["parts"] else []
    above += [_tables(told)] if len(told["tables"]) > 1 else []
    used = 15 + 2 * min(len(told["alarms"]), _MOST_ALARMS)
    used += len(told["tables"]) + 2 if len(told["tables"]) > 1 else 0
    return Group(*above, _orders(told, most=max(1, height - used), width=width))


def _plain(text: str) -> Text:
    """As it is: brackets are no markup, and what is no character doesn't reach the terminal."""
    return Text(printable(text))


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.1f}" if 0 < value < 10 else f"{value:,.0f}"  # noqa: PLR2004


def _head(told: dict[str, Any], trouble: str) -> Text:
    about = f" {told['version']}  role {told['role']}, up {duration_text(told['uptime_s'])}   "
    count = len(told["alarms"])
    if trouble:
        state = (f"! {trouble}", "bold red")
    elif count:
        state = (f"! {count} alarm{'' if count == 1 else 's'}", "bold red")
    else:
        state = ("✓ all is well", "bold green") if told["ready"] else ("… starting", "bold")
    return Text.assemble(("cdcwatch", "bold"), (about, "dim"), state)


def _alarms(told: dict[str, Any], width: int) -> list[Text]:
    lines = []
    for alarm in told["alarms"][:_MOST_ALARMS]:
        lines.append(Text(clipped(f"! {alarm['message']}", width - 2), style="red", no_wrap=True))
        lines.append(Text(clipped(f"  remedy: {alarm['remedy']}", width - 2), no_wrap=True))
    return lines


def _stages(told: dict[str, Any]) -> Table:
    """Slot, topic, heap and close side by side: those that the role has."""
    parts, noun = told["parts"], told.get("topic_noun", "topic").capitalize()
    stages: list[tuple[str, tuple[str, ...], dict[str, Any] | None]] = []
    if told["sink"] is not None:
        stages += [("Slot", _slot_lines(told), parts["reader"]), (noun, _sink_lines(told), parts["sink"])]
    elif "subscriber" in parts:
        heard = f"{told['totals']['heard']:,.0f} heard"
        stages.append((noun, (f"{_rated(told, 'heard')} records/s", heard), parts["subscriber"]))
    if "closer" in parts:
        stages += [("Heap", _heap_lines(told), None), ("Close", _close_lines(told), parts["closer"])]
    table = Table.grid(padding=(0, 2, 0, 0), expand=False)
    for _ in stages:
        table.add_column(min_width=17, max_width=19, no_wrap=True, overflow="ellipsis")
    *first, last = (name for name, _, _ in stages)
    table.add_row(*(Text(f"{name}  →", style="bold") for name in first), Text(last, style="bold"))
    for at in range(_LINES):
        cells = [lines[at] if at < len(lines) else "" for _, lines, _ in stages]
        table.add_row(
            *(Text(cell, style="bold cyan" if at == 0 else "yellow" if cell == _NO_LIMIT else "") for cell in cells)
        )
    table.add_row(*(_part(part) for _, _, part in stages))
    return table


def _rated(told: dict[str, Any], name: str) -> str:
    rates = told["rates"]
    return _rate(None if rates is None else rates.get(name))


def _slot_lines(told: dict[str, Any]) -> tuple[str, ...]:
    slot, changes = told["slot"], f"{_rated(told, 'changes')} changes/s"
    if slot is None or slot["problem"]:
        return (changes, "lag unknown")
    left_s = slot["seconds_to_loss"]
    lost = f"lost in {duration_text(left_s)}" if left_s is not None else _NO_LIMIT if slot["is_unlimited"] else ""
    return (changes, f"lag {bytes_text(slot['lag_bytes'])}", f"keeps {bytes_text(slot['retained_bytes'])}", lost)


def _sink_lines(told: dict[str, Any]) -> tuple[str, ...]:
    totals = told["totals"]
    return (
        f"{_rated(told, 'events')} events/s",
        f"{told['sink']['queue_events']:,} in flight",
        f"{totals['events']:,} events",
        f"{totals['dead_letters']:,.0f} dead letters",
    )


def _heap_lines(told: dict[str, Any]) -> tuple[str, ...]:
    due = short_time(max(0.0, told["next"][0]["in_s"] or 0.0)) if told["next"] else "none"
    pending, retrying = (sum(table[name] for table in told["tables"]) for name in ("pending", "retrying"))
    return (f"{pending:,} pending", f"next {due}", f"{retrying:,} tried again")


def _close_lines(told: dict[str, Any]) -> tuple[str, ...]:
    totals = told["totals"]
    return (
        f"{_rated(told, 'closed')} closes/s",
        f"{totals['closed']:,.0f} closed",
        f"{totals['recovered']:,.0f} by the sweep",
    )


def _part(part: dict[str, Any] | None) -> Text:
    if part is None:
        return Text()
    mark, style = ("✓", "green") if part["ready"] else ("!", "bold red")
    return Text(f"{mark} {part['reason']}", style=style)


def _lateness(lateness: dict[str, Any]) -> Table:
    counts = [bucket["count"] for bucket in lateness["buckets"]]
    most = max([*counts, 1])
    bars = "".join(
        (" " if not count else _BARS[min(len(_BARS) - 1, int(count / most * len(_BARS)))]) * _BAR_WIDTH
        for count in counts
    )
    recent = lateness["recent"]
    figures = "  ".join(f"{name} {short_time(recent[f'{name}_s'])}" for name in ("p50", "p99", "max"))
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_row(Text("Late", style="bold"), Text(bars, style="cyan"), Text(figures))
    closes = "of the last close" if recent["count"] == 1 else f"of the last {recent['count']:,} closes"
    scale = "".join(f"{name:<{_EVERY * _BAR_WIDTH}}" for name in _BUCKETS)
    table.add_row("", Text(scale, style="dim"), Text(closes, style="dim"))
    return table


def _tables(told: dict[str, Any]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("Table", no_wrap=True, max_width=30)
    for head in ("pending", "closes/s", "closed"):
        table.add_column(head, justify="right", no_wrap=True)
    for one in told["tables"]:
        closes = None if told["rates"] is None else told["rates"].get(f"closed {one['name']}")
        table.add_row(_plain(one["name"]), f"{one['pending']:,}", _rate(closes), f"{one['closed']:,.0f}")
    table.add_row()
    return table


def _orders(told: dict[str, Any], *, most: int, width: int) -> Table:
    """Next deadlines and last events side by side."""
    is_one = len(told["tables"]) <= 1

    def key(one: dict[str, Any]) -> Text:
        shown = "withheld" if one["key"] is None else str(one["key"])
        return _plain(shown if is_one else f"{one['table'].rpartition('.')[2]} {shown}")

    wide = max(12, (min(width, 160) - 48) // 2)
    nearest = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    nearest.add_column("Next deadlines", no_wrap=True, max_width=wide, min_width=14, overflow="ellipsis")
    nearest.add_column("in", justify="right", no_wrap=True, min_width=9)
    for one in told["next"][:most]:
        nearest.add_row(key(one), "now" if one["in_s"] is not None and one["in_s"] <= 0 else short_time(one["in_s"]))
    events = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    events.add_column("Last events", no_wrap=True)
    events.add_column("", no_wrap=True, max_width=wide, overflow="ellipsis")
    events.add_column("", no_wrap=True, justify="right")
    for one in told["events"][:most]:
        kind = one["type"].removeprefix("deadline.")
        events.add_row(Text(kind, style=_STYLES.get(kind, "red")), key(one), Text(one["lsn"], style="dim"))
    both = Table.grid(padding=(0, 3, 0, 0))
    both.add_row(*([nearest] if "closer" in told["parts"] else []), *([events] if told["sink"] is not None else []))
    return both
