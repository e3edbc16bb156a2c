"""What is seen from beside: a sink that falls silent is told within seconds, once, and its return once."""

from __future__ import annotations

import logging

import pytest

from cdcwatch.deadline.event import Event
from cdcwatch.deadline.position import Position
from cdcwatch.handoff.outbox import Outbox
from cdcwatch.handoff.progress import Origin, Progress
from cdcwatch.pipeline.recent import KEPT, RecentOutbox
from cdcwatch.pipeline.sink_lookout import SILENT_S, SinkLookout

ORIGIN = Origin("7", 1, "shop", "orders")


def progress(lsn: int) -> Progress:
    return Progress(ORIGIN, Position(end_lsn=lsn))


class _World:
    def __init__(self) -> None:
        self.now_s, self.why, self.asked = 100.0, "Kafka: no broker can be reached", 0
        self.outbox = Outbox(1 << 20, lambda: None, now_s=lambda: self.now_s)
        self.lookout = SinkLookout(self.outbox, self.ask, now_s=lambda: self.now_s)

    def ask(self) -> str:
        self.asked += 1
        return self.why

    def pass_s(self, seconds: int) -> None:
        for _ in range(seconds):
            self.now_s += 1
            self.lookout.look()

    def acknowledge(self) -> None:
        self.outbox.acknowledge([batch.sequence for batch in self.outbox.take(100, 0)])


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> _World:
    monkeypatch.setattr(logging.getLogger("cdcwatch"), "propagate", True)
    caplog.set_level(logging.INFO)
    return _World()


def test_an_outage_is_told_once_within_seconds_and_its_end_once(
    world: _World, caplog: pytest.LogCaptureFixture
) -> None:
    world.pass_s(60)
    assert caplog.records == [], "nothing waits: there is nothing to say"
    world.outbox.offer([Event(b"1", b"{}")] * 2, progress(256))
    world.pass_s(int(SILENT_S))
    assert caplog.records == []
    world.pass_s(30)
    (said,) = caplog.records
    assert said.getMessage() == (
        "sink: unreachable: Kafka: no broker can be reached; 2 events in flight, none acknowledged for 4 s;"
        " nothing is confirmed, orders are closed meanwhile"
    )
    assert (said.lsn, said.reason, world.asked) == ("0/0", world.why, 1)  # type: ignore[attr-defined]
    world.acknowledge()
    world.pass_s(30)
    assert [record.getMessage() for record in caplog.records[1:]] == ["sink: it acknowledges again, after 34 s"]
    assert caplog.records[1].lsn == "0/100"  # type: ignore[attr-defined]


def test_a_sink_that_is_slow_but_acknowledges_is_not_silent(world: _World, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(5):
        world.outbox.offer([], progress(number + 1))
    world.outbox.take(100, 0)
    for number in range(4):
        world.pass_s(2)
        world.outbox.acknowledge([range(number, number + 1)])
    assert caplog.records == []


def test_what_the_publisher_has_told_is_not_told_again(world: _World, caplog: pytest.LogCaptureFixture) -> None:
    world.outbox.offer([], progress(1))
    world.outbox.is_sink_failing = True
    world.pass_s(30)
    assert (caplog.records, world.asked) == ([], 0)
    world.outbox.is_sink_failing = False
    world.acknowledge()
    world.pass_s(2)
    assert len(caplog.records) == 1, "its end is"


def test_the_last_events_are_told_by_type_key_and_position_alone() -> None:
    outbox = RecentOutbox(1 << 20, lambda: None)
    value = (
        b'{"id":"0/1A-%d","source":"cdcwatch:7/shop/public.orders","type":"deadline.expired","subject":"%d",'
        b'"time":"T","data":{"status":"a secret","commit_lsn":"0/1A"}}'
    )
    outbox.offer([Event(b"", b"")], progress(1))  # sink.kind = "none"
    outbox.offer([], progress(2))
    outbox.offer([Event(b"k", value % (number, number)) for number in range(KEPT + 3)], progress(3))
    outbox.offer([Event(None, b'{"about":"row","commit_lsn":"0/1B","id":"0/1B-1","input_hex":"00"}')], progress(4))
    first, *rest = outbox.recent()
    assert first == {"type": "dead letter: row", "table": "", "key": "", "lsn": "0/1B", "time": None}
    assert [one["key"] for one in rest] == [str(number) for number in range(KEPT + 2, 3, -1)]
    assert rest[0] == {
        "type": "deadline.expired",
        "table": "public.orders",
        "key": str(KEPT + 2),
        "lsn": "0/1A",
        "time": "T",
    }
    assert outbox.unacknowledged_events == KEPT + 5
