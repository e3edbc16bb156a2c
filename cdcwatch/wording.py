"""How counts read. Pure."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """`1 order`, `2 orders`: for nouns whose plural ends in s."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
