"""`watched.py COMMAND …`: `cdcwatch COMMAND …`, which tells of each order, too, the key and when the heap had it.

The program is whole and its code as it is. One method has something behind it: when `Agenda.apply` has returned, the
clock is read (microseconds since 1970) and a line is written, both after what is measured.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

from cdcwatch.cli.main import main
from cdcwatch.close.agenda import Agenda

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cdcwatch.close.closer import Update

_apply = Agenda.apply


def apply(self: Agenda, updates: Sequence[Update]) -> None:
    """The same, and tells of it."""
    _apply(self, updates)
    now_us = time.time_ns() // 1000
    os.write(1, "".join(f"{update[0]} {now_us}\n" for update in updates).encode())


if __name__ == "__main__":
    Agenda.apply = apply
    sys.exit(main())
