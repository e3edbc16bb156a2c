"""results.json, and what is made of it: RESULTS.md, the charts, and the tables that stand in the documentation.

Each part of the bench stands there with the conditions of its last run, so that one can be measured again by itself.
"""

from __future__ import annotations

import datetime as dt
import html
import os
import platform
import re
import sys
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from bench import charts
from bench.essentials import TOLD, essentials
from bench.report import Table

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
JSON = Path(__file__).with_name("results.json")
MARKDOWN = Path(__file__).with_name("RESULTS.md")
CHARTS = ROOT / "docs/charts"
PAGES = (ROOT / "README.md", ROOT / "docs/performance.md")
_PACKAGES = ("psycopg", "confluent-kafka", "orjson")
_MARKED = re.compile(r"(<!-- bench:([\w-]+) -->\n).*?(<!-- /bench -->)", re.DOTALL)
_DESCRIPTION = re.compile(r"<desc>(.*?)</desc>")
_HEAD = """# Results of `python -m bench`

Ratios are taken within a round, so that the machine's drift between rounds cancels out; figures are medians of the
rounds. Only ratios of one run compare: the absolute figures are those of one machine, in one hour. Servers, clients and
load all run on it. Written from `bench/results.json`, as are the charts and tables of docs/performance.md.
"""


@dataclass
class Part:
    """What one part of the bench measured, and when, how and on what."""

    began: str
    command: str
    machine: str
    versions: str
    seconds: float
    load_before: float
    """The load average when the bench was started."""
    tables: list[Table] = field(default_factory=list)

    def conditions(self) -> str:
        """In one line."""
        return f"{self.began} UTC, `{self.command}`, took {self.seconds:.0f} s. {self.machine}; {self.versions}."

    @property
    def cores(self) -> int:
        """Of the machine."""
        return int(self.machine.split()[0])

    def caveat(self) -> str:
        """A sentence where other work was on the machine; empty where it was quiet.

        The bench loads the machine itself: what was there before it began tells, or a load that it can't make alone.
        """
        least = min((load for table in self.tables for load in table.loads), default=0.0)
        if self.load_before <= self.cores / 2 and least <= 2 * self.cores:
            return ""
        return (
            f"**Other work was on this machine: its load average was {self.load_before:.1f} before the bench began, and"
            f" never below {least:.1f} then, with {self.cores} cores. None of these figures is a result, and ratios may"
            " be far off.**\n\n"
        )


def made(command: str, servers: str, load_before: float) -> Part:
    """A part that begins now."""
    packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    return Part(
        began=f"{dt.datetime.now(tz=dt.UTC):%Y-%m-%d %H:%M}",
        command=command,
        machine=f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}",
        versions=f"{servers}, {_python()}, {packages}, cdcwatch {version('cdcwatch')}",
        seconds=0.0,
        load_before=round(load_before, 2),
    )


def _python() -> str:
    """The distribution's is built with profile-guided optimisation; others may not be, and are slower then."""
    own = " of the distribution" if sys.base_prefix == "/usr" else ""
    return f"Python {platform.python_version()}{own}"


def load(path: Path | None = None) -> dict[str, Part]:
    """By the part's name; empty where nothing was measured yet."""
    path = path or JSON
    if not path.exists():
        return {}
    parts = {name: Part(**document) for name, document in orjson.loads(path.read_bytes()).items()}
    for part in parts.values():
        part.tables = [Table.of(table) for table in part.tables]
    return parts


def save(parts: dict[str, Part], path: Path | None = None) -> None:
    """As JSON with a line a table, so that a diff tells which of them are others."""
    shown = ",\n".join(f'"{name}": {_json(part)}' for name, part in parts.items())
    (path or JSON).write_text(f"{{\n{shown}\n}}\n")


def _json(part: Part) -> str:
    head = orjson.dumps({**asdict(part), "tables": []}).decode().removesuffix("]}")
    tables = ",\n".join(orjson.dumps(table.document()).decode() for table in part.tables)
    return f"{head}\n{tables}\n]}}"


def document(parts: dict[str, Part]) -> str:
    """RESULTS.md."""
    return _HEAD + "".join(
        f"\n## {name}\n\n{part.caveat()}{part.conditions()}\n{_tables(part)}" for name, part in parts.items()
    )


def _tables(part: Part) -> str:
    return "".join(f"\n{table.markdown()}" for table in part.tables)


def filled(page: str, parts: dict[str, Part]) -> str:
    """A page with what stands between its markers `<!-- bench:NAME -->` and `<!-- /bench -->` written anew.

    NAME is a part, or a part and a table's number in it, as in `lateness-2`; or `flame`: the flame graphs there are; or
    `essentials`: the sentences that say it all.
    """
    return _MARKED.sub(lambda found: f"{found[1]}{_extract(found[2], parts)}\n{found[3]}", page)


def _extract(name: str, parts: dict[str, Part]) -> str:
    if name == "flame":
        return "\n".join(map(_flame, sorted(CHARTS.glob("flame-*.svg")))) or "None is kept here yet."
    if name == "essentials":
        return _essentials(parts)
    part, _, number = name.partition("-")
    if part not in parts:
        return "Not measured yet: `make bench`."
    tables = parts[part].tables
    chosen = tables if not number else tables[int(number) - 1 : int(number)]
    shown, explained = [], ""
    for table in chosen:
        once = f"{table.explanation}\n\n" if table.explanation != explained else ""
        shown.append(f"*{table.title}*\n\n{once}{table.grid()}\n")
        explained = table.explanation
    caveat = parts[part].caveat()
    return caveat + "\n".join([*shown, f"{parts[part].conditions()} Load average: {_loads(chosen)}."])


def _flame(graph: Path) -> str:
    described = _DESCRIPTION.search(graph.read_text())
    shown = f"![Flame graph: {graph.stem}](charts/{graph.name})"
    return f"{shown}\n\n{html.unescape(described[1])}" if described else shown


def describe(graph: Path, part: Part) -> None:
    """Writes into a flame graph when and on what it was made."""
    text = graph.read_text()
    at = text.index(">", text.index("<svg")) + 1
    graph.write_text(f"{text[:at]}<desc>{html.escape(part.conditions())}</desc>{text[at:]}")


def _essentials(parts: dict[str, Part]) -> str:
    said = essentials({name: part.tables for name, part in parts.items()})
    if not said:
        return "Not measured yet: `make bench`."
    told = [part for name, part in parts.items() if name in TOLD]
    caveat = next((part.caveat() for part in told if part.caveat()), "")
    machine = next(iter(parts.values())).machine
    return caveat + "\n".join([*(f"- {one}" for one in said), "", f"({machine}; servers and load on it too.)"])


def _loads(tables: list[Table]) -> str:
    loads = [load for table in tables for load in table.loads]
    return f"{min(loads):.1f} to {max(loads):.1f}" if loads else "not noted"


def written(parts: dict[str, Part]) -> Iterator[tuple[Path, str]]:
    """Every file that is made of the results, and its text."""
    yield MARKDOWN, document(parts)
    busy = {name for name, part in parts.items() if part.caveat()}
    for name, drawn in charts.drawn({name: part.tables for name, part in parts.items()}, busy=busy):
        yield CHARTS / f"{name}.svg", drawn
    for page in PAGES:
        yield page, filled(page.read_text(), parts)


def write(parts: dict[str, Part]) -> list[Path]:
    """All of them; which ones."""
    CHARTS.mkdir(parents=True, exist_ok=True)
    paths = []
    for path, text in written(parts):
        path.write_text(text)
        paths.append(path)
    return paths
