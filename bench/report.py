"""What is measured, as tables: on the terminal, in results.json, in RESULTS.md and in the documentation."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass
class Table:
    """One table of the results; the first column is a name."""

    title: str
    explanation: str
    columns: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)
    """The machine's load average at each run."""
    problems: list[str] = field(default_factory=list)
    """Why the figures don't hold: a run that was not complete, an order closed early."""
    missing: list[str] = field(default_factory=list)
    """What was to be measured and can't be had here, and why."""
    series: dict[str, Any] = field(default_factory=dict)
    """What charts are drawn from: by name a figure, or pairs of figures."""

    @classmethod
    def of(cls, document: dict[str, Any]) -> Table:
        """As results.json holds it."""
        return cls(**document)

    def document(self) -> dict[str, Any]:
        """For results.json."""
        return asdict(self)

    def note_load(self) -> float:
        """Keeps the load average of this moment, and gives it."""
        self.loads.append(round(os.getloadavg()[0], 2))
        return self.loads[-1]

    def lack(self, name: str, reason: object) -> None:
        """A row for what can't be had, so that nobody takes it for forgotten."""
        self.missing.append(f"{name}: {reason}")
        self.rows.append([f"{name} (missing)", *["-"] * self._figures])

    def text(self) -> str:
        """For a terminal: columns aligned."""
        lines = [list(self.columns), *self.rows]
        widths = [max(len(line[at]) for line in lines) for at in range(len(self.columns))]
        shown = [self.title, *(_aligned(line, widths) for line in lines)]
        shown += [f"missing: {one}" for one in self.missing] + [f"! {one}" for one in self.problems]
        return "\n".join(shown) + "\n"

    def grid(self) -> str:
        """The rows as Markdown, and what is wrong with them."""
        shown = [_row(self.columns), _row(["---", *["---:"] * self._figures]), *(_row(row) for row in self.rows)]
        notes = [f"- missing: {one}" for one in self.missing] + [f"- **{one}**" for one in self.problems]
        return "\n".join([*shown, *(["", *notes] if notes else [])])

    def markdown(self) -> str:
        """For RESULTS.md."""
        loads = f"Load average at each run: {', '.join(f'{load:.1f}' for load in self.loads)}."
        return f"### {self.title}\n\n{self.explanation}\n\n{self.grid()}\n\n{loads}\n"

    @property
    def _figures(self) -> int:
        return len(self.columns) - 1


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of them lie."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _aligned(line: Sequence[str], widths: Sequence[int]) -> str:
    first = line[0].ljust(widths[0])
    return "  ".join([first, *(text.rjust(width) for text, width in zip(line[1:], widths[1:], strict=True))])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
