"""The publisher's thread: outbox -> sink -> watermark. Opens the sink anew whenever it fails, and goes on in order."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Final

from cdcwatch import failpoints
from cdcwatch.backoff import Backoff
from cdcwatch.errors import CdcwatchError, PreconditionError, UnavailableError
from cdcwatch.handoff.sink import FencedError
from cdcwatch.log import at_lsn, told_of
from cdcwatch.pipeline.beginning import StartOverError, StoppedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.handoff.outbox import Outbox
    from cdcwatch.handoff.progress import Progress
    from cdcwatch.handoff.sink import Sink

TRANSACTION_EVENTS: Final = 10_000
_BULK_EVENTS: Final = 1000
_BULK_WAIT_S: Final = 0.02
_IDLE_WAIT_S: Final = 0.5
_DRAIN_NAP_S: Final = 0.5
_REPORT_WAIT_S: Final = 0.001
"""While delivery reports are due, they are asked for this often."""

_log = logging.getLogger(__name__)


class Publisher(threading.Thread):
    """Runs from the moment the slot is ours.

    `begin` gets what the sink holds the first time it opens, and gives what it holds once the reader may begin;
    `owns_slot` asks the database whether the slot is still ours, which tells a broker's own time-out from another
    process; `failing` is called after every failure. `stands_by`: a sink that can't
    be opened the first time is waited for.
    """

    def __init__(
        self,
        sink: Sink,
        outbox: Outbox,
        *,
        begin: Callable[[Sink, Progress | None], Progress],
        owns_slot: Callable[[], bool],
        failed: Callable[[CdcwatchError], None],
        failing: Callable[[], None] = lambda: None,
        stands_by: bool = True,
    ) -> None:
        super().__init__(name="publisher", daemon=True)  # a call into a broker that is away can't be interrupted
        self._sink, self._outbox = sink, outbox
        self._begin, self._owns_slot, self._failed, self._failing = begin, owns_slot, failed, failing
        self._stop_requested, self._drain_nap = threading.Event(), threading.Event()
        self._backoff = Backoff(first_s=0.2, most_s=5.0)
        self._begun, self._stands_by = False, stands_by
        self._bulk_events = 0  # of the last transaction
        self.is_open = False
        self.reopen_count = 0
        self.last_error: str | None = None

    def request_stop(self) -> None:
        """Ends once the outbox is drained, or at once when nothing was begun."""
        self._stop_requested.set()

    def run(self) -> None:
        """Until the outbox is closed and drained, or failed."""
        while (wait_s := self.step(_IDLE_WAIT_S)) is not None:
            if wait_s and self._stop_requested.wait(wait_s):
                self._drain_nap.wait(min(wait_s, _DRAIN_NAP_S))  # while it drains it tries more often, never at once

    def step(self, idle_wait_s: float) -> float | None:
        """Opens the sink, or publishes what is there; with nothing to do it waits for so long at most.

        Seconds to wait before the next step. None: it has ended.
        """
        if self._outbox.is_drained or (self._stop_requested.is_set() and not self._begun):
            self.is_open = False
            self._sink.close()
            return None
        try:
            if not self.is_open:
                self._open()
            self._publish(idle_wait_s)
        except CdcwatchError as error:
            is_stopping = self._stop_requested.is_set() and isinstance(error, UnavailableError)
            if not self._begun and (is_stopping or isinstance(error, StoppedError)):
                self._sink.close()
                return None
            if self._passes(error):
                return self._fail(error)
            self.is_open = False
            self._failed(error)
            return None
        return 0.0

    def _passes(self, error: CdcwatchError) -> bool:
        """Whether to try again."""
        if isinstance(error, FencedError):
            return self._owned_still()
        if not self._begun and not self._stands_by:
            return False
        # A right taken away, a topic gone: closing goes on meanwhile, and it is mended without a restart.
        return isinstance(error, UnavailableError) or (self._begun and isinstance(error, PreconditionError))

    def _open(self) -> None:
        progress = self._sink.open()
        failpoints.reached("sink.opened")
        if self._begun:
            self._reopened(progress)
        else:
            self._outbox.begin_at(self._begin(self._sink, progress).position)
            self._begun = True
        self.is_open = True
        self._outbox.is_sink_failing = False
        if self._outbox.is_idle:
            self.last_error = None
        _log.info("publisher: the sink is open", extra=at_lsn(self._outbox.flush_lsn))

    def _reopened(self, progress: Progress | None) -> None:
        if not self._sink.is_transactional:
            self._outbox.rewind(None)
            return
        if not self._outbox.accounts_for(progress):
            # It had the slot for a moment, and lost it before it confirmed anything: only the topic tells.
            raise StartOverError("another process has written to the topic meanwhile")
        self._outbox.rewind(progress)

    def _publish(self, idle_wait_s: float) -> None:
        outbox, sink = self._outbox, self._sink
        if self._sink.is_transactional and self._bulk_events >= _BULK_EVENTS and idle_wait_s:
            # There is a backlog: larger transactions cost the broker less.
            self._stop_requested.wait(_BULK_WAIT_S)
        wait_s = idle_wait_s if outbox.is_idle else min(idle_wait_s, _REPORT_WAIT_S)
        batches = outbox.take(TRANSACTION_EVENTS, wait_s)
        self._bulk_events = sum(len(batch.events) for batch in batches)
        if batches:
            if self._bulk_events:
                failpoints.reached("publish.taken", batches[-1].progress.position.open_changes)
            sink.publish(batches)
        acknowledged = sink.acknowledged()
        if acknowledged:
            before = outbox.durable
            outbox.acknowledge(acknowledged)
            if outbox.durable != before:
                # Neither opening nor what was acknowledged past it proves anything: what is refused is refused again.
                self._backoff.reset()
                self.last_error = None
            failpoints.reached("publish.acknowledged", outbox.durable.open_changes)

    def _owned_still(self) -> bool:
        try:
            return self._owns_slot()
        except UnavailableError:
            return True  # nobody can have taken it from a server that is away; the next attempt asks again

    def _fail(self, error: CdcwatchError) -> float:
        wait_s = self._backoff.next_s()
        self.is_open = False
        self.reopen_count += 1
        remedy = f" (remedy: {error.remedy})" if str(error) != self.last_error else ""
        self.last_error = str(error)
        self._outbox.is_sink_failing = True
        self._failing()
        _log.warning("publisher: %s; again in %.1f s%s", error, wait_s, remedy, extra=told_of(error))
        self._sink.close()
        return wait_s
