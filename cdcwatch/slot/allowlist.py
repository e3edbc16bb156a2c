"""`output_plugin_libraries`: the output plugins a server lets in, on the minor releases that have the setting. Pure.

Its value replaces the default. Each name is an element of its own: a list pasted between one pair of quotes is a single
name that no plugin has. Servers that don't know the setting would not start with it, so no remedy names it there.
https://www.postgresql.org/docs/current/runtime-config-client.html
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct

DEFAULT_PLUGINS: Final = ("pgoutput", "test_decoding")

_ELEMENT = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^",]+))\s*(?:,|$)')


class AllowList(Struct, frozen=True):
    """What the server says of the setting."""

    exists: bool
    readable: bool = True
    text: str = ""
    """As SHOW prints it."""

    @property
    def plugins(self) -> tuple[str, ...]:
        """The elements, as the server splits them."""
        return tuple(
            (match[1].replace('""', '"') if match[2] is None else match[2].strip())
            for match in _ELEMENT.finditer(self.text)
        )

    @property
    def kept(self) -> list[str]:
        """What is in and must stay in: the defaults where the list can't be read."""
        # An element with commas is such a pasted list: its author meant the parts.
        parts = (part.strip() for element in self.plugins or DEFAULT_PLUGINS for part in element.split(","))
        return [part for part in dict.fromkeys(parts) if part]

    def remedy(self, plugin: str) -> str:
        """The statements that let `plugin` in and keep in what is in."""
        listed = ", ".join("'" + name.replace("'", "''") + "'" for name in dict.fromkeys([*self.kept, plugin]))
        return f"ALTER SYSTEM SET output_plugin_libraries = {listed}; SELECT pg_reload_conf();"
