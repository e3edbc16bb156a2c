"""What the documentation says to type can be typed: commands are parsed by the command line itself, files are there, TOML is configuration.

The quickstart is run as it stands, and all SQL, in tests/integration/test_documentation.py.
"""

from __future__ import annotations

import ast
import importlib
import json
import re
import tomllib
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from cdcwatch.configuration import load_settings
from cdcwatch.errors import ConfigurationError
from tests.command import require_parsable
from tests.pages import PAGES, ROOT, Block, blocks, commands, inline_commands

if TYPE_CHECKING:
    from pathlib import Path

LANGUAGES = {"sh", "sql", "toml", "json", "http", "text", "mermaid", "python", "java", "go", "ksql", "properties"}
# Programs that are not run and not looked at further, each with the reason.
OTHERS = {
    ".": "the shell's own",
    "cd": "the shell's own",
    "export": "the shell's own",
    "$EDITOR": "whichever it is",
    "git": "where the project is cloned from is everybody's own matter",
    "jq": "reads what cdcwatch prints; not everywhere installed",
    "xxd": "the same",
    "tail": "follows a file without end",
    "journalctl": "no systemd in a test",
    "systemctl": "no systemd in a test; the unit is looked at in test_deployment.py",
    "kafka-acls.sh": "Kafka's scripts are not in its jars; tests/integration/test_kafka_rights.py grants the same by the admin client",
    "kafka-topics.sh": "the same; test_kafka_rights.py",
    "pre-commit": "its hooks are make check's, see test_deployment.py",
    "kcat": "tests/integration/test_consumers.py runs it",
    "page-the-dba": "stands for whatever a site has",
}
INSTALL_VARIABLES = set(re.findall(r"^--     (\w+)=", (ROOT / "sql/install.sql").read_text(), re.MULTILINE))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BLOCKS = [block for page in PAGES for block in blocks(page)]


def _of(language: str) -> list[Any]:
    return [pytest.param(block, id=block.place) for block in BLOCKS if block.language == language]


def test_every_block_says_what_it_is() -> None:
    assert [block.place for block in BLOCKS if block.language not in LANGUAGES] == []
    for block in BLOCKS:
        if block.language == "text" and block.page != "docs/cli.md":  # there, how each is called
            assert not re.search(r"^ *(cdcwatch|psql|make|docker|kubectl) ", block.text, re.MULTILINE), block.place


@pytest.mark.parametrize("block", _of("sh"))
def test_what_stands_in_a_shell_block_can_be_typed(block: Block) -> None:
    found = list(commands(block.text))
    assert found
    for command in found:
        _check(command)


def _check(command: list[str]) -> None:
    program, *arguments = command
    name = program.rpartition("/")[2]
    if name == "cdcwatch":
        require_parsable(*arguments)
    elif name == "psql":
        _check_psql(arguments)
    elif name == "make":
        goals = [word for word in arguments if "=" not in word]
        assert set(goals) <= TARGETS, command
    elif name in {"docker", "kubectl", "cp", "install"}:
        _check_paths(arguments)
        if "cdcwatch" in arguments and "exec" in arguments:  # docker compose exec cdcwatch cdcwatch …
            require_parsable(*arguments[len(arguments) - arguments[::-1].index("cdcwatch") :])
        elif any(word.startswith("cdcwatch:") for word in arguments) and "run" in arguments:
            require_parsable(*arguments[[word.startswith("cdcwatch:") for word in arguments].index(True) + 1 :])
    elif name in {"python3", "python", "pip"}:
        _check_python(name, arguments)
    else:
        assert name in OTHERS, f"{name} is neither looked at nor excepted"


def _check_psql(arguments: list[str]) -> None:
    files = [word for before, word in pairwise(arguments) if before in {"-f", "--file"}]
    assert [file for file in files if not (ROOT / file).exists()] == []
    variables = [word.partition("=")[0] for before, word in pairwise(arguments) if before == "-v"]
    assert set(variables) <= INSTALL_VARIABLES, variables


def _check_paths(arguments: list[str]) -> None:
    """What names a file of the project names one that is there."""
    for word in arguments:
        path = word.partition("=")[2] or word
        if re.match(r"(docker|sql|docs)/", path) and not path.endswith("docker/.env"):
            assert (ROOT / path).exists(), path


def _check_python(name: str, arguments: list[str]) -> None:
    if name == "pip":
        extras = {f".[{name}]" for name in PROJECT["optional-dependencies"]}
        assert arguments[0] == "install"
        assert arguments[1:] in ([["."], ["pre-commit"], *([extra] for extra in extras)]), arguments
    elif arguments[0].startswith("docs/examples/"):
        assert (ROOT / arguments[0]).exists(), arguments
    elif arguments[0] == "-c":
        compile(arguments[1], "documentation", "exec")
    else:
        assert arguments[:2] in (
            ["-m", "venv"],
            ["-m", "bench"],
            ["-m", "tests.fault.soak"],
            ["-m", "tests.simulation"],
        )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_in_the_running_text_are_ones(page: Path) -> None:
    for command in inline_commands(page):
        if command[0] == "cdcwatch":
            require_parsable(*command[1:], is_whole=False)


@pytest.mark.parametrize("block", _of("toml"))
def test_a_toml_block_is_configuration(block: Block, tmp_path: Path) -> None:
    text = block.text
    if block.words:
        assert block.words[0] == "cdcwatch.toml"
    file = tmp_path / "cdcwatch.toml"
    file.write_text(text)
    load_settings(file, {})
    assert tomllib.loads(text)


@pytest.mark.parametrize("block", _of("json"))
def test_a_json_block_is_json(block: Block) -> None:
    assert isinstance(json.loads(block.text), dict)


@pytest.mark.parametrize("block", _of("python"))
def test_a_python_block_is_python_and_what_it_takes_from_cdcwatch_is_there(block: Block) -> None:
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("cdcwatch"):
            module = importlib.import_module(node.module or "")
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == [], block.place


WRONG = [
    "cdcwatch slot make",
    "psql -d shop -f sql/uninstall.sql",
    "psql -d shop -f sql/install.sql -v tabel=carts",
    "make tests",
    "docker compose -f docker/composed.yaml up",
    "docker compose -f docker/compose.yaml exec cdcwatch cdcwatch pend",
    "cdcwatch events | cdcwatch events --folow",
    "redis-cli monitor",
    "python docs/examples/send_anew.py",
]


@pytest.mark.parametrize("line", WRONG)
def test_what_could_not_be_typed_is_found(line: str) -> None:
    *_, command = commands(line)
    with pytest.raises(AssertionError):
        _check(command)


def test_unknown_keys_in_a_block_are_found(tmp_path: Path) -> None:
    file = tmp_path / "cdcwatch.toml"
    file.write_text("[sweep]\nevery_s = 3\n")
    with pytest.raises(ConfigurationError):
        load_settings(file, {})
