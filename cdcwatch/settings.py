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
_ALTERNATIVE = re.compile(r"(?:[^|]|\|\|)+")
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
        if _is_key(name):
            _lay_over(tree, name, text)
    # Lax: "5" and "true" from the environment are numbers and truths where the key wants one.
    settings = _convert(tree)
    _cross_check(settings)
    return settings


def is_unconfigured(path: Path | None, environment: dict[str, str] | None = None) -> bool:
    """Whether `load_settings` would find nothing at all: no file, no key in the environment."""
    environment = dict(os.environ) if environment is None else environment
    return path is None and not DEFAULT_PATH.exists() and not any(map(_is_key, environment))


def _is_key(variable: str) -> bool:
    return variable.startswith(ENVIRONMENT_PREFIX) and "__" in variable


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
    *sections, key = name.removeprefix(ENVIRONMENT_PREFIX).lower().split("__")
    kind: Any = Settings
    for section in (*sections, key):
        kind = _field_type(kind, section, name)
    place = tree
    for section in sections:
        place = place.setdefault(section, {})
        if not isinstance(place, dict):
            raise ConfigurationError(f"{name}: {section} is not a section", remedy="see the configuration reference")
    value: Any = text
    if kind is not str and text[:1] in "[{" and text:
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:
            raise ConfigurationError(f"{name}: not JSON", remedy='write it as ["a", "b"] or {"a": "b"}') from None
    elif getattr(kind, "__origin__", None) is tuple:
        value = [part.strip() for part in text.split(",") if part.strip()]
    place[key] = value


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
        where = str(error).replace("`$.", "`").replace("Object contains unknown field", "unknown key")
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


def _require_zone(name: str) -> None:
    try:
        Zone(name)
    except ValueError:
        raise ConfigurationError(
            f"table.time_zone {name!r} is no time zone that this machine knows",
            remedy="write it as in Europe/Amsterdam; where the machine has no zone data: pip install tzdata",
        ) from None
