"""The configuration's sections and keys, with their defaults.

Passwords live in the DSN or in libpq's own places (PGPASSFILE, a service file); the repr of the settings shows neither.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

LIST_OF_TABLES = "[[table]]"
"""Stands for the key `table` where it is a list."""
_ALTERNATIVE = re.compile(r"(?:[^|]|\|\|)+")

Seconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
_SLOT_NAME, _TOPIC_NAME, _ADDRESS = r"^[a-z0-9_]{1,63}$", r"^[a-zA-Z0-9._-]{1,240}$", r"^(.*:\d{1,5})?$"
PATTERNS_IN_WORDS = {
    _SLOT_NAME: "lower-case letters, digits and _, at most 63",
    _TOPIC_NAME: "letters, digits, dots, _ and -, at most 240",
    _ADDRESS: "host:port, or an empty text for none",
}
SlotName = Annotated[str, Meta(pattern=_SLOT_NAME)]
TopicName = Annotated[str, Meta(pattern=_TOPIC_NAME)]


class _Section(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=False):
    """A section; its fields are its keys."""


class PostgresSettings(_Section, frozen=True):
    """How to reach the primary. Empty: libpq's own environment."""

    dsn: str = ""
    replication_dsn: str = ""

    def for_replication(self) -> str:
        """The DSN of the walsender: `dsn` unless that one leads through a pooler."""
        return self.replication_dsn or self.dsn

    def __repr__(self) -> str:
        return "PostgresSettings(dsn=…, replication_dsn=…)"


class SlotSettings(_Section, frozen=True):
    """The replication slot."""

    name: SlotName = "cdcwatch_orders"
    plugin: Literal["wal2json", "pgoutput"] = "wal2json"
    publication: Annotated[str, Meta(min_length=1, max_length=63)] = "cdcwatch_orders"
    failover: bool = False
    heartbeat_s: Seconds = 0


class TableSettings(_Section, frozen=True):
    """The watched table and its columns."""

    name: Annotated[str, Meta(min_length=1)] = "public.orders"
    key: tuple[str, ...] = ()
    deadline: Annotated[str, Meta(min_length=1)] = "expires_at"
    status: str = "status"
    version: str = "version"
    open: tuple[str, ...] = ("pending",)
    time_zone: str = ""


class ClaimSettings(_Section, frozen=True):
    """`action = "claim"`: the close calls something outside."""

    url: str = ""
    processing: str = "closing"
    failed: str = "close_failed"
    batch_rows: Count = 200
    concurrency: Count = 16
    timeout_s: Annotated[float, Meta(gt=0)] = 10
    attempts: Count = 8
    stuck_after_s: Seconds = 300

    def __repr__(self) -> str:
        return f"ClaimSettings(url=…, processing={self.processing!r}, failed={self.failed!r})"


class CloseSettings(_Section, frozen=True):
    """What happens at the deadline."""

    action: Literal["update", "delete", "claim", "none"] = "update"
    status: str = "expired"
    set: dict[str, str] = {}
    batch_rows: Annotated[int, Meta(ge=1, le=10_000)] = 500
    concurrency: Annotated[int, Meta(ge=1, le=64)] = 2
    attempts: Count = 8
    also: str = ""
    max_clock_offset_ms: Annotated[int, Meta(ge=1)] = 1000
    max_clock_uncertainty_ms: Annotated[int, Meta(ge=1)] = 50
    claim: ClaimSettings = ClaimSettings()


class TableEntry(TableSettings, frozen=True):
    """One of `[[table]]`: the keys of [table], a topic of its own, and a close rule of its own."""

    topic: TopicName | None = None
    close: CloseSettings | None = None


class SweepSettings(_Section, frozen=True):
    """The compensation scan."""

    interval_s: Seconds = 30
    grace_ms: Annotated[int, Meta(ge=0)] = 5000
    batch_rows: Count = 1000
    rows_per_s: Count = 5000
    weight: Annotated[float, Meta(gt=0)] = 1
    dsn: str = ""
    max_delay_ms: Annotated[int, Meta(ge=0)] = 500

    def __repr__(self) -> str:
        return f"SweepSettings(interval_s={self.interval_s}, dsn=…)"


class WindowSettings(_Section, frozen=True):
    """Which deadlines are held in memory; the others wait in the table."""

    horizon_s: Annotated[float, Meta(gt=0)] = 3600
    max_entries: Annotated[int, Meta(ge=1000)] = 5_000_000


class SinkSettings(_Section, frozen=True):
    """Where deadline events become durable."""

    kind: Literal["kafka", "file", "redis", "none"] = "kafka"


class KafkaSettings(_Section, frozen=True):
    """The topic. `client` is handed to librdkafka as it is."""

    bootstrap_servers: Annotated[str, Meta(min_length=1)] = "localhost:9092"
    topic: TopicName = "orders.deadlines"
    delivery: Literal["exactly_once", "at_least_once"] = "exactly_once"
    create_topic: bool = False
    partitions: Count = 6
    replication_factor: Annotated[int, Meta(ge=-1, le=32767)] = -1
    group: Annotated[str, Meta(max_length=255)] = ""
    client: dict[str, str | int | float | bool] = {}

    def __repr__(self) -> str:
        return f"KafkaSettings(bootstrap_servers={self.bootstrap_servers!r}, topic={self.topic!r}, client=…)"


class FileSettings(_Section, frozen=True):
    """The file sink."""

    path: str = "deadlines.jsonl"


class RedisSettings(_Section, frozen=True):
    """The Redis sink."""

    url: str = "redis://localhost:6379/0"
    stream: str = "orders.deadlines"

    def __repr__(self) -> str:
        return f"RedisSettings(url=…, stream={self.stream!r})"


class TelemetrySettings(_Section, frozen=True):
    """The HTTP port and the log."""

    listen: Annotated[str, Meta(pattern=_ADDRESS)] = "127.0.0.1:9464"
    log_format: Literal["text", "json"] = "text"


class Settings(_Section, frozen=True):
    """The whole configuration."""

    postgres: PostgresSettings = PostgresSettings()
    slot: SlotSettings = SlotSettings()
    table: TableSettings = TableSettings()
    close: CloseSettings = CloseSettings()
    sweep: SweepSettings = SweepSettings()
    window: WindowSettings = WindowSettings()
    sink: SinkSettings = SinkSettings()
    kafka: KafkaSettings = KafkaSettings()
    file: FileSettings = FileSettings()
    redis: RedisSettings = RedisSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    tables: tuple[TableEntry, ...] = msgspec.field(default=(), name=LIST_OF_TABLES)
    """Of `[[table]]`. With several of them `table` and `close` are nobody's: ask `each`."""

    @property
    def is_shared(self) -> bool:
        """Whether the slot has other tables beside the one that these settings are of."""
        return False

    def each(self) -> tuple[Settings, ...]:
        """The settings of every table by itself: its `table`, its `close`, its topic in `for_events`."""
        if len(self.tables) <= 1:
            return (self,)
        shared = {name: getattr(self, name) for name in self.__struct_fields__}
        return tuple(
            SharedSettings(**{**shared, "table": entry, "close": entry.close or self.close, "tables": (entry,)})
            for entry in self.tables
        )

    def without_closes(self) -> Settings:
        """As of a process that only reads."""
        none = msgspec.structs.replace(self.close, action="none")
        tables = tuple(msgspec.structs.replace(entry, close=None) for entry in self.tables)
        return msgspec.structs.replace(self, close=none, tables=tables)

    def for_events(self) -> KafkaSettings:
        """[kafka] with the table's own topic. `kafka` itself names the slot's: progress and transactional id."""
        topic = self.tables[0].topic if self.tables else None
        return self.kafka if topic is None else msgspec.structs.replace(self.kafka, topic=topic)


class SharedSettings(Settings, frozen=True):
    """Of one table of several."""

    @property
    def is_shared(self) -> bool:
        """It has."""
        return True

    def each(self) -> tuple[Settings, ...]:
        """This one."""
        return (self,)


def alternatives(column: str) -> tuple[str, ...]:
    """The names that a key of [table] gives a column, `expires_at|deadline`: for one that was or will be renamed.

    A bar that belongs to a name is written twice.
    """
    return tuple(name.replace("||", "|") for name in _ALTERNATIVE.findall(column))
