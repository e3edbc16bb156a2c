"""The database's encoding by the name that Python has for it.

https://www.postgresql.org/docs/current/multibyte.html#MULTIBYTE-CHARSET-SUPPORTED
"""

from __future__ import annotations

import codecs
from typing import Final

_OWN_NAMES: Final = {"KOI8R": "koi8_r", "KOI8U": "koi8_u", "SQL_ASCII": "", "UTF8": ""}


def codec(encoding: str) -> str:
    """The codec of a server encoding; empty for UTF8, for SQL_ASCII, which is none, and for what we don't know."""
    name = _OWN_NAMES.get(encoding, encoding.replace("WIN", "cp"))
    try:
        return codecs.lookup(name).name if name else ""
    except LookupError:
        return ""
