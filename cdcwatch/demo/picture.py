"""The live view: what the shop does, what cdcwatch makes of it, the topic's last events, where to look further."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final, Self

from rich import box
from rich.console import Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from cdcwatch.deadline.rule import CANCELLED, EXPIRED, MOVED, SCHEDULED
from cdcwatch.demo.summary import milliseconds

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

    from cdcwatch.demo.performance import Frame
    from cdcwatch.demo.world import World

_RATE_FRAMES: Final = 12
_WIDE: Final = 100
_LINES_AROUND: Final = 16
"""All but the events and the addresses."""
_COLOURS: Final = {SCHEDULED: "cyan", MOVED: "yellow", CANCELLED: "dim", EXPIRED: "magenta"}


class LivePicture:
    """Redraws itself in place on a terminal."""

    def __init__(self, console: Console, world: World, program: str) -> None:
        """`program`: what to type for `cdcwatch`."""
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        # Room for the ^C that the terminal echoes: on a full line it would break the next redraw.
        self._width = max(20, console.width - 4)
        self._title = world.title
        is_narrow = self._width < _WIDE
        self._addresses = _addresses(world, program, is_narrow=is_narrow)
        taken = _LINES_AROUND + self._addresses.row_count + is_narrow  # one of them may take two lines there
        self._most_events = max(1, console.height - taken)
        self._past: deque[tuple[float, tuple[int, ...]]] = deque(maxlen=_RATE_FRAMES)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, frame: Frame) -> None:
        """One frame."""
        self._live.update(self._drawn(frame), refresh=True)

    def _drawn(self, frame: Frame) -> RenderableType:
        shop, topic = frame.shop, frame.topic
        counts = (
            shop.placed,
            shop.paid,
            shop.extended,
            shop.cancelled,
            shop.deleted,
            topic.events,
            topic.by_type[EXPIRED],
        )
        self._past.append((frame.elapsed_s, counts))
        since_s, before = self._past[0]
        span_s = frame.elapsed_s - since_s
        rates = [(now - then) / span_s if span_s else 0.0 for now, then in zip(counts, before, strict=True)]
        did = ("placed", "paid", "extended", "cancelled", "deleted")
        left = _figures("the shop", "a second", "in all")
        for name, rate, count in zip(did, rates, counts, strict=False):
            left.add_row(name, f"{rate:,.0f}", f"{count:,}")
        _begin(left, "waiting", "now")
        left.add_row("pending", "", f"{frame.waiting.rows:,}")
        left.add_row("  within a minute", "", f"{frame.waiting.soon_rows:,}")
        late = frame.lateness
        right = _figures("cdcwatch", "a second", "in all")
        right.add_row("events", f"{rates[-2]:,.0f}", f"{topic.events:,}")
        right.add_row("closed", f"{rates[-1]:,.0f}", f"{topic.by_type[EXPIRED]:,}")
        _begin(right, "measured")
        right.add_row("late, p50 | p99", milliseconds(late.p50_ms), milliseconds(late.p99_ms))
        right.add_row("late, max | early", milliseconds(late.max_ms), _wrong(late.early_rows + topic.early))
        right.add_row("twice | disordered", _wrong(topic.duplicates), _wrong(topic.out_of_order))
        right.add_row("overdue", "", f"{frame.waiting.overdue_rows:,}")
        right.add_row("slot lag, bytes", "", f"{frame.slot.lag_bytes:,}")
        both = Table.grid(padding=(0, 4 if self._width >= _WIDE else 2))
        both.add_row(left, right)
        minutes, seconds = divmod(int(frame.elapsed_s), 60)
        head = Text.assemble(
            (f"{minutes}:{seconds:02d}", "bold"), f"  the shop is {frame.doing}  ", (self._title, "dim")
        )
        return Panel(
            Group(head, "", both, "", _events(frame, self._most_events), "", self._addresses),
            title="cdcwatch demo",
            subtitle="Ctrl-C ends it and leaves nothing behind",
            box=box.ROUNDED,
            width=self._width,
        )


def _figures(*heads: str) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    table.add_column(heads[0], min_width=17, no_wrap=True)
    for head in heads[1:]:
        table.add_column(head, justify="right", min_width=7, no_wrap=True)
    return table


def _begin(table: Table, name: str, last: str = "") -> None:
    """A block of its own, to which the heads above don't belong."""
    table.add_row(Text(name, style="bold"), "", Text(last, style="bold"))


def _wrong(count: int) -> Text:
    """A count that must be 0."""
    return Text(f"{count:,}", style="bold red" if count else "green")


def _events(frame: Frame, most: int) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in ("the topic's last events", "", "order", "deadline", "reason"):
        table.add_column(head, no_wrap=True)
    for event in list(frame.last_events)[-most:]:
        data, kind = event["data"], event["type"]
        table.add_row(
            event["time"][11:-1],
            Text(kind.removeprefix("deadline."), style=_COLOURS.get(kind, "")),
            event["subject"],
            (data["deadline"] or "-")[11:-1],
            data.get("reason") or "",
        )
    return table


def _addresses(world: World, program: str, *, is_narrow: bool) -> Table:
    settings = world.settings()
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    configuration = f"-c {world.configuration_path}"
    rows: tuple[tuple[str, str | Text], ...] = (
        ("database", world.dsn),
        (
            "kafka",
            f"{settings.kafka.bootstrap_servers}, topic {', '.join(one.for_events().topic for one in settings.each())}",
        ),
        ("status page", Text(world.page_address, style="bold cyan")),
        ("look", f"{program} top {configuration}"),
        ("", f"{program} events --follow {configuration}"),
        ("", f"{program} slot status {configuration}"),
        ("", f"{program} pending {configuration}"),
    )
    for name, text in rows[:5] if is_narrow else rows:
        table.add_row(name, text)
    return table
