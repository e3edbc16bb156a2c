"""The configuration: one TOML file, every key also as `CDCWATCH_SECTION__KEY` in the environment.

Unknown keys are errors in both. Passwords live in the DSN or in libpq's own places (PGPASSFILE, a service file); the
repr of the settings shows neither.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import orjson
from msgspec import Meta

from cdcwatch.errors import ConfigurationError
from cdcwatch.zone import Zone

ENVIRONMENT_PREFIX = "CDCWATCH_"
_TABLES = "[[table]]"
"""Stands for the key `table` where it is a list."""
_ALTERNATIVE = re.compile(r"(?:[^|]|\|\|)+")
_TABLE_VARIABLE = f"{ENVIRONMENT_PREFIX}TABLE"
DEFAULT_PATH = Path("cdcwatch.toml")

Seconds = Annotated[float, Meta(ge=0)]
Count = Annotated[int, Meta(ge=1)]
_SLOT_NAME, _TOPIC_NAME, _ADDRESS = r"^[a-z0-9_]{1,63}$", r"^[a-zA-Z0-9._-]{1,240}$", r"^(.*:\d{1,5})?$"
_IN_WORDS = {
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
    tables: tuple[TableEntry, ...] = msgspec.field(default=(), name=_TABLES)
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


def load_settings(path: Path | None = None, environment: dict[str, str] | None = None) -> Settings:
    """Reads the file (default `./cdcwatch.toml` where there is one), then lays the environment over it.

    ConfigurationError for a named file that isn't there, a key that is unknown, or a value of the wrong kind.
    """
    environment = dict(os.environ) if environment is None else environment
    tree = _read(path)
    for name, text in environment.items():
        if is_key(name):
            _lay_over(tree, name, text)
    # Lax: "5" and "true" from the environment are numbers and truths where the key wants one.
    if isinstance(tree.get("table"), list):
        tree[_TABLES] = tree.pop("table")
    settings = _with_its_table(_convert(tree))
    for one in settings.each():
        _cross_check(one)
    _check_topics(settings)
    return settings


def _with_its_table(settings: Settings) -> Settings:
    """A list of one is that one."""
    if len(settings.tables) != 1:
        return settings
    (entry,) = settings.tables
    return msgspec.structs.replace(settings, table=entry, close=entry.close or settings.close)


def is_unconfigured(path: Path | None, environment: dict[str, str] | None = None) -> bool:
    """Whether `load_settings` would find nothing at all: no file, no key in the environment."""
    environment = dict(os.environ) if environment is None else environment
    return path is None and not DEFAULT_PATH.exists() and not any(map(is_key, environment))


def is_key(variable: str) -> bool:
    """Whether a variable of the environment is one of the configuration's."""
    return variable == _TABLE_VARIABLE or (variable.startswith(ENVIRONMENT_PREFIX) and "__" in variable)


def _read(path: Path | None) -> dict[str, Any]:
    if path is None and not DEFAULT_PATH.exists():
        return {}
    chosen = path or DEFAULT_PATH
    try:
        return tomllib.loads(chosen.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(
            f"{chosen}: {error.strerror or 'cannot be read'}", remedy="name a readable file with -c/--config"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{chosen}: not TOML: {error}", remedy="mend the file at that place") from None


def _lay_over(tree: dict[str, Any], name: str, text: str) -> None:
    """`CDCWATCH_CLOSE__CLAIM__URL=…` into `tree["close"]["claim"]["url"]`; lists and tables as JSON."""
    if name == _TABLE_VARIABLE:
        tree["table"] = _list_of_tables(text)
        return
    *sections, key = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
    kind: Any = Settings
    for section in (*sections, key):
        kind = _field_type(kind, section, name)
    place = tree
    for section in sections:
        place = place.setdefault(section, {})
        if not isinstance(place, dict):
            remedy = "see the configuration reference"
            if section == "table":
                remedy = f"there are several: set {_TABLE_VARIABLE} to the whole list, as JSON"
            raise ConfigurationError(f"{name}: {section} is not a section", remedy=remedy)
    value: Any = text
    if kind is not str and text[:1] in "[{" and text:
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise ConfigurationError(f"{name}: not JSON", remedy='write it as ["a", "b"] or {"a": "b"}') from None
    elif getattr(kind, "__origin__", None) is tuple:
        value = [part.strip() for part in text.split(",") if part.strip()]
    place[key] = value


def _list_of_tables(text: str) -> list[Any]:
    try:
        tables = orjson.loads(text)
    except orjson.JSONDecodeError:
        tables = None
    if not isinstance(tables, list):
        raise ConfigurationError(
            f"{_TABLE_VARIABLE}: not a JSON list of tables",
            remedy='write it as [{"name": "public.orders", "topic": "orders.deadlines"}, …]',
        )
    return tables


def _field_type(kind: Any, name: str, variable: str) -> Any:
    """The type of a key, or of any key of a free-form table as `kafka.client`."""
    if getattr(kind, "__origin__", None) is dict:
        return kind.__args__[1]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for known in msgspec.structs.fields(kind):
            if known.name == name:
                return known.type
    raise ConfigurationError(
        f"{variable}: there is no such key", remedy="write it as CDCWATCH_SECTION__KEY, with a key of the configuration"
    )


def _convert(tree: dict[str, Any]) -> Settings:
    try:
        return msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as error:
        # msgspec names the kind that was wanted and the place, never the value.
        where = (
            str(error)
            .replace("`$.", "`")
            .replace(_TABLES, "table")
            .replace("Object contains unknown field", "unknown key")
        )
        for pattern, words in _IN_WORDS.items():
            where = where.replace(f"`str` matching regex {pattern!r}", words)
        raise ConfigurationError(
            f"configuration: {where}", remedy="mend that key in the file or in its CDCWATCH_… variable"
        ) from None


def _cross_check(settings: Settings) -> None:
    """What no single key can tell."""
    table, close = settings.table, settings.close
    if table.time_zone:
        _require_zone(table.time_zone)
    if table.status and not table.open:
        raise ConfigurationError("table.open is empty", remedy="name the statuses in which the deadline is live")
    if table.status and close.action == "update" and close.status in table.open:
        raise ConfigurationError(
            f"close.status {close.status!r} is also in table.open: a closed order would stay open",
            remedy="choose another close.status, or take it out of table.open",
        )
    if close.action == "claim":
        _check_claim(settings)
    if close.action == "delete" and close.set:
        raise ConfigurationError(
            'close.action = "delete" leaves no row that close.set could write to',
            remedy="take close.set out; what else is to happen in the same transaction goes into close.also",
        )
    deadlines = alternatives(table.deadline)
    if not table.status and close.action == "update" and not set(deadlines) & set(close.set):
        raise ConfigurationError(
            "without table.status a closed order would stay open",
            remedy=f'let the close clear the deadline: [close] set = {{ {deadlines[0]} = "NULL" }}',
        )
    taken = {*alternatives(table.status), *alternatives(table.version)} & set(close.set)
    if taken:
        raise ConfigurationError(
            f"close.set names {', '.join(sorted(taken))}, which the close writes itself",
            remedy="take it out of close.set; the status comes from close.status, the version is counted up",
        )


def _check_claim(settings: Settings) -> None:
    """Of `close.action = "claim"`. The address is not shown: it may hold a password."""
    table, close, claim = settings.table, settings.close, settings.close.claim
    if not re.match(r"https?://[^/\s]", claim.url):
        raise ConfigurationError(
            "close.claim.url is no http:// or https:// address",
            remedy='[close.claim] url = "https://shop.example/close"',
        )
    if not table.status:
        raise ConfigurationError(
            'close.action = "claim" needs table.status: a claimed order has a status of its own',
            remedy='name the status column, or use close.action = "update"',
        )
    statuses = [*table.open, close.status, claim.processing, claim.failed]
    twice = sorted({status for status in statuses if statuses.count(status) > 1})
    if twice:
        raise ConfigurationError(
            f"table.open, close.status, close.claim.processing and failed share {', '.join(twice)}",
            remedy="give each a status of its own",
        )
    if claim.stuck_after_s < 2 * claim.timeout_s:
        raise ConfigurationError(
            "close.claim.stuck_after_s is less than twice timeout_s: claims would be taken from whoever still calls",
            remedy=f"stuck_after_s = {2 * claim.timeout_s:g} or more",
        )


def _check_topics(settings: Settings) -> None:
    """Of several tables: each has its own, and none is named as what belongs to another."""
    if len(settings.tables) <= 1:
        return
    for place, entry in enumerate(settings.tables):
        if entry.topic is None:
            raise ConfigurationError(
                f"table[{place}].topic is missing: each of several tables has a topic of its own",
                remedy=f'name it under the [[table]] of {entry.name}: topic = "…"',
            )
    ours = [f"{settings.kafka.topic}.progress"]
    for entry in settings.tables:
        ours += [f"{entry.topic}", f"{entry.topic}.dead"]
    twice = sorted({name for name in ours if ours.count(name) > 1})
    if twice:
        raise ConfigurationError(
            f"two of [[table]] would write to the topic {', '.join(twice)}", remedy="give each a topic of its own"
        )
    names = [entry.name for entry in settings.tables]
    if again := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(
            f"[[table]] has {', '.join(again)} more than once",
            remedy="leave one of them: a table has one topic and rule",
        )


def _require_zone(name: str) -> None:
    try:
        Zone(name)
    except ValueError:
        raise ConfigurationError(
            f"table.time_zone {name!r} is no time zone that this machine knows",
            remedy="write it as in Europe/Amsterdam; where the machine has no zone data: pip install tzdata",
        ) from None
