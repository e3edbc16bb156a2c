"""cdcwatch as it is run: its command, and its configuration in a file."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import orjson

from bench.servers import SLOT

if TYPE_CHECKING:
    from bench.places import Place
    from bench.servers import Database

_PROGRAM = Path(sys.executable).with_name("cdcwatch")
_PROFILER = Path(sys.executable).with_name("py-spy")
_SAMPLES_PER_S = 500


def configuration(
    directory: Path,
    base: Database,
    *,
    topic: Place | None,
    delivery: str = "exactly_once",
    slot: str = SLOT,
    plugin: str = "wal2json",
    listen: str = "",
    more: str = "",
) -> Path:
    """A TOML file with what differs from the defaults, `more` at its end; without a topic: `sink.kind = "none"`."""
    sections: dict[str, dict[str, str]] = {
        "postgres": {"dsn": base.dsn},
        "slot": {"name": slot, "plugin": plugin},
        "telemetry": {"listen": listen},
        **(topic.sections(delivery) if topic else {"sink": {"kind": "none"}}),
    }
    lines = []
    for name, keys in sections.items():
        lines.append(f"[{name}]")
        lines += [f"{key} = {orjson.dumps(value).decode()}" for key, value in keys.items()]
    lines += ["[close]", 'set = { closed_at = "clock_timestamp()" }', more]
    path = directory / "cdcwatch.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def run_command(path: Path, *arguments: str) -> list[str]:
    """`cdcwatch run` with that configuration."""
    return [str(_PROGRAM), "run", "-c", str(path), *arguments]


def profiled(command: list[str], chart: Path) -> list[str]:
    """The same under py-spy, which writes a flame graph when it has ended."""
    options = ["--rate", str(_SAMPLES_PER_S), "--format", "flamegraph", "--output", str(chart)]
    return [str(_PROFILER), "record", *options, "--", *command]
