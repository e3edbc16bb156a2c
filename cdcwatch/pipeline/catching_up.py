"""`run --until`: how far confirming has come on its way there."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from cdcwatch.headway import stage

if TYPE_CHECKING:
    from cdcwatch.handoff.outbox import Outbox


def catching_up(target: int | None, outbox: Outbox) -> AbstractContextManager[Any]:
    """Shown while the block runs; nothing where no end is set."""
    if not target:
        return nullcontext()
    began = 0

    def done() -> float:
        nonlocal began
        now = outbox.flush_lsn
        began = began or now
        return max(0, now - began)

    def total() -> float | None:
        return None if not began else max(0, target - began)

    return stage("catching up", unit="bytes", total=total, asked=done)
