import pytest

from cdcwatch.lsn import format_lsn, parse_lsn


@pytest.mark.parametrize(
    ("text", "lsn"),
    [
        ("0/0", 0),
        ("0/1A2B390", 0x1A2B390),
        ("16/B374D848", 0x16_B374_D848),
        ("1/0", 1 << 32),
        ("0/FFFFFFFF", 0xFFFF_FFFF),
        ("FFFFFFFF/FFFFFFFF", 2**64 - 1),
    ],
)
def test_text_and_integer(text, lsn):
    assert parse_lsn(text) == lsn
    assert format_lsn(lsn) == text


def test_lower_case_and_leading_zeros_are_read():
    assert parse_lsn("0a/00b374d8") == 0x0A_00B3_74D8


@pytest.mark.parametrize(
    "text", ["", "0", "/", "0/", "/0", "0/G", "0/123456789", "0/1/2", "0x1/2", "-1/0", " 0/1", "0/1\n", "0/\u0661"]
)
def test_anything_else_is_refused(text):
    with pytest.raises(ValueError, match="not an LSN"):
        parse_lsn(text)
