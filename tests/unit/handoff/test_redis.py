"""Redis without a Redis: what its errors mean, which server is fit, where keys lie, how events are written."""

from __future__ import annotations

import sys

import msgspec
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from redis import exceptions as refused

from cdcwatch.deadline.event import Event, EventEncoder, Stamp
from cdcwatch.deadline.rule import SCHEDULED, Derived
from cdcwatch.decode.change import Row
from cdcwatch.errors import ConfigurationError, PreconditionError, UnavailableError
from cdcwatch.handoff.bus import bus_of
from cdcwatch.handoff.redis.client import explain_redis, place
from cdcwatch.handoff.redis.encoding import Places, packed
from cdcwatch.handoff.redis.facts import StreamFacts, TableFacts
from cdcwatch.handoff.redis.keys import hash_slot, share_a_hash_slot
from cdcwatch.handoff.redis.preflight import judge_table
from cdcwatch.handoff.redis.server import ServerFacts, require_fit
from cdcwatch.pipeline.built import require_built
from cdcwatch.settings import RedisSettings, Settings, SinkSettings
from tests.fakes.table import WATCHED
from tests.murmur2 import partition_of

SETTINGS = RedisSettings(url="redis://shop:secret-word@redis.example:6380/0")
LAX = replace(SETTINGS, require_fsync=False)
ALWAYS = ServerFacts((7, 0, 15), True, "always", False, "noeviction")


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (refused.BusyLoadingError("Redis is loading the dataset in memory"), UnavailableError, "loading"),
        (refused.ReadOnlyError("You can't write against a read only replica."), UnavailableError, "replica"),
        (refused.OutOfMemoryError("command not allowed when used memory > 'maxmemory'."), UnavailableError, "memory"),
        (refused.ResponseError("OOM command not allowed"), UnavailableError, "memory"),
        (refused.ResponseError("MISCONF Redis is configured to save RDB snapshots"), UnavailableError, "disk"),
        (refused.ResponseError("BUSY Redis is busy running a script."), UnavailableError, "busy"),
        (refused.NoScriptError("No matching script."), UnavailableError, "script"),
        (refused.ResponseError("NOREPLICAS Not enough good replicas to write."), UnavailableError, "replicas"),
        (refused.MasterDownError("Link with MASTER is down"), UnavailableError, "master"),
        (refused.ClusterDownError("The cluster is down"), UnavailableError, "cluster"),
        (refused.MovedError("3999 127.0.0.1:6381"), UnavailableError, "another node"),
        (refused.AuthenticationError("invalid username-password pair"), PreconditionError, "user and password"),
        (refused.ResponseError("NOAUTH Authentication required."), PreconditionError, "wants a password"),
        (refused.NoPermissionError("this user has no permissions to run 'xadd'"), PreconditionError, "xadd"),
        (
            refused.ResponseError("The user executing the script can't run this command or subcommand script: 1f, on"),
            PreconditionError,
            "can't run",
        ),
        (refused.ResponseError("WRONGTYPE Operation against a key"), PreconditionError, "something else"),
        (refused.ResponseError("CROSSSLOT Keys in request don't hash to the same slot"), PreconditionError, "apart"),
        (refused.ResponseError("unknown command 'XAUTOCLAIM'"), PreconditionError, "XAUTOCLAIM"),
        (refused.ConnectionError("Error 111 connecting to 127.0.0.1:6379. Refused."), UnavailableError, "111"),
        (refused.ConnectionError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"), PreconditionError, ""),
        (refused.TimeoutError("Timeout reading from socket"), UnavailableError, "does not answer"),
        (refused.ConnectionError(), UnavailableError, "ended the connection"),
        (refused.ResponseError("something\nof several lines"), UnavailableError, "something"),
    ],
)
def test_what_an_error_means(error: refused.RedisError, kind: type[Exception], said: str) -> None:
    found = explain_redis(error)
    assert type(found) is kind
    assert said in str(found)
    assert "\n" not in str(found)
    assert found.remedy


def test_only_a_server_that_keeps_what_it_acknowledged_is_fit() -> None:
    every_second = with_facts(ALWAYS, fsync="everysec")
    assert require_fit(ALWAYS, SETTINGS) is False
    assert require_fit(with_facts(every_second, version=(7, 2)), SETTINGS) is True
    assert require_fit(with_facts(every_second, version=(7, 2)), LAX) is False
    assert require_fit(with_facts(ALWAYS, fsync=None, fsync_pauses=None, version=(8, 0)), SETTINGS) is True
    for unfit, said in (
        (every_second, "everysec"),
        (with_facts(ALWAYS, has_aof=False), "appendonly no"),
        (with_facts(ALWAYS, fsync_pauses=True), "no-appendfsync-on-rewrite yes"),
        (with_facts(every_second, fsync="no", version=(8, 0)), "appendfsync no"),
        (with_facts(ALWAYS, fsync=None, fsync_pauses=None), "CONFIG is refused"),
    ):
        with pytest.raises(PreconditionError, match=said) as caught:
            require_fit(unfit, SETTINGS)
        assert "require_fsync" in caught.value.remedy
        assert require_fit(unfit, LAX) is False
    for unfit in (with_facts(ALWAYS, eviction="volatile-ttl"), with_facts(ALWAYS, version=(6, 2, 7))):
        for settings in (SETTINGS, LAX):
            with pytest.raises(PreconditionError):
                require_fit(unfit, settings)


def with_facts(facts: ServerFacts, **changes: object) -> ServerFacts:
    return ServerFacts(**{**{name: getattr(facts, name) for name in ServerFacts.__slots__}, **changes})  # type: ignore[arg-type]


def judged(settings: RedisSettings = SETTINGS, *, hears: bool = False, **changes: object) -> dict[str, tuple[str, str]]:
    whole = {
        "server": ALWAYS,
        "streams": StreamFacts((), (), 12, 1_000),
        "dead": 0,
        "has_progress": True,
        "partitions": 1,
        "lacking": (),
        "now_ms": 200_000_000,
        "group": "cdcwatch.slot",
        "members": 2,
        **changes,
    }
    checks = judge_table(TableFacts(**whole), settings, "orders", "slot", hears=hears)  # type: ignore[arg-type]
    for check in checks:
        assert check.state == "ok" or check.remedy, check
        assert "secret-word" not in check.message + check.remedy
    return {check.name: (check.state, check.message) for check in checks}


def test_check_tells_what_there_is() -> None:
    found = judged()
    assert found["redis"] == ("ok", "Redis 7.0.15 answers at redis.example:6380")
    assert found["redis_tls"][0] == "warn"
    assert found["stream"] == ("ok", "orders: 1 stream, 12 events, the oldest of 2 d ago")
    assert {state for state, _ in found.values()} == {"ok", "warn"}
    assert judged(replace(SETTINGS, url="rediss://a"))["redis_tls"][0] == "ok"
    assert judged(replace(SETTINGS, url="redis://127.0.0.1"))["redis_tls"][0] == "ok"
    assert judged(replace(SETTINGS, url="rediss://a?ssl_cert_reqs=none"))["redis_tls"][0] == "warn"
    assert judged(dead=2)["dead_letters"][0] == "warn"
    assert judged(lacking=None)["rights"][0] == "warn"
    assert judged(lacking=("XADD on orders",))["rights"] == ("fail", "we lack XADD on orders")
    assert judged(partitions=4)["stream"][0] == "fail"
    assert judged(streams=StreamFacts((), ("orders",), 0, None))["stream"][0] == "fail"
    gone = StreamFacts(("orders",), (), 0, None)
    assert "run makes 1 stream" in judged(streams=gone, has_progress=False)["stream"][1]
    assert judged(streams=gone, has_progress=True)["stream"][0] == "warn"
    assert judged(hears=True, streams=StreamFacts(("orders",), (), 0, None))["stream"][0] == "fail"
    assert "2 workers" in judged(hears=True)["group"][1]
    assert "persistence" not in judged(hears=True)
    full = with_facts(ALWAYS, used_bytes=90 << 20, limit_bytes=100 << 20)
    assert judged(server=full)["memory"] == (
        "warn",
        "90 of 100 MiB of maxmemory are used: when it is full nothing is published",
    )
    assert judged(server=with_facts(ALWAYS, is_replica=True))["redis"][0] == "fail"
    assert judged(server=with_facts(ALWAYS, version=(6, 2)))["redis"][0] == "fail"
    lax = judged(LAX, server=with_facts(ALWAYS, fsync="everysec"))
    assert lax["persistence"][0] == "warn"
    assert "lose the last second" in lax["persistence"][1]


@pytest.mark.parametrize(
    ("key", "slot"), [("foo", 12182), ("{foo}.bar", 12182), ("foo{}{bar}", 8363), ("{}", 15257), ("123456789", 12739)]
)
def test_where_a_cluster_keeps_a_key(key: str, slot: int) -> None:
    """By `CLUSTER KEYSLOT`."""
    assert hash_slot(key) == slot


def test_keys_with_one_tag_stand_together() -> None:
    assert share_a_hash_slot(["{a}.x", "{a}.y", "p.{a}"])
    assert not share_a_hash_slot(["a.x", "a.y"])


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://u:secret@host", "host:6379"),
        ("rediss://host:7/1", "host:7"),
        ("unix:///run/redis.sock?db=1", "/run/redis.sock"),
        ("redis://host:port", "redis.url"),
    ],
)
def test_a_place_is_told_without_the_password(url: str, told: str) -> None:
    assert place(RedisSettings(url=url)) == told


@given(st.text(max_size=20).filter(lambda text: "\0" not in text))
def test_fields_are_those_of_the_value(key: str) -> None:
    encoder = EventEncoder(WATCHED, system_identifier="1", database='sh"op\\', topic="a")
    rule = Derived(SCHEDULED, Row(0, key, 0), None)
    event = encoder.snapshot(key, rule, Stamp.of_snapshot(0x2000, 0))._replace(topic="b")
    parts: list = []
    Places(["a", "b"], 3).put(event, parts)
    said = orjson.loads(event.value)
    assert parts == [4 + partition_of(event.key or b"", 3), said["id"], said["type"], key, event.value.decode()]


def test_a_script_names_the_streams_that_it_writes_to() -> None:
    places = Places(["a", "b"], 2)
    assert places.names == ["a.0", "a.1", "b.0", "b.1", "a.dead", "b.dead"]
    assert places.live == 4
    parts: list = []
    places.put(Event(None, b'{"specversion":"1.0","id":"i","source":"s","type":"t","subject":"*"}', "b"), parts)
    assert parts[:3] == [-3, "i-p0", "t"]
    numbers, blob = packed(parts)
    assert numbers == [3, 4]
    assert [msgspec.msgpack.decode(blob)[at] for at in (0, 5)] == [-1, -2]


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(sink=SinkSettings(kind="redis"))
    for name in [name for name in sys.modules if name.startswith("cdcwatch.handoff.redis")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    for asked in (lambda: bus_of(settings), lambda: require_built(settings, "all")):
        with pytest.raises(ConfigurationError, match="needs the Python package redis") as caught:
            asked()
        assert caught.value.remedy == "pip install 'cdcwatch[redis]'"
