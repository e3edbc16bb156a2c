"""How counts read. Pure."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 order`, `2 orders`: for nouns whose plural ends in s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def printable(text: str) -> str:
    """For a terminal or one line: what is no character, as ESC in a key, comes out as a replacement character."""
    return "".join(one if one.isprintable() else "\N{REPLACEMENT CHARACTER}" for one in text)
