"""Which pages are generated, whole or between two marks, and from what."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from tools.reference import commands, keys

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).parents[2]
WHOLE: Mapping[str, Callable[[], str]] = {"docs/cli.md": commands.page}
PARTS: Mapping[tuple[str, str], Callable[[], str]] = {
    ("docs/configuration.md", "defaults"): keys.defaults,
    ("docs/configuration.md", "keys"): keys.reference,
}


def _contents() -> dict[Path, str]:
    """Each page as the code gives it."""
    pages = {ROOT / name: made() for name, made in WHOLE.items()}
    for (name, part), made in PARTS.items():
        path = ROOT / name
        pages[path] = _replaced(pages.get(path) or path.read_text(encoding="utf-8"), part, made())
    return pages


def _replaced(page: str, part: str, text: str) -> str:
    """With `text` between `<!-- generated: PART -->` and the next `<!-- end -->`. ValueError without them."""
    marks = re.compile(rf"(<!-- generated: {part} -->\n).*?(<!-- end -->)", re.DOTALL)
    if len(marks.findall(page)) != 1:
        raise ValueError(f"the page has no place for {part}, or several")
    return marks.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", page)


def out_of_date() -> list[Path]:
    """Pages that are not what the code gives."""
    return [
        path.relative_to(ROOT)
        for path, text in _contents().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]


def write() -> None:
    """Writes them all."""
    for path, text in _contents().items():
        path.write_text(text, encoding="utf-8")
