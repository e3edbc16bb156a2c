"""Unpacking archives with every Python: `filter` came with 3.11.4, and Debian 12 has 3.11.2."""

from __future__ import annotations

import tarfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def unpack(archive: Path, directory: Path) -> None:
    """All of it, without what would lie outside of the directory where this Python can tell."""
    with tarfile.open(archive) as opened:
        if hasattr(tarfile, "data_filter"):
            opened.extractall(directory, filter="data")
        else:
            opened.extractall(directory)  # noqa: S202  ours, or pinned by its version
