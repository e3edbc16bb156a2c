"""Reading the configuration: one TOML file, every key also as `CDCWATCH_SECTION__KEY` in the environment.

Unknown keys are errors in both.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Annotated, Any, get_origin

import msgspec
import orjson

from cdcwatch.coherence import require_coherent
from cdcwatch.errors import ConfigurationError
from cdcwatch.settings import LIST_OF_TABLES, PATTERNS_IN_WORDS, Settings

ENVIRONMENT_PREFIX = "CDCWATCH_"
DEFAULT_PATH = Path("cdcwatch.toml")
_TABLE_VARIABLE = f"{ENVIRONMENT_PREFIX}TABLE"


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
        tree[LIST_OF_TABLES] = tree.pop("table")
    settings = _with_its_table(_convert(tree))
    require_coherent(settings)
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
    """The type of a key, or of any key of a free-form table as `kafka.client`; without what bounds and describes it."""
    if getattr(kind, "__origin__", None) is dict:
        return kind.__args__[1]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        for known in msgspec.structs.fields(kind):
            if known.name == name:
                return known.type.__origin__ if get_origin(known.type) is Annotated else known.type
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
            .replace(LIST_OF_TABLES, "table")
            .replace("Object contains unknown field", "unknown key")
        )
        for pattern, words in PATTERNS_IN_WORDS.items():
            where = where.replace(f"`str` matching regex {pattern!r}", words)
        raise ConfigurationError(
            f"configuration: {where}", remedy="mend that key in the file or in its CDCWATCH_… variable"
        ) from None
