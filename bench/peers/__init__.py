"""Other programs that do what cdcwatch does, or a part of it. Only small programs of our own stand here.

The peers themselves come from the package registries, by their ordinary clients, into the cache: once, in one version.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class Missing(Exception):  # noqa: N818 - what its row says
    """A peer that can't be had here; the text says why."""


def stamp(*sources: Path) -> str:
    """Names what is built from these files."""
    return hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()[:12]
