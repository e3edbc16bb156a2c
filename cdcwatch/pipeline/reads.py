"""The reads of the tables before the stream begins: of all, or of those that were added to the configuration."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from cdcwatch.backoff import Backoff
from cdcwatch.pipeline.beginning import StoppedError, added_tables
from cdcwatch.pipeline.reconciliation import TableRead, publish_reconciled
from cdcwatch.pipeline.snapshot import snapshots_of

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Mapping, Sequence

    from cdcwatch.handoff.progress import Origin, Progress
    from cdcwatch.handoff.sink import Sink
    from cdcwatch.pipeline.inquiry import Inquiry, Writer
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
        begun: Callable[[Sequence[Watch]], None],
        awaits: Callable[[str], None],
        ended: threading.Event,
        reads_all: bool,
    ) -> None:
        """`begun` is called with the tables whose state is held, or needs not be; perhaps more than once.

        `awaits` is told what is waited for, and an empty text afterwards. `ended`: the service is to stop. `reads_all`:
        asked for.
        """
        self._settings, self._watches, self._inquiry = settings, watches, inquiry
        self._begun, self._awaits, self._ended, self._reads_all = begun, awaits, ended, reads_all

    def publish(
        self, sink: Sink, facts: SlotFacts, origin: Origin, before: Progress | None, reason: str | None
    ) -> Progress:
        """As of `publish_reconciled`. StoppedError when the service is to stop before it has read."""
        added = self._added(origin, before)
        watches = self._to_be_read(facts, added, before, reason)
        if added and self._settings.slot.plugin == "pgoutput":
            # The database is the arbiter: orders of the other tables are closed meanwhile. Of those that are read again
            # only beside a gap, which says that more may be missing: what came and went before the read is not in it.
            held = added if reason is not None else watches
            self._begun([watch for watch in self._watches if watch not in held])
            self._await_writers(added)
        with snapshots_of(self._settings.postgres.dsn, [watch.table for watch in watches]) as snapshots:
            forgive_before(watches, snapshots[0].mark.lsn)
            self._begun(self._watches)
            reads = [
                TableRead(snapshot, watch.table, watch.encoder(origin), watch.topic)
                for snapshot, watch in zip(snapshots, watches, strict=True)
            ]
            return publish_reconciled(sink, reads, facts=facts, origin=origin, before=before, reason=reason)

    def _added(self, origin: Origin, before: Progress | None) -> Sequence[Watch]:
        oids = {table.oid for table in added_tables(before.origin, origin)} if before is not None else set()
        return [watch for watch in self._watches if watch.table.oid in oids]

    def _to_be_read(
        self, facts: SlotFacts, added: Sequence[Watch], before: Progress | None, reason: str | None
    ) -> Sequence[Watch]:
        if not added or before is None or reason is not None or self._reads_all:
            return self._watches
        mark = before.snapshot
        if mark is None or facts.confirmed_flush_lsn >= mark.lsn:
            return added
        # The stream still holds what the last read has shown, and the record has room for one read: it is done again.
        last = mark.visibility.only_tables
        return [watch for watch in self._watches if watch in added or last is None or watch.table.oid in last]

    def _await_writers(self, added: Sequence[Watch]) -> None:
        """Until no transaction is open that may have changed a table before the publication had it.

        The stream leaves out what it did before, so the read must show it. One that has not written to the table yet
        does so after the publication's change, and the stream tells of that.
        """
        names = {watch.table.oid: watch.table.qualified_name for watch in added}
        backoff, told = Backoff(first_s=0.05, most_s=2.0), ""
        awaited = self._inquiry.writers(names)
        try:
            while awaited:
                wait_s, waits = backoff.next_s(), _waits(names, awaited)
                self._awaits(waits)
                if wait_s >= 1 and waits != told:
                    told = waits
                    _log.info("%s", waits)
                if self._ended.wait(wait_s):
                    raise StoppedError
                awaited &= self._inquiry.writers(names)
        finally:
            self._awaits("")


def _waits(names: Mapping[int, str], awaited: Collection[Writer]) -> str:
    """For whom, of the first table that has any."""
    name = next(name for oid, name in names.items() if any(writer.oid == oid for writer in awaited))
    pids = sorted({writer.pid for writer in awaited if names[writer.oid] == name and writer.pid is not None})
    whose = f"of pid {', '.join(map(str, pids))}" if pids else "in pg_prepared_xacts"
    return f"{name} was added: waiting for the transaction {whose}, which has written to it"


def unread(watches: Sequence[Watch], before: Progress | None, after: Progress) -> Sequence[Watch]:
    """The tables that the topics were not told of anew at this start: the stream goes on after what they hold."""
    if before is None:
        return []
    mark = after.snapshot
    if mark is None or mark == before.snapshot:
        return watches
    only = mark.visibility.only_tables
    return [watch for watch in watches if only is not None and watch.table.oid not in only]


def forgive_before(watches: Sequence[Watch], lsn: int) -> None:
    """What is missing from the stream up to there: the tables were read after it."""
    for watch in watches:
        watch.forgive_before(lsn)
