from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcwatch.errors import ConfigurationError
from cdcwatch.slot.catalog import parse_table_name


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("public.orders", ("public", "orders")),
        ("orders", ("public", "orders")),
        ("Shop.Orders", ("shop", "orders")),
        ('"Shop"."Orders"', ("Shop", "Orders")),
        ('shop."Or.der"', ("shop", "Or.der")),
        ('"My.Shop"."Or,der ""X"" é*"', ("My.Shop", 'Or,der "X" é*')),
        ("shop.Äpfel", ("shop", "Äpfel")),
    ],
)
def test_names_are_read_as_sql_reads_them(text: str, parts: tuple[str, str]) -> None:
    assert parse_table_name(text) == parts


@pytest.mark.parametrize("text", ["", ".", "a.", ".a", "a.b.c", '"a', '"a"b', 'a"b"', '""', "a..b", " ", '"a".'])
def test_anything_else_is_a_configuration_error(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"table\.name"):
        parse_table_name(text)


@given(st.text(min_size=1), st.text(min_size=1))
def test_whatever_is_quoted_comes_back(schema: str, name: str) -> None:
    quoted = ".".join('"' + part.replace('"', '""') + '"' for part in (schema, name))
    assert parse_table_name(quoted) == (schema, name)
