"""One watched table of the slot: its rule, its events, its closing, its partitions, and the warden over it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from cdcwatch.deadline.event import EventEncoder, Unpublished
from cdcwatch.deadline.rule import EVENT_TYPES, DeadlineRule
from cdcwatch.decode.leaves import Leaves
from cdcwatch.decode.wal2json import changes_left_out
from cdcwatch.handoff.progress import TableMark
from cdcwatch.log import about_table
from cdcwatch.pipeline.arrivals import Arrivals
from cdcwatch.pipeline.board import Shown
from cdcwatch.pipeline.closing import Closing
from cdcwatch.pipeline.inquiry import Inquiry
from cdcwatch.pipeline.partitions import Partitions
from cdcwatch.pipeline.snapshot import orders_of
from cdcwatch.pipeline.warden import REMEDY, TableChangedError, Warden

if TYPE_CHECKING:
    from collections.abc import Callable

    from cdcwatch.deadline.event import Encoder
    from cdcwatch.handoff.progress import Origin
    from cdcwatch.pipeline.closing import Observer
    from cdcwatch.pipeline.reader import Reader
    from cdcwatch.settings import Settings
    from cdcwatch.table import Attachment, WatchedTable

_STOP_S: Final = 5.0


class Watch:
    """Lives as long as the service."""

    def __init__(self, settings: Settings, table: WatchedTable, *, wake: Callable[[], None]) -> None:
        """`settings`: with this table's own. `wake` ends the reader's wait."""
        self.table, self.rule = table, DeadlineRule(table)
        self.topic = settings.topic
        self.mark = TableMark(table.oid, table.qualified_name, table.publication)
        self._settings, self._inquiry = settings, Inquiry(settings)
        self.name = settings.table.name
        self.is_sound = True
        """Until DDL makes it another table than the one that the stream was begun with."""
        self.closing: Closing | None = None
        self.arrivals: Arrivals | None = None
        self.leaves: Leaves | None = None
        self.warden: Warden | None = None
        self._partitions: Partitions | None = None
        self._forgiven_lsn = 0
        # By whoever makes events: two threads at once could lose a count.
        self._streamed: dict[str, int] = dict.fromkeys(EVENT_TYPES, 0)
        self._read = dict(self._streamed)
        if table.leaves is not None:
            self.arrivals = Arrivals(wake, self.topic if settings.is_shared else None)
            if settings.slot.plugin == "wal2json":
                self.leaves = Leaves(table, partial(self._inquiry.standing, table.oid))

    def close_with(
        self, observer: Observer, *, stream_lags: Callable[[], bool], has_told: Callable[[int], bool]
    ) -> None:
        """Its orders are to be closed. Unless `close.action` says otherwise."""
        if self._settings.close.action != "none":
            self.closing = Closing(self._settings, self.table, observer, stream_lags=stream_lags, has_told=has_told)

    @property
    def shown(self) -> Shown:
        """For whoever looks at the service."""
        action = self._settings.close.action if self.closing else "none"
        return Shown(self.name, self.topic, action, self.closing.agenda if self.closing else None, len(self.table.key))

    def start_closing(self) -> None:
        """Once."""
        if self.closing is not None and not self.closing.is_started:
            with about_table(self.name if self._settings.is_shared else ""):
                self.closing.start()

    def close_if_sound(self) -> None:
        """Ends the closing of a table that DDL has changed: its statements may mean another table by now."""
        if not self.is_sound and self.closing is not None:
            self.closing.stop(_STOP_S)
            self.closing = None

    # -- events ------------------------------------------------------------------------------------------------------

    @property
    def event_counts(self) -> dict[str, int]:
        """By type: of the stream and of reads of the table."""
        return {kind: self._streamed[kind] + self._read[kind] for kind in EVENT_TYPES}

    def encoder(self, origin: Origin, *, of_stream: bool = False) -> EventEncoder:
        """Of its events."""
        encoder = EventEncoder(
            self.table,
            system_identifier=origin.system_identifier,
            database=origin.database,
            slot=origin.slot,
            topic=self.topic,
        )
        encoder.counts = self._streamed if of_stream else self._read
        return encoder

    def stream_encoder(self, origin: Origin) -> Encoder:
        """Of what the stream tells: with no sink, no bytes are made."""
        return self.encoder(origin, of_stream=True) if self._settings.sink.kind != "none" else Unpublished()

    # -- what DDL does to it -----------------------------------------------------------------------------------------

    def guard(
        self,
        origin: Origin,
        reader: Reader,
        *,
        changed: Callable[[Watch, TableChangedError], None],
        renewed: Callable[[str], None],
    ) -> None:
        """Looks after the table from now on: `changed` and `renewed` as of the warden."""
        self._partitions = self._made_partitions(origin, reader)
        self.warden = Warden(
            self.table,
            look=self._inquiry.table,
            name_of=self._inquiry.name_of,
            changed=partial(changed, self),
            renewed=renewed,
            is_followed=self._inquiry.is_followed,
            seen=self._partitions.look if self._partitions else lambda _table: None,
        )
        self.warden.start()

    def _made_partitions(self, origin: Origin, reader: Reader) -> Partitions | None:
        """Where the table has some."""
        arrivals, closing = self.arrivals, self.closing
        if arrivals is None:
            return None
        read = partial(orders_of, self._settings.postgres.dsn, self.table, self.encoder(origin))
        return Partitions(
            self.table,
            leaves=self.leaves,
            arrivals=arrivals,
            read=read if self._settings.sink.kind != "none" else None,
            reload=closing.reload if closing else lambda _emptied: None,
            passed=reader.has_passed,
            current_lsn=self._inquiry.current_lsn,
            named=self._inquiry.named,
        )

    def begin(self, known: tuple[Attachment, ...] | None) -> None:
        """Before the stream is read; `known` is of the progress record: the partitions that the topic knows."""
        if self._partitions is not None:
            self._partitions.begin(known)

    def forgive_before(self, lsn: int) -> None:
        """What is missing from the stream up to there: the table was read after it."""
        self._forgiven_lsn = lsn
        if self.leaves is not None:
            self.leaves.forgive_before(lsn)

    def complaint(self, said: str, reader: Reader) -> TableChangedError | None:
        """What a warning of the server's means for the table: wal2json leaves out changes that have no key."""
        left_out = changes_left_out(said)
        if left_out is None or not reader.has_passed(self._forgiven_lsn):
            return None
        schema, name = left_out
        if (schema, name) != (self.table.schema, self.table.name) and not (
            self.leaves and self.leaves.has(schema, name)
        ):
            return None
        return TableChangedError(
            f"UPDATE or DELETE of {schema}.{name} is missing from the stream: the table had no replica identity then",
            remedy=REMEDY,
        )

    def request_stop(self) -> None:
        """Ends the warden."""
        if self.warden is not None:
            self.warden.request_stop()
