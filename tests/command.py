"""The command line as tests run it: in this process for speed, as a process where signals matter."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from cdcwatch.cli.main import app, main

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = """
CREATE TABLE orders (
  id bigint PRIMARY KEY, status text NOT NULL, expires_at timestamptz NOT NULL, version int NOT NULL DEFAULT 0)
"""


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        return self.out + self.err


def cdcwatch(*arguments: str | Path) -> Ended:
    """Runs a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    code: object = None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main([str(argument) for argument in arguments])
        except SystemExit as ended:
            code = ended.code
    assert isinstance(code, int)
    return Ended(code, out.getvalue(), err.getvalue())


def require_parsable(*arguments: str, is_whole: bool = True) -> None:
    """AssertionError unless the command line knows these arguments. Runs nothing. Unless `is_whole` some may be missing."""
    command: Any = typer.main.get_command(app)
    try:
        context = command.make_context("cdcwatch", list(arguments))
        while hasattr(command, "resolve_command"):
            # A group has parsed its own options, and left the command and what follows.
            _, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
            context = command.make_context(command.name, rest, parent=context)
    except typer.Exit:
        pass  # as --version does
    except Exception as error:
        if not is_whole and type(error).__name__ == "MissingParameter":
            return
        if not hasattr(error, "format_message"):  # typer's errors of usage, of its own click
            raise
        raise AssertionError(f"cdcwatch {shlex.join(arguments)}: {error.format_message()}") from None


def start_cdcwatch(*arguments: str | Path, environment: dict[str, str] | None = None) -> subprocess.Popen[str]:
    """Starts a command as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "cdcwatch", *(str(argument) for argument in arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )


def run_to_the_end(*arguments: str | Path, environment: dict[str, str] | None = None) -> Ended:
    """Runs a command as a process of its own: the service leaves threads and handlers in this one."""
    with start_cdcwatch(*arguments, environment=environment) as process:
        out, err = process.communicate(timeout=120)
    return Ended(process.returncode, out, err)


def write_configuration(path: Path, dsn: str, rest: str = "") -> Path:
    """A configuration file for `dsn`."""
    quoted = dsn.replace("\\", "\\\\").replace('"', '\\"')
    path.write_text(f'[postgres]\ndsn = "{quoted}"\n{rest}', encoding="utf-8")
    return path
