"""The configuration's sections and keys, with their defaults and what they are.

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


def says(description: str) -> Meta:
    """What a key is, for docs/configuration.md (`make docs` writes it there)."""
    return Meta(description=description)


Seconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
_STREAM_NAME = r"^[a-zA-Z0-9._:{}-]{1,240}$"
_SLOT_NAME, TOPIC_NAME, _ADDRESS = r"^[a-z0-9_]{1,63}$", r"^[a-zA-Z0-9._-]{1,240}$", r"^(.*:\d{1,5})?$"
PATTERNS_IN_WORDS = {
    _SLOT_NAME: "lower-case letters, digits and _, at most 63",
    TOPIC_NAME: "letters, digits, dots, _ and -, at most 240",
    _STREAM_NAME: "letters, digits, dots, colons, braces, _ and -, at most 240",
    _ADDRESS: "host:port, or an empty text for none",
}
SlotName = Annotated[str, Meta(pattern=_SLOT_NAME)]
TopicName = Annotated[str, Meta(pattern=TOPIC_NAME)]
StreamName = Annotated[str, Meta(pattern=_STREAM_NAME)]


class _Section(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=False):
    """A section; its fields are its keys."""


class PostgresSettings(_Section, frozen=True):
    """How to reach the primary. Empty: libpq's own environment."""

    dsn: Annotated[
        str, says("libpq keywords or URI; empty: libpq's own environment (PGHOST, PGSERVICE, PGPASSFILE …)")
    ] = ""
    replication_dsn: Annotated[str, says("when dsn goes through a pooler")] = ""

    def for_replication(self) -> str:
        """The DSN of the walsender: `dsn` unless that one leads through a pooler."""
        return self.replication_dsn or self.dsn

    def __repr__(self) -> str:
        return "PostgresSettings(dsn=…, replication_dsn=…)"


class SlotSettings(_Section, frozen=True):
    """The replication slot."""

    name: Annotated[SlotName, says("one for each `run` and its standbys")] = "cdcwatch_orders"
    plugin: Annotated[
        Literal["wal2json", "pgoutput"],
        says("pgoutput needs no extension and sends only the watched columns, in binary"),
    ] = "wal2json"
    publication: Annotated[str, Meta(min_length=1, max_length=63), says("of pgoutput")] = "cdcwatch_orders"
    failover: Annotated[bool, says("PostgreSQL 17 and later: kept on standbys")] = False
    heartbeat_s: Annotated[Seconds, says("0: none; see Heartbeat")] = 0


class TableSettings(_Section, frozen=True):
    """The watched table and its columns."""

    name: Annotated[str, Meta(min_length=1), says("quoted parts as in SQL: '\"My.Shop\".orders'")] = "public.orders"
    key: Annotated[tuple[str, ...], says("columns; empty: the primary key")] = ()
    deadline: Annotated[str, Meta(min_length=1), says("column; see Deadlines")] = "expires_at"
    status: Annotated[
        str,
        says("column; empty when the table has none: every row with a deadline is open; see Tables without a status"),
    ] = "status"
    version: Annotated[str, says("column; empty when the table has none: closes rely on status and deadline alone")] = (
        "version"
    )
    open: Annotated[tuple[str, ...], says("statuses in which the deadline is live")] = ("pending",)
    time_zone: Annotated[
        str, says("of a deadline of type timestamp or date: Europe/Amsterdam, UTC when UTC is stored")
    ] = ""


class ClaimSettings(_Section, frozen=True):
    """`action = "claim"`: the close calls something outside."""

    url: Annotated[str, says("POST; https://user:password@… sends Basic authorization")] = ""
    processing: Annotated[str, says("status while claimed; close.status follows")] = "closing"
    failed: Annotated[str, says("status after the last attempt")] = "close_failed"
    batch_rows: Annotated[Count, says("orders a claim, and answers a record")] = 200
    concurrency: Annotated[Count, says("calls at a time")] = 16
    timeout_s: Annotated[float, Meta(gt=0), says("of a call")] = 10
    attempts: Annotated[Count, says("then the failed status and a dead letter")] = 8
    stuck_after_s: Annotated[Seconds, says("a claim of a silent process is taken over")] = 300

    def __repr__(self) -> str:
        return f"ClaimSettings(url=…, processing={self.processing!r}, failed={self.failed!r})"


class CloseSettings(_Section, frozen=True):
    """What happens at the deadline."""

    action: Annotated[
        Literal["update", "delete", "claim", "none"],
        says("delete: see Closes that delete; claim: see Closes that call something outside; none: events only"),
    ] = "update"
    status: Annotated[str, says("what a close writes")] = "expired"
    set: Annotated[
        dict[str, str], says('further columns that a close writes, SQL expressions: closed_at = "clock_timestamp()"')
    ] = {}
    batch_rows: Annotated[int, Meta(ge=1, le=10_000), says("orders a statement")] = 500
    concurrency: Annotated[int, Meta(ge=1, le=64), says("connections that close")] = 2
    attempts: Annotated[Count, says("the database refuses it so often: a dead letter, and one attempt an hour")] = 8
    also: Annotated[str, says("SQL in the closing transaction; reads the rows just closed as the relation closed")] = ""
    max_clock_offset_ms: Annotated[int, Meta(ge=1), says("see Clocks")] = 1000
    max_clock_uncertainty_ms: Annotated[int, Meta(ge=1), says("see Clocks")] = 50
    claim: Annotated[ClaimSettings, says('with action = "claim"')] = ClaimSettings()


class TableEntry(TableSettings, frozen=True):
    """One of `[[table]]`: the keys of [table], a topic of its own, and a close rule of its own."""

    topic: Annotated[
        StreamName | None, says("of this table's events, in Redis a stream; with several tables each names its own")
    ] = None
    close: Annotated[CloseSettings | None, says("this table's close rule, of the keys of [close]; absent: [close]")] = (
        None
    )


class SweepSettings(_Section, frozen=True):
    """The compensation scan."""

    interval_s: Annotated[Seconds, says("0: none; see Sweep")] = 30
    grace_ms: Annotated[int, Meta(ge=0), says("what is overdue for less is left to the stream")] = 5000
    batch_rows: Annotated[Count, says("of a page")] = 1000
    rows_per_s: Annotated[Count, says("no more than these are put among the pending orders")] = 5000
    weight: Annotated[float, Meta(gt=0), says("this instance's share against the others'")] = 1
    dsn: Annotated[str, says("a hot standby to scan; closes go to postgres.dsn")] = ""
    max_delay_ms: Annotated[int, Meta(ge=0), says("of that standby; beyond it the primary is scanned")] = 500

    def __repr__(self) -> str:
        return f"SweepSettings(interval_s={self.interval_s}, dsn=…)"


class WindowSettings(_Section, frozen=True):
    """Which deadlines are held in memory; the others wait in the table."""

    horizon_s: Annotated[
        float, Meta(gt=0), says("deadlines further away stay in the table until the window comes to them")
    ] = 3600
    max_entries: Annotated[int, Meta(ge=1000), says("deadlines in memory, of each table")] = 5_000_000


class SinkSettings(_Section, frozen=True):
    """Where deadline events become durable."""

    kind: Annotated[Literal["kafka", "file", "redis", "none"], says("none: no events are published")] = "kafka"


class RegistrySettings(_Section, frozen=True):
    """Confluent Schema Registry, or what speaks its protocol. `client` is handed to its client as it is."""

    url: Annotated[str, says("http(s)://…, several with commas; also reads Avro of other versions")] = ""
    register: Annotated[bool, says("false: the schema must be there; `cdcwatch schema --register`")] = True
    client: Annotated[
        dict[str, str | int | float | bool],
        says('handed to the registry\'s client as they are: "basic.auth.user.info" = "user:password" …'),
    ] = {}

    def __repr__(self) -> str:
        return f"RegistrySettings(url=…, register={self.register!r}, client=…)"


class KafkaSettings(_Section, frozen=True):
    """The topic. `client` is handed to librdkafka as it is."""

    bootstrap_servers: Annotated[str, Meta(min_length=1), says("host:port, several with commas")] = "localhost:9092"
    topic: Annotated[TopicName, says("of the events; beside it <topic>.progress and <topic>.dead")] = "orders.deadlines"
    delivery: Annotated[
        Literal["exactly_once", "at_least_once"], says("at_least_once: a crash repeats events, with equal ids")
    ] = "exactly_once"
    format: Annotated[Literal["json", "avro"], says("of the events; avro: see docs/topic.md")] = "json"
    create_topic: Annotated[
        bool, says("true: run makes it at the start; deleted while it runs it is not made anew")
    ] = False
    partitions: Annotated[Count, says("when create_topic makes it")] = 6
    replication_factor: Annotated[int, Meta(ge=-1, le=32767), says("the same; -1: the broker's default")] = -1
    group: Annotated[str, Meta(max_length=255), says("of --role close; empty: cdcwatch.<topic>.<slot>")] = ""
    client: Annotated[
        dict[str, str | int | float | bool],
        says('handed to librdkafka as they are: "security.protocol" = "SASL_SSL" …'),
    ] = {}

    registry: Annotated[RegistrySettings, says('with format = "avro"')] = RegistrySettings()

    def __repr__(self) -> str:
        return f"KafkaSettings(bootstrap_servers={self.bootstrap_servers!r}, topic={self.topic!r}, client=…)"


class FileSettings(_Section, frozen=True):
    """The file sink."""

    path: Annotated[str, Meta(min_length=1), says("on a disk of this machine; beside it <path>.lock")] = (
        "deadlines.jsonl"
    )
    rotate_bytes: Annotated[
        int, Meta(ge=0), says("a file of that size becomes <path>.000001 and so on; 0: it grows without end")
    ] = 268_435_456
    keep_files: Annotated[int, Meta(ge=0), says("of those that are full, the newest; 0: all")] = 0


class RedisSettings(_Section, frozen=True):
    """Streams in Redis."""

    url: Annotated[
        str,
        Meta(min_length=1),
        says("redis://user:password@host:6379/0; rediss:// for TLS; redis-py's options after ?"),
    ] = "redis://localhost:6379/0"
    stream: Annotated[
        StreamName, says("of the events; of several partitions <stream>.0 and so on; other keys of ours begin with it")
    ] = "orders.deadlines"
    partitions: Annotated[
        int,
        Meta(ge=1, le=256),
        says("streams a table; an order's events stand in one of them; not to be changed later"),
    ] = 1
    max_age_s: Annotated[Seconds, says("older events are trimmed; 0: never; see docs/sinks.md")] = 0
    require_fsync: Annotated[bool, says("false: go on with a Redis that may lose the last second when it crashes")] = (
        True
    )
    group: Annotated[str, Meta(max_length=255), says("of --role close; empty: cdcwatch.<slot>")] = ""

    def __repr__(self) -> str:
        return f"RedisSettings(url=…, stream={self.stream!r})"


class TelemetrySettings(_Section, frozen=True):
    """The HTTP port, the log, traces."""

    listen: Annotated[str, Meta(pattern=_ADDRESS), says("status page, /metrics and more; empty for none")] = (
        "127.0.0.1:9464"
    )
    log_format: Annotated[Literal["text", "json"], says("one line an event")] = "text"
    trace_ratio: Annotated[
        float, Meta(ge=0, le=1), says("share of orders that are traced; 0: off; see docs/tracing.md")
    ] = 0


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

    @property
    def topic(self) -> str:
        """Where the table's events go, by the name that the sink has for it: a topic, a stream."""
        own = self.tables[0].topic if self.tables else None
        return own or (self.redis.stream if self.sink.kind == "redis" else self.kafka.topic)

    @property
    def topic_noun(self) -> str:
        """What `topic` names, in a word."""
        return "stream" if self.sink.kind == "redis" else "topic"

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
