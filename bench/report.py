"""What is measured, as tables: on the terminal and in RESULTS.md."""

from __future__ import annotations

import datetime as dt
import os
import platform
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

_PACKAGES = ("psycopg", "confluent-kafka", "orjson")


@dataclass
class Table:
    """One table of the results; the first column is a name, the second a ratio where there is one."""

    title: str
    explanation: str
    columns: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    """The machine's load average at each run."""
    problems: list[str] = field(default_factory=list)
    """Why the figures don't hold: a run that was not complete, an order closed early."""

    def note_load(self) -> float:
        """Keeps the load average of this moment, and gives it."""
        self.loads.append(os.getloadavg()[0])
        return self.loads[-1]

    def text(self) -> str:
        """For a terminal: columns aligned."""
        lines = [list(self.columns), *self.rows]
        widths = [max(len(line[at]) for line in lines) for at in range(len(self.columns))]
        shown = [self.title, *(_aligned(line, widths) for line in lines), *(f"! {one}" for one in self.problems)]
        return "\n".join(shown) + "\n"

    def markdown(self) -> str:
        """For RESULTS.md."""
        loads = f"Load average at each run: {', '.join(f'{load:.1f}' for load in self.loads)}."
        shown = [f"## {self.title}", self.explanation, "", _row(self.columns), _row(["---"] + ["---:"] * self._figures)]
        shown += [*(_row(row) for row in self.rows), "", loads, *(f"- **{one}**" for one in self.problems)]
        return "\n".join(shown) + "\n"

    @property
    def _figures(self) -> int:
        return len(self.columns) - 1


def document(tables: Sequence[Table], *, servers: str, command: str) -> str:
    """RESULTS.md."""
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    head = [
        "# Results of `python -m bench`",
        "",
        "Ratios are taken within a round, so that the machine's drift between rounds cancels out; figures are medians",
        "of the rounds. Only ratios of one run compare: the absolute figures are this machine's, in this hour.",
        "",
        f"- {dt.datetime.now(tz=dt.UTC):%Y-%m-%d %H:%M} UTC, `{command}`",
        f"- {os.cpu_count()} cores, {platform.system()} {platform.machine()}; servers, clients and load all on them",
        f"- {servers}, Python {platform.python_version()}, {packages}, cdcwatch {version('cdcwatch')}",
        "",
    ]
    return "\n".join(head) + "\n" + "\n".join(table.markdown() for table in tables)


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    first = line[0].ljust(widths[0])
    return "  ".join([first, *(text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True))])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
