"""The Redis sink: all or nothing at any size, durable, on a server that is fit for it, or a word why not."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from cdcwatch import failpoints
from cdcwatch.errors import CdcwatchError, ConfigurationError, PreconditionError, UnavailableError
from cdcwatch.handoff.redis import sink as sinks
from cdcwatch.handoff.redis.client import connected
from cdcwatch.handoff.redis.group import StreamMember
from cdcwatch.handoff.redis.ledger import find_progress, forget_progress
from cdcwatch.handoff.redis.preflight import redis_checks
from cdcwatch.handoff.redis.server import read_server
from cdcwatch.handoff.redis.sink import RedisSink
from cdcwatch.handoff.redis.tail import StreamTail
from cdcwatch.handoff.sink import Batch, FencedError
from cdcwatch.settings import RedisSettings, Settings, SinkSettings
from tests.conformance.test_sink import SLOT, dead_letter, event, progress
from tests.streams_of_redis import opened, read_streams
from tests.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cdcwatch.deadline.event import Event
    from cdcwatch.local import LocalRedis
    from tests.services import Redis

READ_POINTS = {
    "redis.staged": "redis.staged=raise",
    "redis.decided": "redis.decided=raise",
    "redis.moved": "redis.moved=raise@2",
}
EVENTS = [event(number % 7, number) for number in range(2600)]


@pytest.fixture
def settings(redis_server: Redis, stream: str) -> RedisSettings:
    return RedisSettings(url=redis_server.url, stream=stream, partitions=3)


@pytest.fixture
def own(own_redis: LocalRedis) -> RedisSettings:
    return RedisSettings(url=own_redis.url)


@contextlib.contextmanager
def sink_on(settings: RedisSettings, topics: tuple[str, ...] = ()) -> Iterator[RedisSink]:
    sink = RedisSink(settings, SLOT, topics)
    try:
        sink.open()
        yield sink
    finally:
        sink.close()


def batch(number: int, events: list) -> Batch:
    return Batch(events, progress(number), range(len(events) + 1), 100 * len(events))


def values(settings: RedisSettings) -> list[bytes]:
    return [record.value for record in read_streams(settings.url, settings.stream, settings.partitions)]


def in_order(settings: RedisSettings, events: list) -> None:
    found = read_streams(settings.url, settings.stream, settings.partitions)
    assert len(found) == len(events)
    for key in {one.key for one in events}:
        assert [one.value for one in found if one.key == key] == [one.value for one in events if one.key == key]


@contextlib.contextmanager
def failing_at(specification: str) -> Iterator[None]:
    failpoints.arm({failpoints.VARIABLE: specification})
    try:
        with pytest.raises(failpoints.FailpointError):
            yield
    finally:
        failpoints.arm({})


@pytest.mark.parametrize("point", READ_POINTS.values())
def test_a_snapshot_that_is_broken_off_is_finished_by_the_next_or_was_never_there(
    settings: RedisSettings, point: str
) -> None:
    is_decided = not point.startswith("redis.staged")
    with sink_on(settings) as sink, failing_at(point):
        sink.publish_snapshot(EVENTS, progress(1))
    before = values(settings)
    assert len(before) == (1000 if "moved" in point else 0)
    with sink_on(settings) as sink:
        assert sink._known == (progress(1).to_json() if is_decided else b"")
        if not is_decided:
            assert values(settings) == []
            assert sink.publish_snapshot(EVENTS, progress(1)) == len(EVENTS)
        in_order(settings, EVENTS)
        sink.publish([batch(2, [event(1, 9000)])])
    assert len(values(settings)) == len(EVENTS) + 1
    with opened(settings.url) as client:
        assert not client.exists(f"{settings.stream}.staged.{SLOT}")


def test_whoever_was_fenced_moves_nothing_more(settings: RedisSettings) -> None:
    with sink_on(settings) as first:
        with failing_at("redis.moved=raise"):
            first.publish_snapshot(EVENTS, progress(1))
        with sink_on(settings):
            in_order(settings, EVENTS)
            with pytest.raises(FencedError):
                first._move(first._running(), first._places.names)
        in_order(settings, EVENTS)


def test_a_read_that_another_process_took_over_comes_to_nothing(
    settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is put aside, and before it is decided upon."""
    with sink_on(settings) as first, contextlib.closing(RedisSink(settings, SLOT)) as second:

        def taken_over() -> Iterator[Event]:
            yield from EVENTS[:1500]
            second.open()
            yield from EVENTS[1500:]

        with pytest.raises(FencedError):
            first.publish_snapshot(taken_over(), progress(1))
        first.open()
        monkeypatch.setattr(failpoints, "reached", lambda name, *_: name == "redis.staged" and second.open())
        with pytest.raises(FencedError):
            first.publish_snapshot(iter(EVENTS), progress(1))
        monkeypatch.undo()
        assert values(settings) == []
        assert second.publish_snapshot([], progress(1)) == 0
        assert first.open() == progress(1)


def test_what_is_put_aside_is_not_decided_upon_once_it_was_touched(
    settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with sink_on(settings) as sink, opened(settings.url) as client:
        sink._known = b"not this"
        with pytest.raises(UnavailableError, match="not the one"):
            sink.publish_snapshot(iter(EVENTS), progress(1))
        assert sink.open() is None
        staged = f"{settings.stream}.staged.{SLOT}"
        monkeypatch.setattr(failpoints, "reached", lambda name, *_: name == "redis.staged" and client.delete(staged))
        with pytest.raises(UnavailableError):
            sink.publish_snapshot(iter(EVENTS), progress(1))
        monkeypatch.undo()
        assert sink.open() is None
        assert values(settings) == []


def test_what_is_put_aside_and_deleted_on_its_way_takes_the_progress_along(settings: RedisSettings) -> None:
    """Else the rest of a read would never be told, and nobody would know."""
    with sink_on(settings) as sink, opened(settings.url) as client:
        with failing_at(READ_POINTS["redis.moved"]):
            sink.publish_snapshot(EVENTS, progress(1))
        client.delete(f"{settings.stream}.staged.{SLOT}")
        with pytest.raises(UnavailableError):
            sink.open()
        assert sink.open() is None


def test_a_batch_that_is_too_much_for_a_script_is_put_aside_first(
    settings: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "_MANY_EVENTS", 1500)
    with sink_on(settings) as sink:
        sink.publish([batch(1, EVENTS[:600]), batch(2, EVENTS[600:1200]), batch(3, EVENTS[1200:])])
        assert len(sink.acknowledged()) == 3
    in_order(settings, EVENTS)
    assert find_progress(settings, SLOT) == progress(3)


def test_scripts_hold_whole_batches_and_a_refused_one_refuses_those_behind_it(settings: RedisSettings) -> None:
    with sink_on(settings) as sink:
        batches = [batch(number, EVENTS[number * 400 : number * 400 + 400]) for number in range(6)]
        assert [len(parts) // 5 for parts, _ in sink._scripts(batches)] == [800, 800, 800]
        sink.publish(batches[:1])
        sink._known = b"not this"  # as if another had written
        with pytest.raises(UnavailableError, match="not the one"):
            sink.publish(batches[1:])
        assert len(values(settings)) == 400
        assert sink.open() == progress(0)
        sink.publish(batches[1:])
        in_order(settings, EVENTS[:2400])


def test_streams_keep_the_count_that_they_were_made_with(settings: RedisSettings) -> None:
    with sink_on(settings):
        pass
    for other in (1, 4):
        with pytest.raises(PreconditionError, match="have 3 partitions") as caught:
            RedisSink(replace(settings, partitions=other), SLOT).open()
        assert "redis.partitions = 3" in caught.value.remedy


def test_a_stream_that_was_deleted_is_noticed_and_not_made_anew_while_it_runs(settings: RedisSettings) -> None:
    with sink_on(settings) as sink, opened(settings.url) as client:
        assert sink.made_topics == {settings.stream}
        client.delete(f"{settings.stream}.1")
        for _ in range(2):
            with pytest.raises(PreconditionError, match=r"no stream '.*\.1' any more"):
                sink.publish([batch(1, EVENTS[:20])])
            assert values(settings) == []
            with pytest.raises(PreconditionError, match="any more"):
                sink.open()
            sink._client = connected(settings)
    with sink_on(settings) as again:
        assert again.made_topics == {settings.stream}
        again.publish([batch(1, EVENTS[:20])])
    with sink_on(settings) as again:
        assert again.made_topics == set()


def test_a_key_of_another_program_is_left_alone(settings: RedisSettings) -> None:
    with opened(settings.url) as client:
        client.set(f"{settings.stream}.2", "theirs")
        with pytest.raises(PreconditionError, match="is a string"):
            RedisSink(settings, SLOT).open()
        assert client.get(f"{settings.stream}.2") == b"theirs"


def test_tables_have_streams_of_their_own(settings: RedisSettings) -> None:
    topics = (f"{settings.stream}.a", f"{settings.stream}.b")
    with sink_on(settings, topics) as sink:
        events = [event(1, 1)._replace(topic=topics[1]), event(1, 2)._replace(topic=topics[0])]
        sink.publish([batch(1, events)])
    for topic, number in zip(topics, (2, 1), strict=True):
        assert values(replace(settings, stream=topic)) == [event(1, number).value]


def test_old_events_are_trimmed_by_age(settings: RedisSettings) -> None:
    aged = replace(settings, partitions=1, max_age_s=60)
    with sink_on(aged) as sink, opened(settings.url) as client:
        for number in range(300):
            client.xadd(settings.stream, {"value": "old"}, id=f"{number + 1}-0")
        client.xadd(f"{settings.stream}.dead", {"value": "old"}, id="1-0")
        sink.publish([batch(1, [event(1, 1), dead_letter(2)])])
        assert client.xlen(f"{settings.stream}.dead") == 2
        left = client.xlen(settings.stream)
        assert left < 150, "whole nodes of a hundred entries go"
        assert client.xrevrange(settings.stream, count=1)[0][1][b"id"] == b"0/2000-1"


def test_forgotten_progress_fences_who_writes(settings: RedisSettings) -> None:
    assert not forget_progress(settings, SLOT)
    with sink_on(settings) as sink:
        sink.publish([batch(1, EVENTS[:10])])
        assert find_progress(settings, SLOT) == progress(1)
        assert forget_progress(settings, SLOT)
        assert find_progress(settings, SLOT) is None
        with pytest.raises(FencedError):
            sink.publish([batch(2, EVENTS[10:20])])
        assert sink.open() is None


def test_a_server_that_was_emptied_is_not_written_on(own: RedisSettings) -> None:
    with sink_on(own) as sink, opened(own.url) as client:
        sink.publish([batch(1, EVENTS[:10])])
        client.flushall()
        with pytest.raises(FencedError):
            sink.publish([batch(2, EVENTS[10:20])])
        with pytest.raises(PreconditionError, match="any more"):
            sink.open()


def test_a_full_memory_takes_no_half_of_a_batch(own: RedisSettings) -> None:
    with sink_on(own) as sink, opened(own.url) as client:
        sink.publish([batch(1, EVENTS[:10])])
        client.config_set("maxmemory", "1mb")
        with pytest.raises(UnavailableError, match="out of memory"):
            sink.publish([batch(2, EVENTS[10:900])])
        assert client.xlen(own.stream) == 10
        client.config_set("maxmemory", "0")
        assert sink.open() == progress(1)
        sink.publish([batch(2, EVENTS[10:900])])
        in_order(own, EVENTS[:900])


def test_a_server_that_may_lose_events_is_refused(own: RedisSettings, own_redis: LocalRedis) -> None:
    lax = replace(own, require_fsync=False)
    with opened(own.url) as client:
        for name, value in (("appendfsync", "everysec"), ("no-appendfsync-on-rewrite", "yes"), ("appendonly", "no")):
            before = client.config_get(name)[name]
            client.config_set(name, value)
            with pytest.raises(PreconditionError, match="before events are on its disk") as caught:
                RedisSink(own, SLOT).open()
            assert "appendfsync always" in caught.value.remedy
            with sink_on(lax):
                pass
            client.config_set(name, before)
        client.config_set("maxmemory-policy", "allkeys-lru")
        for settings in (own, lax):
            with pytest.raises(PreconditionError, match="may evict events"):
                RedisSink(settings, SLOT).open()
    own_redis.kill()  # it would finish writing its file anew before it stops


def test_a_redis_that_flushes_once_a_second_is_waited_for(redis_8: LocalRedis) -> None:
    settings = RedisSettings(url=redis_8.url)
    config = Settings(sink=SinkSettings(kind="redis"), redis=settings)
    with sink_on(settings) as sink:
        sink.publish_snapshot(EVENTS, progress(1))
        asked = []
        for number in (2, 3):
            sink.publish([batch(number, [event(1, number)])])
            with opened(settings.url) as client:
                asked.append(client.info("commandstats")["cmdstat_waitaof"]["calls"])
        assert asked == [3, 4], "once for the opening, once for the read, once a batch"
        # As when a crash takes the last second with it between our write and the question.
        with opened(settings.url) as client:
            client.hset(f"{settings.stream}.progress", SLOT, progress(2).to_json())
            with pytest.raises(UnavailableError, match="not the one"):
                sink._wait(sink._running())
            client.hset(f"{settings.stream}.progress", SLOT, progress(3).to_json())
        redis_8.kill()
        redis_8.start()
        assert sink.open() == progress(3)
    checks = {check.name: check for check in redis_checks(config)}
    assert checks["persistence"].state == "ok"
    assert "WAITAOF" in checks["persistence"].message
    with opened(settings.url) as client:
        client.config_set("appendfsync", "no")
    with pytest.raises(PreconditionError, match="appendfsync no"):
        RedisSink(settings, SLOT).open()
    assert {check.name: check.state for check in redis_checks(config)}["persistence"] == "fail"


def test_a_server_that_is_set_otherwise_meanwhile_is_not_written_on(
    own: RedisSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sinks, "_LOOK_S", 0.0)
    with sink_on(own) as sink, opened(own.url) as client:
        sink.publish([batch(1, EVENTS[:5])])
        for name, value in (("appendfsync", "no"), ("maxmemory-policy", "allkeys-lru")):
            before = client.config_get(name)[name]
            client.config_set(name, value)
            with pytest.raises(PreconditionError):
                sink.publish([batch(2, EVENTS[5:9])])
            client.config_set(name, before)
        assert client.xlen(own.stream) == 5
        sink.publish([batch(2, EVENTS[5:9])])
        assert client.xlen(own.stream) == 9


def test_a_server_that_is_loading_its_data_is_waited_for(own: RedisSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    """Meanwhile it says `aof_enabled:0`."""
    with opened(own.url) as client:
        told = {**client.info(), "loading": 1, "aof_enabled": 0}
        monkeypatch.setattr(client, "info", lambda: told)
        with pytest.raises(UnavailableError, match="loading"):
            read_server(client)


RIGHTS = re.compile(r"the keys `~orders[^`]*` .*?, and `([^`]*)`\. `\+waitaof`", re.DOTALL)


def test_the_rights_that_the_page_names_are_enough(own: RedisSettings) -> None:
    page = (Path(__file__).parents[2] / "docs/sinks.md").read_text()
    (rights,) = RIGHTS.findall(page)
    with opened(own.url) as client:
        client.execute_command("ACL", "SETUSER", "narrow", "on", ">word", "~orders.deadlines*", *rights.split())
        narrow = replace(own, url=own.url.replace("redis://", "redis://narrow:word@"))
        with sink_on(narrow) as sink:
            sink.publish_snapshot(EVENTS[:10], progress(1))
            sink.publish([batch(2, EVENTS[10:20])])
            assert len(list(StreamTail(narrow, narrow.stream).so_far())) == 20
        for hears in (False, True):
            checks = redis_checks(Settings(sink=SinkSettings(kind="redis"), redis=narrow), hears=hears)
            assert {check.name: check.message for check in checks if check.state != "ok"} == {}
        member = StreamMember(narrow, narrow.stream, SLOT, Unheld())
        wait_until(lambda: member.poll()[0], 20, "heard")
        assert member.poll() == ([], True)
        member.close()
        client.execute_command("ACL", "SETUSER", "narrow", "-xack", "-xadd")
        for hears, lacking in ((False, "XADD on orders.deadlines"), (True, "XACK on orders.deadlines")):
            checks = redis_checks(Settings(sink=SinkSettings(kind="redis"), redis=narrow), hears=hears)
            (failed,) = [check for check in checks if check.state == "fail"]
            assert lacking in failed.message
        assert forget_progress(narrow, SLOT)


class Unheld:
    """A holder that nothing is done with."""

    def gained(self, partitions: list[int], count: int) -> None: ...

    def lost(self, partitions: list[int], *, is_gone: bool) -> None: ...


def test_rights_are_asked_for_before_anything_is_written(own: RedisSettings) -> None:
    with opened(own.url) as client:
        client.execute_command("ACL", "SETUSER", "shop", "on", ">secret-word", "~orders.deadlines*", "+@all")
        shop = replace(own, url=own.url.replace("redis://", "redis://shop:secret-word@"))
        with sink_on(shop) as sink:
            sink.publish([batch(1, EVENTS[:10])])
        for rights in ("-xadd", "-config", "-hset"):
            client.execute_command("ACL", "SETUSER", "shop", rights)
            with pytest.raises(PreconditionError) as caught:
                RedisSink(shop, SLOT).open()
            assert "secret-word" not in f"{caught.value}{caught.value.remedy}"
            client.execute_command("ACL", "SETUSER", "shop", rights.replace("-", "+"))
        client.execute_command("ACL", "SETUSER", "shop", "resetkeys", "~orders.deadlines", "~orders.deadlines.[op]*")
        with pytest.raises(PreconditionError, match="permission"):  # not of the dead letters
            RedisSink(shop, SLOT).open()
        assert client.xlen(own.stream) == 10


@pytest.mark.parametrize(
    ("url", "kind", "said"),
    [
        ("redis://shop:wrong-word@127.0.0.1:{port}", PreconditionError, "refuses user and password"),
        ("redis://127.0.0.1:1", UnavailableError, "refused"),
        ("redis://:wrong-word@no.such.host.invalid", UnavailableError, "Redis: "),
        ("redis://127.0.0.1:{port}/77", UnavailableError, "Redis"),
        ("http://wrong-word@127.0.0.1", ConfigurationError, "no address of a Redis"),
        ("redis://127.0.0.1:{port}/0?socket_timeout=wrong-word", ConfigurationError, "no address of a Redis"),
    ],
)
def test_a_server_that_cant_be_used_is_said_in_one_line_without_the_password(
    redis_server: Redis, url: str, kind: type[CdcwatchError], said: str
) -> None:
    port = re.search(r":(\d+)/", redis_server.url)
    assert port is not None
    with pytest.raises(kind, match=said) as caught:
        RedisSink(RedisSettings(url=url.format(port=port[1])), SLOT).open()
    assert caught.value.remedy
    assert "\n" not in str(caught.value)
    assert "wrong-word" not in f"{caught.value}{caught.value.remedy}"


def test_a_cluster_keeps_all_keys_in_one_hash_slot(own_redis: LocalRedis) -> None:
    own_redis.settings |= {"cluster-enabled": "yes"}
    own_redis.restart()
    with opened(own_redis.url) as client:
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        wait_until(lambda: client.cluster("info")["cluster_state"] == "ok", 20, "the cluster is up")
    with pytest.raises(PreconditionError, match="one hash slot"):
        RedisSink(RedisSettings(url=own_redis.url), SLOT).open()
    settings = RedisSettings(url=own_redis.url, stream="{orders}.deadlines", partitions=3)
    with sink_on(settings) as sink:
        sink.publish_snapshot(EVENTS[:100], progress(1))
        sink.publish([batch(2, EVENTS[100:200])])
    in_order(settings, EVENTS[:200])
