"""Events of every kind as the encoder makes them, and what rows may hold, for tests of formats."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st
from msgspec.structs import replace

from cdcwatch.deadline.event import Event, EventEncoder, Gap, Stamp, for_partition
from cdcwatch.deadline.rule import CANCELLED, EXPIRED, MOVED, SCHEDULED, Derived
from cdcwatch.decode.change import Row
from cdcwatch.instant import INFINITY_US, NEGATIVE_INFINITY_US, parse_instant
from cdcwatch.table import Column
from tests.fakes.table import WATCHED

if TYPE_CHECKING:
    from collections.abc import Iterator

DUE_US = parse_instant("2026-11-30 10:15:00+00")
STAMP = Stamp.of(0x1A2B390, DUE_US)
STAMP_OF_A_READ = Stamp.of_snapshot(0xFFFFFFFF1A2B390, DUE_US)
TWO_COLUMNS = replace(
    WATCHED, key=(Column("shop", "text"), Column("id", "bigint")), version=Column("version", "bigint")
)
# The calendar of PostgreSQL's timestamps.
INSTANTS = st.integers(-211_813_488_000_000_000, 9_223_371_331_199_999_999)
DEADLINES = st.one_of(INSTANTS, st.just(NEGATIVE_INFINITY_US))
ROWS = st.builds(Row, DEADLINES, st.text(max_size=12) | st.none(), st.integers(-(2**63), 2**63 - 1) | st.none())
ENDED = st.builds(Row, INSTANTS | st.sampled_from([INFINITY_US, None]), st.text(max_size=12), st.none())


def encoder_of(table: Any = WATCHED) -> EventEncoder:
    return EventEncoder(table, system_identifier="7301234567890123456", database="shop", slot="cdcwatch_orders")


def sample_events() -> Iterator[Event]:
    """One of every kind."""
    row = Row(DUE_US, "pending", 0)
    for encoder, key in ((encoder_of(), 7), (encoder_of(TWO_COLUMNS), '["eu","7"]')):
        yield encoder.change(key, Derived(SCHEDULED, row, None), STAMP, 1)
        yield encoder.change(key, Derived(MOVED, row, DUE_US - 1), STAMP, 2)
        yield encoder.change(key, Derived(CANCELLED, Row(DUE_US, "paid", 3), DUE_US, "paid"), STAMP, 3)
        yield encoder.change(key, Derived(CANCELLED, None, None, "deleted"), STAMP, 4)
        yield encoder.change(key, Derived(EXPIRED, Row(DUE_US, "expired", 1), None), STAMP, 5)
        yield encoder.change(key, Derived(EXPIRED, None, DUE_US), STAMP, 6)
        yield encoder.snapshot(key, Derived(SCHEDULED, row, None), STAMP_OF_A_READ)
        truncated = encoder.table_wide(Derived(CANCELLED, None, None, "truncated"), STAMP, 7)
        yield truncated
        yield truncated._replace(value=for_partition(truncated.value, 11))
        for from_lsn in (None, 0x1A00000):
            gap = encoder.gap(Gap("the slot was made anew", from_lsn, 0x1A2B000), 0x1A2B390, DUE_US)
            yield Event(None, for_partition(gap.value, 2))
