"""The oracle tells what is early from what is only told again."""

from __future__ import annotations

import pytest

from tests.oracle.subscriber import Record, assert_nothing_confirmed_early


def record(offset: int, commit_lsn: str) -> Record:
    return Record(0, offset, "1", {"id": f"{commit_lsn}-1", "data": {"commit_lsn": commit_lsn}})


def test_what_is_told_again_behind_the_end_was_not_confirmed_early() -> None:
    records = [record(0, "0/10"), record(1, "0/10"), record(2, "0/20")]
    assert_nothing_confirmed_early(records, 0x20, {0: 1}, at="here")


def test_what_stands_behind_the_end_alone_was() -> None:
    records = [record(0, "0/10"), record(1, "0/18")]
    with pytest.raises(AssertionError, match="0/18-1 was confirmed before it was published"):
        assert_nothing_confirmed_early(records, 0x20, {0: 1}, at="here")
