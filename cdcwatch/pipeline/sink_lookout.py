"""Whether the sink acknowledges: says once, within seconds, that it doesn't, and once that it does again.

A broker that goes away is silent for as long as a transaction may take; nobody should have to wait for that.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from cdcwatch.lsn import format_lsn
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.handoff.outbox import Outbox

SILENT_S: Final = 3.0
"""A transaction takes milliseconds to a second."""
_LOOK_S: Final = 1.0

_log = logging.getLogger(__name__)


class SinkLookout(threading.Thread):
    """Looks at the outbox once a second. Says nothing where the publisher has told of a failure already."""

    def __init__(
        self, outbox: Outbox, why_unreachable: Callable[[], str], *, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        """`why_unreachable` asks it, for some seconds at most; empty: it answers."""
        super().__init__(name="sink lookout", daemon=True)  # a question to a broker that is away can't be interrupted
        self._outbox, self._why_unreachable, self._now_s = outbox, why_unreachable, now_s
        self._stop_requested = threading.Event()
        self._since_s: float | None = None
        """Since when it is known to be silent."""

    def request_stop(self) -> None:
        """Ends it."""
        self._stop_requested.set()

    def run(self) -> None:
        """Until stopped."""
        while not self._stop_requested.wait(_LOOK_S):
            self.look()

    def look(self) -> None:
        """Says what is new."""
        outbox, silent_s = self._outbox, self._silent_s()
        if self._since_s is None and silent_s > SILENT_S:
            self._since_s = self._now_s() - silent_s
            if not outbox.is_sink_failing:
                self._tell_silent()
        elif self._since_s is not None and silent_s <= SILENT_S and not outbox.is_sink_failing:
            away_s, self._since_s = self._now_s() - self._since_s, None
            _log.info("sink: it acknowledges again, after %.0f s", away_s, extra={"lsn": format_lsn(outbox.flush_lsn)})

    def _silent_s(self) -> float:
        """How long nothing has been acknowledged though something waits; 0: nothing waits."""
        oldest_s, acknowledged_s = self._outbox.oldest_age_s, self._outbox.acknowledged_age_s
        return oldest_s if acknowledged_s is None else min(oldest_s, acknowledged_s)

    def _tell_silent(self) -> None:
        outbox, why = self._outbox, self._why_unreachable()
        if self._silent_s() <= SILENT_S or outbox.is_sink_failing or self._stop_requested.is_set():
            return  # it came back while it was asked, or somebody has told
        said = f"unreachable: {why}" if why else "it answers, and acknowledges nothing"
        _log.warning(
            "sink: %s; %s in flight, none acknowledged for %.0f s; nothing is confirmed, orders are closed meanwhile",
            said,
            counted(outbox.unacknowledged_events, "event"),
            self._silent_s(),
            extra={"lsn": format_lsn(outbox.flush_lsn), "reason": why or "silent"},
        )
