"""The documentation's code blocks, and the commands in them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from markdown_it import MarkdownIt

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_OPERATORS = re.compile(r"[|&;<>()]+")


class Block(NamedTuple):
    """A code block."""

    page: str
    line: int
    language: str
    """Empty where it has none."""
    words: tuple[str, ...]
    """What stands after the language, for tests."""
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(page: Path) -> Iterator[Block]:
    """Of a page, in order."""
    for token in MarkdownIt().parse(page.read_text(encoding="utf-8")):
        if token.type in {"fence", "code_block"}:
            language, *words = token.info.split() or [""]
            yield Block(str(page.relative_to(ROOT)), token.map[0] + 1, language, tuple(words), token.content)


def inline_commands(page: Path) -> Iterator[list[str]]:
    """What stands in the running text between backticks and begins with `cdcwatch `."""
    for token in MarkdownIt().enable("table").parse(page.read_text(encoding="utf-8")):
        for child in token.children or []:
            if child.type == "code_inline" and child.content.startswith("cdcwatch "):
                yield from commands(child.content)


def commands(text: str) -> Iterator[list[str]]:
    """The simple commands of a shell's text, each as its words: pipes and lists are taken apart, redirections left out."""
    pending = ""
    for line in text.splitlines():
        pending += line + "\n"
        lexer = shlex.shlex(pending, posix=True, punctuation_chars="|&;<>()")
        lexer.whitespace_split = True
        lexer.commenters = "#"
        try:
            words = list(lexer)
        except ValueError:
            continue  # a quote that the next line ends
        pending = ""
        command: list[str] = []
        is_target = False
        for word in words:
            if _OPERATORS.fullmatch(word):
                is_target = word in {">", "<", ">>"}
                if command and not is_target:
                    yield command
                    command = []
            elif not is_target:
                command.append(word)
            else:
                is_target = False
        if command:
            yield command
    if pending:
        raise ValueError(f"a quote without an end: {pending}")
