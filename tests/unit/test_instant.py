from datetime import UTC, datetime, timedelta

import pytest

from cdcwatch.instant import (
    INFINITY_US,
    NEGATIVE_INFINITY_US,
    format_instant,
    from_unix_us,
    instant_sql,
    parse_instant,
    read_instant,
)

DAY_US = 86_400_000_000
FIRST_US = -211_813_488_000_000_000
"""PostgreSQL's earliest timestamp, 4714-11-24 BC."""
LAST_US = 9_223_371_331_199_999_999
"""Its latest."""

# The server's text, microseconds since 2000, and what a subscriber of the topic reads.
INSTANTS = [
    ("2000-01-01 00:00:00+00", 0, "2000-01-01T00:00:00.000000Z"),
    ("2000-01-01 00:00:00.000001+00", 1, "2000-01-01T00:00:00.000001Z"),
    ("1999-12-31 23:59:59.999999+00", -1, "1999-12-31T23:59:59.999999Z"),
    ("1999-12-31 00:00:00+00", -DAY_US, "1999-12-31T00:00:00.000000Z"),
    ("2000-02-29 12:00:00.5+00", 59 * DAY_US + DAY_US // 2 + 500_000, "2000-02-29T12:00:00.500000Z"),
    ("2026-11-30 10:15:00+00", 849_348_900_000_000, "2026-11-30T10:15:00.000000Z"),
    ("9999-12-31 23:59:59.999999+00", 252_455_615_999_999_999, "9999-12-31T23:59:59.999999Z"),
    ("10000-01-01 00:00:00+00", 252_455_616_000_000_000, "+10000-01-01T00:00:00.000000Z"),
    ("294276-12-31 23:59:59.999999+00", LAST_US, "+294276-12-31T23:59:59.999999Z"),
    ("0001-01-01 00:00:00+00", -63_082_281_600_000_000, "0001-01-01T00:00:00.000000Z"),
    ("0001-12-31 23:59:59.999999+00 BC", -63_082_281_600_000_001, "0000-12-31T23:59:59.999999Z"),
    ("0001-02-29 00:00:00+00 BC", -63_108_806_400_000_000, "0000-02-29T00:00:00.000000Z"),
    ("0044-03-15 10:00:00.123456+00 BC", -64_464_472_799_876_544, "-0043-03-15T10:00:00.123456Z"),
    ("4714-11-24 00:00:00+00 BC", FIRST_US, "-4713-11-24T00:00:00.000000Z"),
    ("infinity", INFINITY_US, "infinity"),
    ("-infinity", NEGATIVE_INFINITY_US, "-infinity"),
]


@pytest.mark.parametrize(("text", "us", "event_text"), INSTANTS)
def test_the_whole_range_of_a_timestamptz(text, us, event_text):
    assert parse_instant(text) == us
    assert format_instant(us) == event_text
    assert read_instant(event_text) == us
    assert parse_instant(instant_sql(us)) == us


def test_integers_order_as_instants_do():
    numbers = [us for _, us, _ in INSTANTS]
    assert min(numbers) == parse_instant("-infinity")
    assert max(numbers) == parse_instant("infinity")
    assert FIRST_US > NEGATIVE_INFINITY_US
    assert LAST_US < INFINITY_US


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("2026-11-30 10:15:00.25Z", timedelta()),
        ("2026-11-30T10:15:00.25Z", timedelta()),
        ("2026-11-30 10:15:00.25+00:00", timedelta()),
        ("2026-11-30 10:15:00.25-00", timedelta()),
        ("2026-11-30 10:15:00.25+05:30", timedelta(hours=5, minutes=30)),
        ("2026-11-30 10:15:00.25+0530", timedelta(hours=5, minutes=30)),
        ("2026-11-30 10:15:00.25-03", timedelta(hours=-3)),
        ("2026-11-30 10:15:00.25-03:30:52", timedelta(hours=-3, minutes=-30, seconds=-52)),
        ("2026-11-30 10:15:00.25+15:59:59", timedelta(hours=15, minutes=59, seconds=59)),
    ],
)
def test_every_form_of_an_offset(text, offset):
    local = datetime(2026, 11, 30, 10, 15, 0, 250_000, tzinfo=UTC)
    expected = local - offset - datetime(2000, 1, 1, tzinfo=UTC)
    assert parse_instant(text) == expected // timedelta(microseconds=1)


@pytest.mark.parametrize("digits", range(1, 7))
def test_a_fraction_of_any_length(digits):
    fraction = "123456"[:digits]
    expected = int(fraction.ljust(6, "0"))
    assert parse_instant(f"2000-01-01 00:00:00.{fraction}+00") == expected
    assert parse_instant(f"2000-01-01 05:30:00.{fraction}+05:30") == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "Infinity",
        "2026-11-30",
        "2026-11-30 10:15:00",  # no offset
        "2026-11-30T10:15:00",
        "30/11/2026 10:15:00 IST",  # SQL, DMY
        "11/30/2026 10:15:00 UTC",
        "30.11.2026 10:15:00 UTC",  # German
        "Mon Nov 30 10:15:00 2026 UTC",  # Postgres
        "30-11-2026 10:15:00+00",
        "2026-11-30 10:15:00 UTC",
        "2026-11-30  10:15:00+00",
        "2026-11-30 10:15:00+00 ",
        " 2026-11-30 10:15:00+00",
        "2026-11-30 10:15:00+00\n",
        "2026-13-01 00:00:00+00",
        "2026-02-29 00:00:00+00",
        "2026-11-31 00:00:00.5-01",
        "2026-11-30 24:00:00+00",
        "2026-11-30 10:60:00+00",
        "2026-11-30 10:15:60+00",
        "2026-11-30 24:00:00-01",
        "2026-11-30 10:60:00-01",
        "2026-11-30 10:15:60-01",
        "2026-11-30 10:15:00.1234567+00",
        "2026-11-30 10:15:00.+00",
        "2026-11-30 10:15:00.-5+00",
        "2026-11-30 10:15:00x5+00",
        "2026-11-30 10:15x00+00",
        "2026-11-30 10:15:+5+00",
        "2026-11-30 10:15: 5+00",
        "2026-11-30 10:15:0+00",
        "2026-11- 3 10:15:00+00",
        "2026-11-3  10:15:00+00",
        "2026-11-30 1:15:000+00",
        "2026-11-30 10:15:00.1_2+00",
        "\u0662\u0660\u0662\u0666-11-30 10:15:00+00",
        "2026-11-30 10:15:0\u0660+00",
        "0000-01-01 00:00:00+00",
        "0000-01-01 00:00:00+00 BC",
        "2026-11-30 10:15:00+0",
        "2026-11-30 10:15:00+00 AD",
    ],
)
def test_anything_else_is_refused_not_guessed_at(text):
    with pytest.raises(ValueError):  # noqa: PT011
        parse_instant(text)


def test_instants_of_the_protocol_count_from_2000():
    assert from_unix_us(946_684_800_000_000) == 0
    assert from_unix_us(0) == parse_instant("1970-01-01 00:00:00+00")


@pytest.mark.parametrize(
    "text", ["", "2026-11-30", "2026-11-30 10:15:00+00", "2026-11-30T10:15:00Z", "2026-13-30T10:15:00.000000Z"]
)
def test_what_no_event_has_is_no_instant(text):
    with pytest.raises(ValueError, match=r"."):
        read_instant(text)
