"""Log sequence numbers: 64-bit byte positions in the write-ahead log, as plain integers.

https://www.postgresql.org/docs/current/datatype-pg-lsn.html
"""

from __future__ import annotations

import re
from functools import lru_cache

INVALID_LSN = 0

_TEXT = re.compile(r"([0-9A-Fa-f]{1,8})/([0-9A-Fa-f]{1,8})")


@lru_cache(maxsize=16)  # a commit repeats what its begin said
def parse_lsn(text: str) -> int:
    """`0/1A2B390` to an integer. ValueError for anything else."""
    match = _TEXT.fullmatch(text)
    if match is None:
        raise ValueError(f"not an LSN (like 0/1A2B390): {text!r}")
    return int(match[1], 16) << 32 | int(match[2], 16)


def format_lsn(lsn: int) -> str:
    """An integer to PostgreSQL's text form, `0/1A2B390`."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"
