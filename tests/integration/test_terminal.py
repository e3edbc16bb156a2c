"""How it looks: 80 columns on a terminal, no colour and whole lines in a pipe, examples in every --help, completion."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import TYPE_CHECKING

import pytest

from tests.command import cdcwatch, start_cdcwatch

if TYPE_CHECKING:
    from pathlib import Path

    from tests.services import Database

COMMANDS = [
    [],
    ["check"],
    ["sweep"],
    ["recover"],
    ["snapshot"],
    ["run"],
    ["top"],
    ["pending"],
    ["events"],
    ["explain"],
    ["schema"],
    ["demo"],
    ["slot"],
    *(["slot", name] for name in ("create", "status", "list", "peek", "advance", "drop")),
]
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def on_a_terminal(*arguments: str | Path, columns: int = 80, environment: dict[str, str] | None = None) -> str:
    """What a command writes to a terminal of that width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    kept = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES", "NO_COLOR"}}
    process = subprocess.Popen(
        [sys.executable, "-m", "cdcwatch", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**kept, "TERM": "xterm", **(environment or {})},
    )
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 1 << 16):
            parts.append(part)
    except OSError:  # how Linux says that nobody writes any more
        pass
    os.close(ours)
    process.wait(120)
    return b"".join(parts).decode().replace("\r\n", "\n")


@pytest.fixture
def busy(database: Database, slot: str, shop: Path) -> Path:
    """A slot with changes in it."""
    assert cdcwatch("slot", "create", "-c", shop).code == 0
    with database.connect() as connection:
        connection.execute(
            "INSERT INTO orders SELECT 9007199254740000 + n, CASE WHEN n % 3 = 0 THEN 'paid' ELSE 'pending' END,"
            " '2030-01-01 00:00:00.123456' FROM generate_series(1, 6) n"
        )
    return shop


@pytest.mark.parametrize(
    "arguments",
    [["slot", "status"], ["slot", "list"], ["slot", "peek", "--explain"], ["pending"], ["explain", "9007199254740001"]],
    ids=" ".join,
)
def test_tables_fit_80_columns(busy: Path, arguments: list[str]) -> None:
    shown = _COLOUR.sub("", on_a_terminal(*arguments, "-c", busy))
    assert shown.strip()
    assert [line for line in shown.splitlines() if len(line) > 80] == []


def test_checks_are_broken_at_the_terminals_width_and_their_remedies_are_not(busy: Path) -> None:
    shown = on_a_terminal("check", "-c", busy)
    assert "\x1b[33mwarn\x1b[0m" in shown
    lines = _COLOUR.sub("", shown).splitlines()
    assert [line for line in lines if len(line) > 80 and "remedy: " not in line] == []
    assert any("remedy: CREATE UNIQUE INDEX CONCURRENTLY" in line and len(line) > 80 for line in lines)
    wide = _COLOUR.sub("", on_a_terminal("check", "-c", busy, columns=200)).splitlines()
    assert len(wide) < len(lines)


def test_a_pipe_gets_whole_lines_without_colour(busy: Path) -> None:
    for arguments in (["check"], ["slot", "status", "--require-reader"], ["slot", "peek"]):
        with start_cdcwatch(*arguments, "-c", busy) as process:
            out, err = process.communicate(timeout=120)
        assert "\x1b" not in out + err
        assert out.strip()
    assert "\x1b" not in on_a_terminal("check", "-c", busy, environment={"NO_COLOR": "1"})


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_help_has_examples_and_fits(command: list[str]) -> None:
    shown = on_a_terminal(*command, "--help")
    assert "  Examples:\n    cdcwatch " in shown
    assert [line for line in shown.splitlines() if len(line) > 80] == []


def test_the_examples_are_commands_that_exist() -> None:
    from cdcwatch.cli.examples import _EXAMPLES

    known = {" ".join(command) for command in COMMANDS}
    for command, lines in _EXAMPLES.items():
        assert command in known
        for line in lines:
            words = re.split(r" \| | \|\| |\s{2,}#", line)[0].split()
            assert words[0] == "cdcwatch"
            name = " ".join(words[1:3]) if words[1] == "slot" else words[1]
            assert name in known
            options = [word for word in words if word.startswith("-")]
            offered = cdcwatch(*name.split(), "--help").out
            assert [option for option in options if option not in offered] == [], line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_is_offered_for_each_shell(shell: str) -> None:
    script = subprocess.run(
        [sys.executable, "-m", "cdcwatch", "--show-completion", shell],
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "cdcwatch" in script


def test_bash_completes_commands_and_options() -> None:
    def completed(*words: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "cdcwatch"],
            env={
                **os.environ,
                "_CDCWATCH_COMPLETE": "complete_bash",
                "COMP_WORDS": " ".join(("cdcwatch", *words)),
                "COMP_CWORD": str(len(words)),
            },
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout.split()

    assert completed("slot", "cr") == ["create"]
    assert set(completed("slot", "")) == {"create", "status", "list", "peek", "advance", "drop"}
    assert "--dry-run" in completed("slot", "create", "--")
    assert "explain" in completed("ex")
