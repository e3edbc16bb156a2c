"""Deadline events as CloudEvents 1.0 in JSON.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/formats/json-format.md
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import orjson

from cdcwatch.deadline.rule import EVENT_TYPES
from cdcwatch.instant import format_instant, quoted_instant
from cdcwatch.lsn import format_lsn
from cdcwatch.table import key_texts
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from cdcwatch.deadline.rule import Derived
    from cdcwatch.decode.change import Unreadable
    from cdcwatch.decode.note import CloseFailure
    from cdcwatch.table import Key, WatchedTable

_new = tuple.__new__  # what a NamedTuple's own constructor comes to, in half the time
CONTENT_TYPE: Final = b"application/cloudevents+json; charset=UTF-8"


class Event(NamedTuple):
    """One record for the sink."""

    key: bytes | None
    """The canonical key's bytes; None: about the whole table, for every partition, or a `DeadLetter`."""
    value: bytes
    """UTF-8 JSON: a CloudEvent, or a dead letter's record."""
    topic: str = ""
    """Where it goes, or what `.dead` is added to; empty: the sink's only one."""


class DeadLetter(Event):
    """A record for `<topic>.dead`, which sinks tell from others by its key, None, and its class."""

    __slots__ = ()

    @property
    def id(self) -> bytes:
        """Its Kafka key: the id that the change's event would have had."""
        text: str = orjson.loads(self.value)["id"]
        return text.encode()


class Gap(NamedTuple):
    """A part of the stream that is missing from the topic."""

    reason: str
    from_lsn: int | None
    """What the topic tells is complete up to there; None where nobody knows."""
    to_lsn: int
    """And from there on again."""

    @property
    def data(self) -> dict[str, str | None]:
        """As its event has it."""
        from_text = None if self.from_lsn is None else format_lsn(self.from_lsn)
        return {"reason": self.reason, "from_lsn": from_text, "to_lsn": format_lsn(self.to_lsn)}


GAP_TYPE: Final = "stream.gap"
NO_ORDER: Final = b"\0"
"""Begins the Kafka keys of records that are about no order: no text of PostgreSQL holds this byte."""


class GapEvent(Event):
    """Goes to every partition under a key that no order has: compacted topics take no record without a key."""

    __slots__ = ()

    @property
    def record_key(self) -> bytes:
        """Its Kafka key."""
        text: str = orjson.loads(self.value)["id"]
        return NO_ORDER + text.encode()


class Stamp(NamedTuple):
    """What the events of one transaction share: the constant parts of their JSON, in order."""

    head: str
    """Up to the ordinal in the id."""
    time_part: str
    tail: str

    @classmethod
    def of(cls, commit_lsn: int, time_us: int) -> Stamp:
        """From the commit record's position and time."""
        return cls._made(format_lsn(commit_lsn), time_us, "", "false")

    @classmethod
    def of_snapshot(cls, lsn: int, time_us: int) -> Stamp:
        """From the position and time of a read of the table."""
        return cls._made(format_lsn(lsn), time_us, "snapshot-", "true")

    @classmethod
    def _made(cls, lsn_text: str, time_us: int, prefix: str, snapshot: str) -> Stamp:
        return _new(
            cls,
            (
                f'{{"specversion":"1.0","id":"{prefix}{lsn_text}-',
                f',"time":"{format_instant(time_us)}","data":{{"key":',
                f',"commit_lsn":"{lsn_text}","snapshot":{snapshot}}}}}',
            ),
        )


class Encoder(Protocol):
    """Makes a record of what a change came to."""

    def stamp(self, commit_lsn: int, time_us: int) -> Stamp:
        """What the events of one transaction share."""
        ...

    def change(self, key: Key, derived: Derived, stamp: Stamp, ordinal: int) -> Event:
        """The event of one row change."""
        ...

    def table_wide(self, derived: Derived, stamp: Stamp, ordinal: int) -> Event:
        """The event of a TRUNCATE."""
        ...

    def dead_letter(self, change: Unreadable, commit_lsn: int, ordinal: int) -> Event:
        """The record of a change that can't be understood."""
        ...

    def close_failure(self, failure: CloseFailure, commit_lsn: int, ordinal: int) -> Event:
        """The record of an order whose close has failed too often."""
        ...


class Unpublished:
    """For `sink.kind = "none"`: events are counted, their bytes never made."""

    _EVENT: Final = Event(b"", b"")
    _STAMP: Final = Stamp("", "", "")

    def stamp(self, commit_lsn: int, time_us: int) -> Stamp:  # noqa: ARG002
        """No texts."""
        return self._STAMP

    def change(self, key: Key, derived: Derived, stamp: Stamp, ordinal: int) -> Event:  # noqa: ARG002
        """An event without bytes."""
        return self._EVENT

    def table_wide(self, derived: Derived, stamp: Stamp, ordinal: int) -> Event:  # noqa: ARG002
        """An event without bytes."""
        return self._EVENT

    def dead_letter(self, change: Unreadable, commit_lsn: int, ordinal: int) -> Event:  # noqa: ARG002
        """An event without bytes."""
        return self._EVENT

    def close_failure(self, failure: CloseFailure, commit_lsn: int, ordinal: int) -> Event:  # noqa: ARG002
        """An event without bytes."""
        return self._EVENT


class EventEncoder:
    """Builds the bytes. A template, because the envelope is nine tenths constant and this runs for every change."""

    def __init__(
        self, table: WatchedTable, *, system_identifier: str, database: str, slot: str = "", topic: str = ""
    ) -> None:
        """`slot`: named in dead letters. `topic`: of the events."""
        self._slot, self._topic = slot, topic
        self.counts: dict[str, int] = dict.fromkeys(EVENT_TYPES, 0)
        self.source = source_of(system_identifier, database, table.qualified_name)
        source = _quoted(self.source)
        self._type_parts = {name: f'","source":{source},"type":"{name}","subject":' for name in EVENT_TYPES}
        self._key_names = [column.name for column in table.key]
        self._columns = [_quoted(column.name) for column in table.key]
        self._key_head = f"{{{self._columns[0]}:"
        self._integer_key = table.has_integer_key
        # 64-bit integers are texts in JSON, so that no reader loses digits.
        self._version_as_text = table.version is not None and table.version.type == "bigint"

    def stamp(self, commit_lsn: int, time_us: int) -> Stamp:
        """From the commit record's position and time."""
        return Stamp.of(commit_lsn, time_us)

    def change(self, key: Key, derived: Derived, stamp: Stamp, ordinal: int) -> Event:
        """The event of one row change."""
        if self._integer_key:
            text = str(key)
            subject = f'"{text}"'
            key_json = f"{self._key_head}{subject}}}"
            return _new(Event, (text.encode(), self._value(ordinal, subject, key_json, derived, stamp), self._topic))
        return self._any_key(key, ordinal, derived, stamp)

    def snapshot(self, key: Key, derived: Derived, stamp: Stamp) -> Event:
        """The event of a row found open when the table was read: its id is `snapshot-<LSN>-<key>`."""
        return self._any_key(key, _quoted(str(key))[1:-1], derived, stamp)

    def table_wide(self, derived: Derived, stamp: Stamp, ordinal: int) -> Event:
        """The event of a TRUNCATE: no key, `subject` `*`."""
        return Event(None, self._value(ordinal, '"*"', "null", derived, stamp), self._topic)

    def gap(self, gap: Gap, lsn: int, time_us: int) -> GapEvent:
        """The event of a gap, told with a read of the table at `lsn` and `time_us`."""
        return GapEvent(
            None,
            orjson.dumps(
                {
                    "specversion": "1.0",
                    "id": f"gap-{format_lsn(lsn)}",
                    "source": self.source,
                    "type": GAP_TYPE,
                    "subject": "*",
                    "time": format_instant(time_us),
                    "data": {"key": None, **gap.data, "commit_lsn": format_lsn(lsn), "snapshot": True},
                }
            ),
            self._topic,
        )

    def dead_letter(self, change: Unreadable, commit_lsn: int, ordinal: int) -> DeadLetter:
        """The record: where the change stands, why it can't be understood, and its bytes, bounded."""
        return self._letter(
            commit_lsn,
            ordinal,
            {
                "about": "row",
                "reason": change.reason,
                "plugin": change.plugin,
                "input_hex": change.input_hex,
                "truncated": change.is_truncated,
            },
        )

    def close_failure(self, failure: CloseFailure, commit_lsn: int, ordinal: int) -> DeadLetter:
        """The record: which order could not be closed, how often that was tried, and the last error."""
        return self._letter(
            commit_lsn,
            ordinal,
            {
                "about": "close",
                "reason": f"the close failed {counted(failure.attempts, 'time')}: {failure.error}",
                "key": dict(zip(self._key_names, failure.key, strict=False)),
                "deadline": format_instant(failure.deadline_us),
                "version": str(failure.version) if self._version_as_text else failure.version,
                "attempts": failure.attempts,
            },
        )

    def _letter(self, commit_lsn: int, ordinal: int, said: dict[str, Any]) -> DeadLetter:
        lsn_text = format_lsn(commit_lsn)
        place = {"slot": self._slot, "commit_lsn": lsn_text, "ordinal": ordinal, "id": f"{lsn_text}-{ordinal}"}
        return DeadLetter(None, orjson.dumps({**place, **said}), self._topic)

    def _any_key(self, key: Key, last_of_id: int | str, derived: Derived, stamp: Stamp) -> Event:
        text = str(key)
        pairs = zip(self._columns, key_texts(key, len(self._columns)), strict=True)
        key_json = f"{{{','.join(f'{name}:{_quoted(value)}' for name, value in pairs)}}}"
        return Event(text.encode(), self._value(last_of_id, _quoted(text), key_json, derived, stamp), self._topic)

    def _value(self, last_of_id: int | str, subject: str, key_json: str, derived: Derived, stamp: Stamp) -> bytes:
        kind, row, previous_us, reason = derived
        self.counts[kind] += 1
        head, time_part, tail = stamp
        deadline = status = version = previous = "null"
        if row is not None:
            deadline_us, status_text, version_number = row
            if deadline_us is not None:
                deadline = quoted_instant(deadline_us)
            if status_text is not None:
                status = _quoted_often(status_text)
            if version_number is not None:
                version = f'"{version_number}"' if self._version_as_text else str(version_number)
        if previous_us is not None:
            previous = quoted_instant(previous_us)
        reason_part = "" if reason is None else f'"reason":{_quoted_often(reason)},'
        return (
            f"{head}{last_of_id}{self._type_parts[kind]}{subject}{time_part}{key_json}"
            f',"deadline":{deadline},"previous_deadline":{previous},{reason_part}'
            f'"status":{status},"version":{version}{tail}'
        ).encode()


def source_of(system_identifier: str, database: str, table: str) -> str:
    """The CloudEvents source of a table's events."""
    return f"cdcwatch:{system_identifier}/{database}/{table}"


def for_partition(value: bytes, partition: int) -> bytes:
    """A table-wide event's copy for one partition, with its own id: nobody takes the second copy for a repetition."""
    head, source, rest = value.partition(b'","source":')
    return b"%b-p%d%b%b" % (head, partition, source, rest)


def _quoted(text: str) -> str:
    """The text as a JSON string."""
    return orjson.dumps(text).decode()


@lru_cache(maxsize=1024)
def _quoted_often(text: str) -> str:
    """The same for the few words that statuses and reasons are."""
    return _quoted(text)
