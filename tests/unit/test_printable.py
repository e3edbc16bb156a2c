"""A key is text that somebody else chose: it must not drive a terminal."""

from __future__ import annotations

from cdcwatch.cli.output import table_text
from cdcwatch.wording import printable


def test_what_is_no_character_is_replaced() -> None:
    assert printable("a\x1b[2Jb\nc ü 漢") == "a\N{REPLACEMENT CHARACTER}[2Jb\N{REPLACEMENT CHARACTER}c ü 漢"


def test_tables_show_cells_as_one_line_each() -> None:
    assert table_text(("key",), [("a\x1b\nb",), ("c",)]).splitlines() == ["key", "a\ufffd\ufffdb", "c"]
