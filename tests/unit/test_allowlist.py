from __future__ import annotations

import pytest

from cdcwatch.slot.allowlist import AllowList


@pytest.mark.parametrize(
    ("text", "plugins"),
    [
        ("pgoutput, test_decoding", ("pgoutput", "test_decoding")),
        ("pgoutput,wal2json", ("pgoutput", "wal2json")),
        ('"pgoutput, wal2json"', ("pgoutput, wal2json",)),
        ('"a""b", c', ('a"b', "c")),
        ("", ()),
    ],
)
def test_elements_are_split_as_the_server_splits_them(text: str, plugins: tuple[str, ...]) -> None:
    assert AllowList(exists=True, text=text).plugins == plugins


def test_the_remedy_keeps_what_is_in_and_makes_each_name_its_own_element() -> None:
    wanted = (
        "ALTER SYSTEM SET output_plugin_libraries = 'pgoutput', 'test_decoding', 'wal2json'; SELECT pg_reload_conf();"
    )
    assert AllowList(exists=True, text="pgoutput, test_decoding").remedy("wal2json") == wanted
    assert AllowList(exists=True, readable=False).remedy("wal2json") == wanted
    # The list pasted between one pair of quotes: a single name that no plugin has.
    assert AllowList(exists=True, text='"pgoutput, test_decoding, wal2json"').remedy("wal2json") == wanted
    assert "'mine', 'wal2json';" in AllowList(exists=True, text="mine").remedy("wal2json")
