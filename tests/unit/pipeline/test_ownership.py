"""Who owns an order: by its key's partition, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdcwatch.pipeline.ownership import Ownership
from tests.murmur2 import partition_of

KEYS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.text(max_size=40))


@given(key=KEYS, partitions=st.integers(1, 50), assigned=st.sets(st.integers(0, 49)))
def test_an_order_is_its_partitions_owners(key, partitions, assigned):
    ownership = Ownership(partitions).gaining(assigned)
    assert ownership.owns(key) == (partition_of(str(key).encode(), partitions) in assigned)
    assert not ownership.has_lost(key)
    assert not ownership.losing(assigned).owns(key)
    assert ownership.losing(assigned).has_lost(key) == ownership.owns(key)


@given(key=KEYS, partitions=st.integers(1, 50), workers=st.integers(1, 7))
def test_each_order_is_one_workers(key, partitions, workers):
    shares = [Ownership(partitions).gaining(range(first, partitions, workers)) for first in range(workers)]
    assert sum(share.owns(key) for share in shares) == 1


def test_nothing_is_owned_before_the_topic_is_known():
    ownership = Ownership()
    assert ownership.is_empty
    assert not ownership.owns(1)
    assert not ownership.has_lost(1)
    assert not Ownership().gaining([0]).owns(1)


def test_what_comes_back_is_not_lost_any_more():
    key = 42
    at = partition_of(b"42", 3)
    ownership = Ownership(3).gaining([0, 1, 2])
    assert ownership.losing([at, 7]).has_lost(key)
    assert not ownership.losing([at]).gaining([at]).has_lost(key)
    assert ownership.losing([at]).given_up == {at}
    assert ownership.losing([7]) == ownership


def test_more_partitions_leave_no_order_counted_as_lost():
    at = partition_of(b"42", 3)
    grown = Ownership(3).gaining([0, 1, 2]).losing([at]).counting(5)
    assert grown.partitions == 5
    assert not grown.has_lost(42)
    assert grown.counting(5) is grown


@given(key=KEYS, before=st.integers(1, 12), more=st.integers(1, 12), workers=st.integers(1, 4), seen=st.data())
def test_added_partitions_that_the_group_has_not_given_to_anybody_leave_no_order_without_an_owner(
    key, before, more, workers, seen
):
    """Whoever has learned of them and whoever has not."""
    shares = [Ownership(before).gaining(range(first, before, workers)) for first in range(workers)]
    grown = [one.counting(before + more) if seen.draw(st.booleans()) else one for one in shares]
    assert any(one.owns(key) for one in grown)

    # Some of what they have goes to one that came since and knows of the new count alone; then they ask for it too.
    given = range(0, before, 2)
    left = [one.losing(given).counting(before + more) for one in grown]
    latecomer = Ownership(before + more).gaining([*given, *range(before, before + more)])
    assert any(one.owns(key) for one in (*left, latecomer))
    assert not any(one.owns(key) and one.has_lost(key) for one in left)


def test_the_counts_before_count_until_it_is_settled():
    grown = Ownership(3).gaining([0]).counting(5).counting(6)
    assert grown.before == (3, 5)
    keys = range(200)
    by = {count: {key for key in keys if partition_of(str(key).encode(), count) == 0} for count in (3, 5, 6)}
    assert {key for key in keys if grown.owns(key)} == by[3] | by[5] | by[6]
    assert {key for key in keys if grown.settled().owns(key)} == by[6]
    assert Ownership().counting(3).before == ()
    assert grown.counting(3).before == (5, 6)
