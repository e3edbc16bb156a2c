"""Which records `cdcwatch events` shows: by key and by type."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdcwatch.errors import ConfigurationError

if TYPE_CHECKING:
    from cdcwatch.handoff.record import Record

EVENTS: Final = ("scheduled", "moved", "cancelled", "expired", "gap")
LETTERS: Final = ("row", "close")
_PREFIXES: Final = ("deadline.", "stream.")


class Filter:
    """Lets all through where nothing is asked for."""

    def __init__(self, keys: Sequence[str], types: Sequence[str], *, dead: bool) -> None:
        """`keys` as events show them. `dead`: of dead letters, whose types are what they are about."""
        known = LETTERS if dead else EVENTS
        self._keys, self._types = set(keys), {_bare(one) for one in types}
        for one in self._types:
            if one in LETTERS and not dead:
                raise ConfigurationError(
                    f"there is no type {one} here", remedy="row and close are of dead letters: add --dead"
                )
            if one not in known:
                raise ConfigurationError(
                    f"there is no type {one} here", remedy=f"--type takes one of: {', '.join(known)}"
                )

    def __call__(self, record: "Record") -> bool:
        """Whether it is wanted."""
        if not self._keys and not self._types:
            return True
        try:
            said: dict[str, Any] = orjson.loads(record.value)
            kind, key = _of_letter(said) if "about" in said else (_bare(said["type"]), said["subject"])
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError):
            return False  # no event
        return (not self._keys or key in self._keys) and (not self._types or kind in self._types)


def _bare(kind: str) -> str:
    for prefix in _PREFIXES:
        kind = kind.removeprefix(prefix)
    return kind


def _of_letter(said: dict[str, Any]) -> tuple[str, str | None]:
    """What it is about, and the key as a list of its columns' texts, where there is one."""
    key = said.get("key")
    return said["about"], ", ".join(key.values()) if key else None
