"""The canonical key: different keys never collide, equal ones are equal bytes, whichever plugin told them (E3)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cdcwatch.deadline.event import EventEncoder, Stamp
from cdcwatch.deadline.rule import SCHEDULED, Derived
from cdcwatch.decode.change import Row
from cdcwatch.decode.pgoutput import PgoutputDecoder
from cdcwatch.decode.wal2json import Wal2JsonDecoder
from cdcwatch.table import Column, canonical_key, key_mapping, key_texts
from tests.fakes.table import WATCHED
from tests.pgoutput import relation, row_change
from tests.wal2json import render

OID = WATCHED.oid
pieces = st.sampled_from(['"', ",", "[", "]", '","', "\\", '\\"', "", " ", "é", "\u2028", "\x01", "null", "1", "1.0"])
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=8) | st.lists(
    pieces, max_size=4
).map("".join)
keys = st.integers(1, 4).flatmap(lambda width: st.tuples(*[st.lists(texts, min_size=width, max_size=width)] * 2))


@given(pair=keys)
@settings(max_examples=500)
def test_keys_are_equal_when_their_texts_are_and_only_then(pair):
    one, other = (canonical_key(texts, integer=False) for texts in pair)
    assert (one == other) == (pair[0] == pair[1])
    assert (str(one).encode() == str(other).encode()) == (pair[0] == pair[1])
    assert key_texts(one, len(pair[0])) == pair[0]


@given(number=st.integers(-(2**63), 2**63 - 1))
def test_integers_come_back(number):
    key = canonical_key([str(number)], integer=True)
    assert key == number
    assert key_texts(key, 1) == [str(number)]


@given(pair=keys)
@settings(max_examples=200, deadline=None)
def test_both_decoders_and_the_topic_have_the_same_key(pair):
    values = pair[0]
    table = replace(WATCHED, key=tuple(Column(f"k{place}", "text") for place in range(len(values))))
    names = [column.name for column in table.key]
    named = dict(zip(names, values, strict=True))
    row = Row(0, "pending", 3)
    line = render(
        "I", table, columns={**named, "status": "pending", "expires_at": "2000-01-01 00:00:00+00", "version": 3}
    )
    order = [*names, "status", "expires_at", "version"]
    decoder = PgoutputDecoder(table, "p", binary=False)
    decoder.decode(relation(OID, table, order, names))
    tuple_ = [*(text.encode() for text in values), b"pending", b"2000-01-01 00:00:00+00", b"3"]
    told = [Wal2JsonDecoder(table).decode(line), decoder.decode(row_change("I", OID, new=tuple_, binary=False))]
    assert told[0] == told[1]
    key = canonical_key(values, integer=False)
    assert told[0].key == key
    event = EventEncoder(table, system_identifier="7", database="shop").change(
        key, Derived(SCHEDULED, row, None), Stamp.of(1, 2), 1
    )
    assert event.key == str(key).encode()
    assert dict(key_mapping(key, table.key)) == named
