"""The reads of the tables before the stream begins: of all, or of those that were added to the configuration."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cdcwatch.backoff import Backoff
from cdcwatch.errors import UnavailableError
from cdcwatch.pipeline.beginning import added_tables
from cdcwatch.pipeline.reconciliation import TableRead, publish_reconciled
from cdcwatch.pipeline.snapshot import snapshots_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from cdcwatch.handoff.progress import Origin, Progress
    from cdcwatch.handoff.sink import Sink
    from cdcwatch.pipeline.inquiry import Inquiry
    from cdcwatch.pipeline.watch import Watch
    from cdcwatch.settings import Settings
    from cdcwatch.slot.stream import SlotFacts

_log = logging.getLogger(__name__)


class Reads:
    """In the publisher's thread, while nothing is read from the slot."""

    def __init__(
        self,
        settings: Settings,
        watches: Sequence[Watch],
        inquiry: Inquiry,
        *,
        begun: Callable[[], None],
        ended: threading.Event,
        reads_all: bool,
    ) -> None:
        """`begun` is called once the tables' state is held. `ended`: the service is to stop. `reads_all`: asked for."""
        self._settings, self._watches, self._inquiry = settings, watches, inquiry
        self._begun, self._ended, self._reads_all = begun, ended, reads_all

    def publish(
        self, sink: Sink, facts: SlotFacts, origin: Origin, before: Progress | None, reason: str | None
    ) -> Progress:
        """As of `publish_reconciled`."""
        watches = self._to_be_read(facts, origin, before, reason)
        with snapshots_of(self._settings.postgres.dsn, [watch.table for watch in watches]) as snapshots:
            forgive_before(watches, snapshots[0].mark.lsn)
            self._begun()
            reads = [
                TableRead(snapshot, watch.table, watch.encoder(origin), watch.topic)
                for snapshot, watch in zip(snapshots, watches, strict=True)
            ]
            return publish_reconciled(sink, reads, facts=facts, origin=origin, before=before, reason=reason)

    def _to_be_read(
        self, facts: SlotFacts, origin: Origin, before: Progress | None, reason: str | None
    ) -> Sequence[Watch]:
        added = {table.oid for table in added_tables(before.origin, origin)} if before is not None else set()
        if not added or before is None:
            return self._watches
        if self._settings.slot.plugin == "pgoutput":
            self._await_running()
        mark = before.snapshot
        # The record has room for one read.
        is_behind = mark is not None and facts.confirmed_flush_lsn < mark.lsn
        if reason is not None or self._reads_all or is_behind:
            return self._watches
        return [watch for watch in self._watches if watch.table.oid in added]

    def _await_running(self) -> None:
        """Until no transaction runs that may have changed a table before the publication had it.

        The stream leaves out what it did before, so the read must show it.
        """
        backoff = Backoff(first_s=0.05, most_s=2.0)
        first_xid, _ = self._inquiry.running()
        while (oldest_xid := self._inquiry.running()[1]) < first_xid:
            wait_s = backoff.next_s()
            if wait_s >= 1:
                _log.info("a table was added: waiting for the transaction %d, which was running then", oldest_xid)
            if self._ended.wait(wait_s):
                raise UnavailableError("stopped before the added table was read", remedy="start again")


def forgive_before(watches: Sequence[Watch], lsn: int) -> None:
    """What is missing from the stream up to there: the tables were read after it."""
    for watch in watches:
        watch.forgive_before(lsn)
