"""The members of a consumer group on streams: leases, what a dead one left pending, what was trimmed or deleted."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.handoff.redis import group as groups
from cdcwatch.handoff.redis.group import StreamMember
from cdcwatch.handoff.redis.sink import RedisSink
from cdcwatch.settings import RedisSettings
from tests.conformance.test_sink import SLOT, event
from tests.integration.test_redis_sink import batch
from tests.streams_of_redis import opened
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.services import Redis

PARTITIONS = 4


class Hearer:
    """A worker's holder, and what it heard."""

    def __init__(self, settings: RedisSettings, name: str) -> None:
        self.has: set[int] = set()
        self.told: list[str] = []
        self.heard: list[bytes | None] = []
        self.member = StreamMember(settings, settings.stream, SLOT, self, name)

    def gained(self, partitions: list[int], count: int) -> None:
        assert count == PARTITIONS
        self.has |= set(partitions)
        self.told.append(f"gained {partitions}")

    def lost(self, partitions: list[int], *, is_gone: bool) -> None:
        assert self.member.partitions() == PARTITIONS
        self.has -= set(partitions)
        self.told.append(f"{'robbed of' if is_gone else 'gave'} {partitions}")

    def poll(self, *, beats: bool = True) -> bool:
        if beats:
            self.member._beaten_s = 0.0
        heard, is_all = self.member.poll()
        self.heard += [one.value for one in heard if one.partition in self.has]
        return is_all and not heard


@pytest.fixture
def settings(redis_server: Redis, stream: str) -> RedisSettings:
    return RedisSettings(url=redis_server.url, stream=stream, partitions=PARTITIONS)


@pytest.fixture
def sink(settings: RedisSettings) -> Iterator[RedisSink]:
    sink = RedisSink(settings, SLOT)
    sink.open()
    yield sink
    sink.close()


@contextlib.contextmanager
def hearer(settings: RedisSettings, name: str) -> Iterator[Hearer]:
    one = Hearer(settings, name)
    try:
        yield one
    finally:
        one.member.close()


def settle(*hearers: Hearer) -> None:
    """Until the partitions are shared, each having its part."""

    def is_shared() -> bool:
        for one in hearers:
            one.poll()
        parts = sorted(len(one.has) for one in hearers)
        return sum(parts) == PARTITIONS and parts[-1] - parts[0] <= 1

    wait_until(is_shared, 20, "shared")
    assert len(set().union(*(one.has for one in hearers))) == PARTITIONS


def silence(settings: RedisSettings, name: str) -> None:
    """As if it had given no sign of life for long."""
    with opened(settings.url) as client:
        client.zadd(f"{settings.stream}.members.cdcwatch.{SLOT}", {name: 1})


def test_members_share_the_streams_and_leave_them_to_each_other(settings: RedisSettings, sink: RedisSink) -> None:
    with hearer(settings, "a") as a:
        settle(a)
        assert a.told == ["gained [0, 1, 2, 3]"]
        with hearer(settings, "b") as b, hearer(settings, "c") as c:
            settle(a, b)
            assert a.told[1:] == ["gave [2, 3]"]
            settle(a, b, c)
            sink.publish([batch(1, [event(key) for key in range(100)])])
            wait_until(lambda: sum(len(one.heard) for one in (a, b, c) if not one.poll() or True) == 100, 20, "heard")
        settle(a)
        assert [told for told in a.told if told.startswith("robbed")] == []


def test_a_silent_member_is_robbed_and_learns_of_it(settings: RedisSettings, sink: RedisSink) -> None:
    with hearer(settings, "a") as a, hearer(settings, "b") as b:
        settle(a, b)
        before = set(a.has)
        silence(settings, "a")
        wait_until(lambda: b.poll() and len(b.has) == PARTITIONS, 20, "b has all")
        a.poll()
        assert a.told[-2:] == [f"robbed of {sorted(before)}", "gained []"]
        settle(a, b)


def test_a_member_that_joins_again_finds_its_own(settings: RedisSettings, sink: RedisSink) -> None:
    with hearer(settings, "a") as a:
        settle(a)
        again = Hearer(settings, "a")
        again.poll()
        assert again.told == ["gained [0, 1, 2, 3]"]
        again.member.close()


def test_what_a_dead_member_left_pending_is_claimed_and_acknowledged_once_heard(
    settings: RedisSettings, sink: RedisSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "OVERLAP_ENTRIES", 1)  # else it would hear of them that way, too
    events = [event(key) for key in range(40)]
    dead = Hearer(settings, "dead")
    settle(dead)
    sink.publish([batch(1, events)])
    wait_until(lambda: dead.poll(beats=False) or len(dead.heard) == 40, 20, "heard, and not acknowledged")
    dead.member._client.close()
    silence(settings, "dead")
    with hearer(settings, "b") as b, opened(settings.url) as client:
        settle(b)
        wait_until(lambda: b.poll() and len(b.heard) >= 40, 20, "claimed")
        assert sorted(b.heard) == sorted(one.value for one in events)
        b.poll()
        for partition in range(PARTITIONS):
            (group,) = client.xinfo_groups(f"{settings.stream}.{partition}")
            assert group["pending"] == 0
        b.member._begin(0)
        assert [one["name"] for one in client.xinfo_consumers(f"{settings.stream}.0", f"cdcwatch.{SLOT}")] == [b"b"]


def test_who_begins_hears_a_little_before_the_end(
    settings: RedisSettings, sink: RedisSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "OVERLAP_ENTRIES", 3)
    sink.publish([batch(1, [event(1, number) for number in range(20)])])
    with hearer(settings, "a") as a:
        settle(a)
        wait_until(a.poll, 20, "all heard")
        assert a.heard == [event(1, number).value for number in (17, 18, 19)]
        sink.publish([batch(2, [event(1, 20)])])
        wait_until(lambda: not a.poll(), 20, "the next is heard")
        assert a.heard[-1] == event(1, 20).value
        a.poll()  # acknowledges it
    sink.publish([batch(3, [event(1, number) for number in range(21, 40)])])  # while nobody hears
    with hearer(settings, "b") as b:
        settle(b)
        wait_until(b.poll, 20, "all heard")
        assert b.heard == [event(1, number).value for number in (37, 38, 39)], "what is older is in the table"


def test_entries_that_were_trimmed_unread_are_noticed(settings: RedisSettings, sink: RedisSink) -> None:
    with hearer(settings, "a") as a, opened(settings.url) as client:
        settle(a)
        sink.publish([batch(1, [event(1, number) for number in range(20)])])
        wait_until(lambda: a.poll(beats=False) and len(a.heard) == 20, 20, "heard")
        stream = next(name for name in (f"{settings.stream}.{n}" for n in range(PARTITIONS)) if client.xlen(name))
        client.xtrim(stream, maxlen=0)
        a.poll()
        assert len(a.told) == 1, "what was read may go"
        sink.publish([batch(2, [event(1, number) for number in range(20, 40)])])
        client.xtrim(stream, maxlen=5)
        a.poll()
        assert a.told[1:] == [f"gained [{stream[-1]}]"]
        a.poll()
        assert len(a.told) == 2, "once"


def test_a_stream_or_group_that_was_deleted_is_noticed(settings: RedisSettings, sink: RedisSink) -> None:
    with hearer(settings, "a") as a, opened(settings.url) as client:
        settle(a)
        client.xgroup_destroy(f"{settings.stream}.1", f"cdcwatch.{SLOT}")
        with pytest.raises(UnavailableError, match="was deleted"):
            wait_until(lambda: a.poll(beats=False) and False, 1, "an error")
        client.delete(f"{settings.stream}.1")
        with pytest.raises(PreconditionError, match="no stream"):
            a.member.partitions()
        with pytest.raises(PreconditionError, match="no stream"):
            Hearer(settings, "b")
