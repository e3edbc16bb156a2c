"""Whose an order is: everyone's view is one, shares follow the weights, and only what must move moves."""

from collections import Counter

import pytest

from cdcwatch.close.shards import Member, Shard
from cdcwatch.table import canonical_key

THREE = [Member("a", 1.0), Member("b", 1.0), Member("c", 2.0)]
KEYS = {
    "bigint": list(range(-2000, 2000)),
    "text": [f"ördér {number}" for number in range(4000)],
    "two columns": [canonical_key([str(number % 7), f"k{number}"], integer=False) for number in range(4000)],
}


def owner(key, members):
    found = [member.id for member in members if Shard(member.id, members).has(key)]
    assert len(found) == 1, "one instance has it, and only one"
    return found[0]


@pytest.mark.parametrize("kind", KEYS)
def test_every_order_has_one_owner_and_shares_follow_the_weights(kind):
    counts = Counter(owner(key, THREE) for key in KEYS[kind])
    assert abs(counts["a"] - 1000) < 150
    assert abs(counts["b"] - 1000) < 150
    assert abs(counts["c"] - 2000) < 200


def test_the_owner_depends_on_nobodys_order():
    assert [owner(key, THREE) for key in range(200)] == [owner(key, THREE[::-1]) for key in range(200)]


@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_only_the_share_of_who_went_moves(gone):
    left = [member for member in THREE if member.id != gone]
    before = {key: owner(key, THREE) for key in KEYS["text"]}
    moved = {key for key, was in before.items() if owner(key, left) != was}
    assert moved == {key for key, was in before.items() if was == gone}


def test_a_larger_weight_only_takes():
    heavier = [Member("a", 3.0), *THREE[1:]]
    for key in KEYS["bigint"]:
        assert owner(key, heavier) in {"a", owner(key, THREE)}


def test_without_members_everything_is_ours_and_an_outsider_has_nothing():
    assert all(Shard("a", []).has(key) for key in range(100))
    assert not any(Shard("z", THREE).has(key) for key in range(100))
    assert not any(Shard("z", THREE[:1]).has(key) for key in range(100))
    assert all(Shard("a", THREE[:1]).has(key) for key in range(100))


def test_owners_are_the_same_in_every_version():
    """A changed formula would leave orders out while old and new instances sweep side by side."""
    assert "".join(owner(key, THREE) for key in range(40)) == "ccbaabbabcbccccbcbabbcccabcacbbcacabccac"
    assert "".join(owner(f"k{key}", THREE) for key in range(20)) == "abcabccabcccbcaccabb"
