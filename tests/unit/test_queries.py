"""Every named block of sql/ is used by the package, and every used one is there, described and spelt once."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import cdcwatch
from cdcwatch.queries import query, script

PACKAGE = Path(cdcwatch.__file__).parent
SQL = PACKAGE.parent / "sql"
READERS = {"query", "expression"}
SCRIPTS = {"install", "install_consume"}  # for psql: no blocks


def _named() -> list[tuple[str, str]]:
    return [
        (path.stem, line.removeprefix("-- name: ").strip())
        for path in sorted(SQL.glob("*.sql"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("-- name: ")
    ]


def _used() -> set[tuple[str, str]]:
    """The literals of `query("file", "name")` and `expression(…)`; a name chosen at run time counts by every literal in its module."""
    used: set[tuple[str, str]] = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        literals = {
            node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
        for call in ast.walk(tree):
            if not isinstance(call, ast.Call) or ast.unparse(call.func).rpartition(".")[2] not in READERS:
                continue
            file, name = (argument.value if isinstance(argument, ast.Constant) else None for argument in call.args)
            if isinstance(file, str):
                used |= {(file, name)} if isinstance(name, str) else {(file, literal) for literal in literals}
    return used


def test_no_block_is_named_twice() -> None:
    assert len(_named()) == len(set(_named()))


def test_every_block_is_used() -> None:
    assert set(_named()) - _used() == set()


def test_every_used_block_exists_and_is_described() -> None:
    named = set(_named())
    for file, name in _used():
        if (file, name) in named:
            assert query(file, name).startswith("-- "), f"{file}.{name} has no description"
    for path in PACKAGE.rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(call, ast.Call) and ast.unparse(call.func) in READERS:
                literals = [argument.value for argument in call.args if isinstance(argument, ast.Constant)]
                if len(literals) == 2:
                    assert tuple(literals) in named, f"{path.name}: no block {literals}"


def test_scripts_have_no_blocks() -> None:
    for name in SCRIPTS:
        assert "-- name:" not in script(name)


def test_an_unknown_block_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        query("slot", "no_such_block")
