"""SQL that stands in `sql/`: one named, described block a query.

A block begins with `-- name: the_name` and a comment that says what it is for; it ends at the next one. Placeholders
are psycopg's: `%(value)s` for values, `{identifier}` for what `psycopg.sql` composes.
https://www.psycopg.org/psycopg3/docs/api/sql.html
"""

from __future__ import annotations

import re
from functools import cache
from importlib import resources
from pathlib import Path
from typing import LiteralString

_NAME = re.compile(r"^-- name: (\w+)\s*$", re.MULTILINE)


def _folder() -> Path:
    """`sql/` inside the wheel, or beside the package in a checkout."""
    inside = Path(str(resources.files("cdcwatch"))) / "sql"
    return inside if inside.is_dir() else inside.parent.parent / "sql"


def script(file: str) -> str:
    """A whole file of `sql/`, as `install`."""
    return (_folder() / f"{file}.sql").read_text(encoding="utf-8")


@cache
def _blocks(file: str) -> dict[str, str]:
    parts = _NAME.split(script(file))
    return dict(zip(parts[1::2], (part.strip() for part in parts[2::2]), strict=True))


def query(file: str, name: str) -> LiteralString:
    """The block `name` of `sql/<file>.sql`. KeyError where there is none: a mistake of ours, found by the tests."""
    return _blocks(file)[name]


def expression(file: str, name: str) -> LiteralString:
    """The block without its comment: a piece of a larger query."""
    lines = _blocks(file)[name].splitlines()
    return "\n".join(line for line in lines if not line.startswith("--"))
