"""The configuration's keys from the settings model: as one TOML file with every default, and as tables.

https://jcristharif.com/msgspec/inspect.html
"""

from __future__ import annotations

import inspect
import json
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import msgspec
from msgspec import inspect as types

from cdcwatch.settings import LIST_OF_TABLES, PATTERNS_IN_WORDS, Settings, TableEntry, TableSettings

if TYPE_CHECKING:
    from collections.abc import Iterator

_NAMES = {types.StrType: "text", types.IntType: "integer", types.FloatType: "number", types.BoolType: "true or false"}
_COMMENT_FROM = 34


def defaults() -> str:
    """A TOML file of every key with its default; its comments are the keys' descriptions."""
    lines: list[str] = []
    for name, section in _sections(Settings):
        lines += _written(name, section)
    return "```toml\n" + "\n".join(lines).strip() + "\n```\n"


def reference() -> str:
    """A table for each section."""
    parts = [_table(f"[{name}]", section, _fields(section)) for name, section in _nested(Settings)]
    own = set(TableEntry.__struct_fields__) - set(TableSettings.__struct_fields__)
    entry = [(field, kind) for field, kind in _fields(TableEntry) if field.encode_name in own]
    parts.append(_table("[[table]]", TableEntry, entry))
    return "\n".join(parts)


def _sections(model: type[msgspec.Struct]) -> Iterator[tuple[str, type[msgspec.Struct]]]:
    for field in msgspec.structs.fields(model):
        kind = _bare(types.type_info(field.type))
        if isinstance(kind, types.StructType) and field.encode_name != LIST_OF_TABLES:
            yield field.encode_name, kind.cls


def _nested(model: type[msgspec.Struct], above: str = "") -> Iterator[tuple[str, type[msgspec.Struct]]]:
    for name, section in _sections(model):
        yield above + name, section
        yield from _nested(section, f"{above}{name}.")


def _fields(section: type[msgspec.Struct]) -> list[tuple[Any, types.Type]]:
    return [(field, types.type_info(field.type)) for field in msgspec.structs.fields(section)]


def _bare(kind: types.Type) -> types.Type:
    return kind.type if isinstance(kind, types.Metadata) else kind


def _said(kind: types.Type) -> str:
    """A key's description."""
    if isinstance(kind, types.Metadata):
        return (kind.extra_json_schema or {}).get("description", "")
    return ""


def _written(name: str, section: type[msgspec.Struct]) -> list[str]:
    """The section, then those within it."""
    lines, below = [f"[{name}]"], []
    for field, kind in _fields(section):
        bare, said = _bare(kind), _said(kind)
        comment = f"# {said}" if said else ""
        if isinstance(bare, types.StructType):
            head, *keys = _written(f"{name}.{field.encode_name}", bare.cls)
            below += [_beside(head, comment), *keys]
        elif isinstance(bare, types.DictType):
            below.append(_beside(f"[{name}.{field.encode_name}]", comment))
        else:
            choices = _choices(field)
            lines.append(_beside(f"{field.encode_name} = {_toml(field.default)}", _joined("# ", choices, said)))
    while below and not below[-1]:
        below.pop()
    return [*lines, *below, ""]


def _joined(head: str, *parts: str) -> str:
    found = [part for part in parts if part]
    return head + "; ".join(found) if found else ""


def _beside(left: str, comment: str) -> str:
    return f"{left:<{_COMMENT_FROM - 1}} {comment}".rstrip()


def _choices(field: Any) -> str:
    others = [_toml(value) for value in _words(field.type) if value != field.default]
    return "or " + ", ".join(others) if others else ""


def _words(annotation: Any) -> tuple[Any, ...]:
    """Of a Literal, in its own order (msgspec's sorts them); empty for any other type."""
    if get_origin(annotation) is Annotated:
        return _words(annotation.__origin__)
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def _toml(value: Any) -> str:
    if isinstance(value, tuple):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return json.dumps(value, ensure_ascii=False)


def _table(title: str, section: type[msgspec.Struct], fields: list[tuple[Any, types.Type]]) -> str:
    lines = [
        f"### `{title}`",
        "",
        inspect.cleandoc(section.__doc__ or ""),
        "",
        "| key | what it takes | default | |",
        "|---|---|---|---|",
    ]
    for field, kind in fields:
        bare = _bare(kind)
        if isinstance(bare, types.StructType):
            continue  # a section of its own
        lines.append(f"| `{field.encode_name}` | {_taken(field, bare)} | {_default(field)} | {_safe(_said(kind))} |")
    return "\n".join(lines) + "\n"


def _default(field: Any) -> str:
    if field.default_factory is not msgspec.NODEFAULT:
        return ""
    return "" if field.default is None else f"`{_toml(field.default)}`"


def _safe(text: str) -> str:
    """For a cell of a table; what it refers to is linked."""
    text = text.replace("<", "&lt;").replace("|", "&#124;")
    text = re.sub(r"see docs/([\w.]+)", r"see [\1](\1)", text)
    return re.sub(r"see ([A-Z][a-z ]+)", lambda found: f"see [{found[1]}](#{found[1].lower().replace(' ', '-')})", text)


def _taken(field: Any, kind: types.Type) -> str:
    words = _words(field.type)
    return " or ".join(f"`{_toml(word)}`" for word in words) if words else _kind(kind)


def _kind(kind: types.Type) -> str:
    """A type and its bounds in words."""
    kind = _bare(kind)
    if isinstance(kind, types.UnionType):
        return " or ".join(_kind(one) for one in kind.types if not isinstance(one, types.NoneType))
    if isinstance(kind, types.VarTupleType):
        return f"a list of {_kind(kind.item_type)}s"
    if isinstance(kind, types.StructType):
        return f"a table, as `[{kind.cls.__name__.removesuffix('Settings').lower()}]`"
    if isinstance(kind, types.StrType) and kind.pattern is not None:
        return PATTERNS_IN_WORDS[kind.pattern]
    return "a table of its own" if isinstance(kind, types.DictType) else ", ".join([_NAMES[type(kind)], *_bounds(kind)])


def _bounds(kind: types.Type) -> list[str]:
    bounds: list[tuple[Any, str]] = []
    if isinstance(kind, types.StrType):
        bounds = [(kind.min_length, "not empty"), (kind.max_length, "at most {:d} characters")]
    if isinstance(kind, types.IntType | types.FloatType):
        bounds = [(kind.ge, "{:g} or more"), (kind.gt, "more than {:g}"), (kind.le, "at most {:g}")]
    return [words.format(bound) for bound, words in bounds if bound is not None]
