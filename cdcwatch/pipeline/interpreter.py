"""How the interpreter is set for a process that closes while it reads."""

from __future__ import annotations

import gc
import sys
from typing import Final

_SWITCH_INTERVAL_S: Final = 0.001
"""A due close waits no longer than this for the interpreter while the stream or the topic is decoded."""
_GC_THRESHOLDS: Final = (50_000, 20, 50)


def tune() -> None:
    """For the whole process. A bite makes thousands of small tuples and no cycles: those are looked for seldom."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.freeze()
    gc.set_threshold(*_GC_THRESHOLDS)
