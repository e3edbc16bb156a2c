"""How things look: plain lines that stay readable in a log, colour on a terminal only. Pure but for the terminal."""

import os
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any, Final

import orjson
import typer

from cdcwatch.errors import ConfigurationError
from cdcwatch.wording import printable

_COLOURS: Final = {"ok": "32", "warn": "33", "fail": "31"}
_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86_400
_USUAL_COLUMNS: Final = 80
_SECOND_S: Final = 1.0
_MILLISECOND_TENTHS_S: Final = 0.01


def print_json(value: Any) -> None:
    """One indented document."""
    sys.stdout.write(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode() + "\n")


def ask(question: str, verb: str, *, yes: bool) -> None:
    """Goes on when the answer is yes; exit 1 on no, exit 2 when nobody answers."""
    if yes:
        return
    try:
        is_sure = typer.confirm(question)
    except typer.Abort:
        raise ConfigurationError(f"nobody answered whether to {verb}", remedy="pass --yes") from None
    if not is_sure:
        print("nothing was changed")
        raise typer.Exit(1)


def coloured(text: str, state: str) -> str:
    """The text in its state's colour on a terminal that wants colour (https://no-color.org)."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_COLOURS[state]}m{text}\x1b[0m"


def wrapped(text: str, *, indent: int) -> str:
    """Broken at the terminal's width, further lines indented; one line where nobody looks at it, for grep."""
    if not sys.stdout.isatty():
        return text
    width = max(40, shutil.get_terminal_size((_USUAL_COLUMNS, 24)).columns - indent)
    return f"\n{'':<{indent}}".join(textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""])


def clipped(text: str, width: int) -> str:
    """At most `width` characters, the last of them a mark where some are missing."""
    return text if len(text) <= width else text[: width - 1] + "…"


def bytes_text(count: int | None) -> str:
    """`1.5 MB`, in powers of 1024 as the server's own settings; `unknown` for None."""
    if count is None:
        return "unknown"
    value, unit = float(count), 0
    while abs(value) >= 1024 and unit < len(_UNITS) - 1:  # noqa: PLR2004
        value, unit = value / 1024, unit + 1
    return f"{value:.0f} {_UNITS[unit]}" if unit == 0 else f"{value:.1f} {_UNITS[unit]}"


def duration_text(seconds: float) -> str:
    """`2.4 s`, `4 min 3 s`, `3 h 20 min`, `5 d 2 h`: the two largest units."""
    if seconds < _MINUTE_S:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for size, name, smaller, smaller_name in (
        (_DAY_S, "d", _HOUR_S, "h"),
        (_HOUR_S, "h", _MINUTE_S, "min"),
        (_MINUTE_S, "min", 1, "s"),
    ):
        if whole >= size:
            return f"{whole // size} {name} {whole % size // smaller} {smaller_name}"
    return f"{seconds:.1f} s"


def short_time(seconds: float | None) -> str:
    """`0.4 ms`, `12 ms`, `3.2 s`, `4 min 3 s`; a dash for None."""
    if seconds is None:
        return "-"
    if abs(seconds) < _MILLISECOND_TENTHS_S:
        return f"{seconds * 1000:.1f} ms"
    return f"{seconds * 1000:.0f} ms" if abs(seconds) < _SECOND_S else duration_text(seconds)


def table_text(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Columns padded to their widest cell, nothing after the last one."""
    lines = [head, *(tuple(printable(cell) for cell in row) for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
