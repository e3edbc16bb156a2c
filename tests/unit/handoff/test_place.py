from __future__ import annotations

import json

from cdcwatch.handoff.place import in_order
from cdcwatch.handoff.record import Record


def _ordered(*said: dict[str, str] | None) -> list[int]:
    """The places in which these stand, by the places they had."""
    values = [b"noise" if one is None else json.dumps(one).encode() for one in said]
    records = [Record(0, offset, 0, value) for offset, value in enumerate(values)]
    return [record.offset for record in in_order(records, lambda record: record)]


def _event(identity: str, server: str = "1") -> dict[str, str]:
    return {"id": identity, "source": f"cdcwatch:{server}/shop/public.orders"}


def test_commits_and_their_ordinals_are_numbers() -> None:
    assert _ordered(_event("0/A-10"), _event("1/0-1"), _event("0/A-9"), _event("0/FF-1-p2")) == [2, 0, 3, 1]


def test_a_gap_stands_before_the_read_that_follows_from_it() -> None:
    assert _ordered(_event("snapshot-0/A-x-7"), _event("0/9-1"), _event("gap-0/A-p1")) == [1, 2, 0]


def test_positions_of_two_servers_are_not_compared() -> None:
    assert _ordered(_event("F/0-1", "1"), _event("0/2-1", "2"), _event("0/1-1", "2"), _event("E/0-1", "1")) == [
        3,
        0,
        2,
        1,
    ]


def test_what_is_no_event_stays_behind_what_it_came_behind() -> None:
    assert _ordered(_event("0/B-1"), None, {"type": "x"}, _event("0/A-1")) == [3, 0, 1, 2]


def test_dead_letters_have_a_place_too() -> None:
    assert _ordered({"id": "0/B-1"}, {"id": "0/A-2"}, {"id": "0/A-1"}) == [2, 1, 0]
