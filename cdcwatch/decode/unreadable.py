"""A change of which a value can't be understood: told with its bytes, so that the stream can go on."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cdcwatch.decode.change import Unreadable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

MOST_INPUT_BYTES: Final = 2048
VALUE_ERRORS: Final = (ValueError, KeyError, TypeError, IndexError, AttributeError, struct.error)
"""What reading a value may raise. Never DecodeError: what is wrong with every row of a table stops the stream."""


def unreadable(plugin: str, data: bytes, parts: Iterable[tuple[str, Callable[[], object]]]) -> Unreadable:
    """`parts`: what a change is made of, and how each of it is read; the reason is the first that can't be.

    Names columns and kinds of trouble, never values: those are in the input alone.
    """
    return Unreadable(_reason(parts), plugin, data[:MOST_INPUT_BYTES].hex(), len(data) > MOST_INPUT_BYTES)


def _reason(parts: Iterable[tuple[str, Callable[[], object]]]) -> str:
    for what, read in parts:
        try:
            read()
        except UnicodeError:
            return f"{what} is not valid UTF-8"
        except KeyError:
            return f"{what} is missing"
        except VALUE_ERRORS:
            return f"{what} can't be understood"
    return "it can't be understood"
