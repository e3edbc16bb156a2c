"""The command line from its own commands: what they take, and the examples below their `--help`."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import typer

from cdcwatch.cli.main import app

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD = """\
<!-- Written by `make docs` from the commands themselves. -->
# Commands

Every command takes `-c FILE`, before or after its name, and `--debug`. Errors are one line and a `remedy:` line on
stderr.

| exit code | |
|---|---|
| 0 | done |
| 1 | a check or threshold failed, or you answered no |
| 2 | usage or configuration |
| 3 | a server can't be reached or lacks something |
| 4 | interrupted, or stopped before all that was read was durable: nothing of that was confirmed, start again |
"""
_NUMBERS = {"integer": "N", "float": "N"}


def page() -> str:
    """docs/cli.md."""
    root: Any = typer.main.get_command(app)
    parts = [_HEAD]
    for path, command in _commands(root, ("cdcwatch",)):
        parts.append(_section(path, command))
    return "\n".join(parts)


def _commands(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for name, below in getattr(command, "commands", {}).items():
        if hasattr(below, "commands"):
            yield from _commands(below, (*path, name))
        else:
            yield (*path, name), below


def _section(path: tuple[str, ...], command: Any) -> str:
    name = " ".join(path)
    options = [one for one in command.params if one.param_type_name == "option" and not _is_everywhere(one)]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    usage = " ".join([name, *(["[OPTIONS]"] if options else []), *(_argument(one) for one in arguments)])
    lines = [f"## {name}", "", _one_line(command.help), "", "```text", usage, "```", ""]
    rows = [(f"`{one.human_readable_name.upper()}`", _one_line(getattr(one, "help", ""))) for one in arguments]
    rows += [(f"`{_option(one)}`", _one_line(one.help) + _default(one)) for one in options]
    if rows:
        lines += [
            "| | |",
            "|---|---|",
            *(f"| {left.replace('|', chr(92) + '|')} | {right} |" for left, right in rows),
            "",
        ]
    examples = (command.epilog or "").partition("Examples:\n")[2]
    if examples:
        lines += ["```sh", inspect.cleandoc(examples), "```", ""]
    return "\n".join(lines)


def _is_everywhere(option: Any) -> bool:
    return bool({"--config", "--debug", "--help"} & set(option.opts))


def _argument(argument: Any) -> str:
    name = argument.human_readable_name.upper() + ("..." if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _option(option: Any) -> str:
    names = ", ".join(sorted(option.opts, key=len))
    if option.is_flag:
        return "/".join([names, *option.secondary_opts])
    choices = getattr(option.type, "choices", None)
    taken = "|".join(str(getattr(one, "value", one)) for one in choices) if choices else option.metavar
    return f"{names} {taken or _NUMBERS.get(option.type.name, 'TEXT')}"


def _default(option: Any) -> str:
    default = getattr(option.default, "value", option.default)
    if option.is_flag or default is None or callable(default) or default in ("", (), []):
        return ""
    return f" Default: `{default}`."


def _one_line(text: str | None) -> str:
    return " ".join((text or "").replace("\b", "").split())
