"""Readiness, judged from what is seen of the parts; the ages on clocks set by hand."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from cdcwatch.close.agenda import Agenda, Work
from cdcwatch.close.clock import ClockSample, DatabaseClock
from cdcwatch.close.closer import Closer
from cdcwatch.close.outcome import CloseReport, CurrentRow, Outcome, Unclosed
from cdcwatch.deadline.derivation import Derivation
from cdcwatch.deadline.event import Unpublished
from cdcwatch.deadline.position import Position
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.deadline.schedule import Due, Schedule
from cdcwatch.decode.wal2json import Wal2JsonDecoder
from cdcwatch.handoff.outbox import Outbox
from cdcwatch.handoff.progress import Origin, Progress
from cdcwatch.instant import NEGATIVE_INFINITY_US
from cdcwatch.pipeline.health import Health
from cdcwatch.pipeline.reader import Reader, Waker
from cdcwatch.pipeline.readiness import (
    OVERDUE_S,
    SINK_S,
    STUCK_S,
    UNANSWERED_S,
    WINDOW_S,
    CloserSigns,
    ReaderSigns,
    SinkSigns,
    judge_closer,
    judge_closers,
    judge_reader,
    judge_sink,
)
from tests.fakes.slot import FACTS, FakeStream, keepalive
from tests.fakes.table import WATCHED, FakeClock

S = 1_000_000
ORIGIN = Origin("1", 1, "shop", "orders", 1, "public.orders")
READS = ReaderSigns(is_streaming=True, has_slot=True, stepped_age_s=0.2, heard_age_s=4.9)
SINKS = SinkSigns(is_open=True, last_error="", acknowledged_age_s=3600.0, oldest_age_s=0.0)
CLOSES = CloserSigns(
    is_started=True,
    is_loaded=True,
    is_connected=True,
    last_error="",
    progress_age_s=0.5,
    unanswered_s=0.0,
    behind_s=0.0,
    held_up_s=0.0,
    refused_s=0.0,
    window_error="",
    window_age_s=1.0,
)


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({}, None),
        ({"has_slot": False, "is_streaming": False}, "waiting for the slot"),
        ({"has_slot": False, "is_streaming": False, "away": "connection failed"}, "connection failed"),
        ({"is_streaming": False}, "waiting for the sink"),
        ({"stepped_age_s": STUCK_S}, None),
        ({"stepped_age_s": STUCK_S + 1}, "stuck for 11 s"),
        ({"heard_age_s": STUCK_S}, None),
        ({"heard_age_s": STUCK_S + 1}, "nothing came from the server for 11 s"),
    ],
)
def test_the_reader(seen, reason):
    part = judge_reader(replace(READS, **seen))
    assert part.ready is (reason is None)
    assert (reason or "streaming") in part.reason


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        ({}, None),
        ({"is_open": False}, "being opened"),
        ({"is_open": False, "last_error": "Kafka: away"}, "Kafka: away"),
        ({"last_error": "Kafka refuses"}, "Kafka refuses"),
        ({"oldest_age_s": SINK_S}, None),
        ({"oldest_age_s": SINK_S + 1}, "not been acknowledged for 11 s"),
    ],
)
def test_the_sink(seen, reason):
    part = judge_sink(replace(SINKS, **seen))
    assert part.ready is (reason is None)
    assert (reason or "open") in part.reason
    assert part.waiting_s == seen.get("oldest_age_s", 0.0)


@pytest.mark.parametrize(
    ("seen", "reason"),
    [
        pytest.param({}, None, id="nothing is due"),
        pytest.param({"is_started": False}, "waiting for the slot", id="not begun"),
        pytest.param({"is_connected": False, "last_error": "PostgreSQL: away"}, "PostgreSQL: away", id="away"),
        pytest.param({"is_loaded": False}, "loading the window", id="the window is being loaded"),
        pytest.param({"unanswered_s": UNANSWERED_S + 1}, "has not answered a close for 6 s", id="unanswered"),
        pytest.param({"unanswered_s": UNANSWERED_S}, None, id="a long batch"),
        pytest.param({"behind_s": UNANSWERED_S + 1}, None, id="a spike is being worked off"),
        pytest.param(
            {"behind_s": UNANSWERED_S + 1, "progress_age_s": 6.0}, "has waited for 6 s", id="and nobody takes it"
        ),
        pytest.param({"behind_s": OVERDUE_S + 1}, "has waited for 11 s", id="a backlog"),
        pytest.param({"progress_age_s": 60.0}, None, id="idle threads asleep, nothing due"),
        pytest.param({"held_up_s": OVERDUE_S + 1}, "due for 11 s and others hold it", id="locked"),
        pytest.param({"refused_s": OVERDUE_S + 1}, "nothing could be closed for 11 s", id="a right is missing"),
        pytest.param({"refused_s": OVERDUE_S}, None, id="a right was missing"),
        pytest.param({"window_age_s": WINDOW_S + 1}, "window has not been read for 31 s", id="the window is stuck"),
        pytest.param({"window_age_s": 31.0, "window_error": "why"}, "why", id="the window fails"),
        pytest.param({"window_error": "once"}, None, id="the window failed a moment ago"),
    ],
)
def test_the_closer(seen, reason):
    part = judge_closer(replace(CLOSES, **seen))
    assert part.ready is (reason is None)
    assert (reason or "working") in part.reason
    assert part.waiting_s == max(seen.get(name, 0.0) for name in ("unanswered_s", "behind_s", "held_up_s"))


class _HalfOpen:
    """A slot whose stream says nothing."""

    def __init__(self) -> None:
        self.stream = FakeStream()

    def acquire(self, _options):
        return FACTS, self.stream


class _Deaf:
    """An observer."""

    def read(self, **_figures: int) -> None:
        pass


def test_a_half_open_stream_shows_before_it_is_given_up():
    slot = _HalfOpen()
    reader = Reader(
        slot,
        slot_name="orders",
        decoder=lambda: Wal2JsonDecoder(WATCHED),
        derivation=lambda _origin: Derivation(DeadlineRule(WATCHED), Unpublished()),
        outbox=Outbox(1 << 20, lambda: None),
        schedules=(None,),
        observer=_Deaf(),
        waker=Waker(),
        acquired=lambda _facts, _origin: None,
        reached=lambda: None,
        failed=lambda _error: None,
    )
    try:
        assert judge_reader(reader.signs(0.0)).reason == "waiting for the slot"
        reader.step(1000.0)
        assert "waiting for the sink" in judge_reader(reader.signs(1000.0)).reason
        reader.begin_at(Progress(ORIGIN, Position(end_lsn=FACTS.confirmed_flush_lsn)), is_exact=True)
        slot.stream.incoming.append(keepalive(FACTS.confirmed_flush_lsn))
        for now_s in range(1001, 1012):
            reader.step(float(now_s))
            assert judge_reader(reader.signs(float(now_s))).ready is True
        assert reader.signs(1020.0).stepped_age_s == 9.0
        reader.step(1012.0)
        assert "nothing came from the server for 11 s" in judge_reader(reader.signs(1012.0)).reason
        reader.step(1020.0)
        assert slot.stream.is_closed
        assert judge_reader(reader.signs(1020.0)).reason == reader.signs(1020.0).away != ""
        assert judge_reader(reader.signs(1020.0)).age_s == 19.0
        reader.step(1021.0)
        assert reader.signs(1021.0).away == "", "the slot is ours again"
    finally:
        reader._waker.close()


class _Part:
    """Stands for reader, publisher and closing."""

    is_open, last_error, confirmed_lsn, reconnect_count, reopen_count = True, "", 0, 0, 0

    def __init__(self) -> None:
        self.are_threads_alive = True
        self.reading, self.closing = READS, CLOSES

    def is_alive(self) -> bool:
        return self.are_threads_alive

    def signs(self, *now_s: float):
        return self.reading if now_s else self.closing


def test_the_whole_is_ready_when_every_part_is_and_says_the_ages():
    outbox = Outbox(1 << 20, lambda: None)
    health = Health(outbox, closes=True)
    assert health.readiness()["ready"] is False
    assert health.readiness()["sink"] == {
        "ready": False,
        "reason": "waiting for the slot",
        "age_s": None,
        "waiting_s": 0.0,
    }
    parts = health.reader, health.publisher, closing = _Part(), _Part(), _Part()
    health.closings = {"orders": closing}
    assert health.readiness() == {
        "ready": True,
        "reader": {"ready": True, "reason": "streaming", "age_s": 4.9, "waiting_s": 0.0},
        "sink": {"ready": True, "reason": "open", "age_s": None, "waiting_s": 0.0},
        "closer": {"ready": True, "reason": "working", "age_s": 0.5, "waiting_s": 0.0},
    }
    parts[0].reading = replace(READS, heard_age_s=11.0)
    assert health.readiness()["ready"] is False
    parts[0].reading = READS
    parts[2].closing = replace(CLOSES, held_up_s=16.0)
    assert health.readiness()["ready"] is False
    reads_only = Health(outbox, closes=False)
    reads_only.reader, reads_only.publisher = _Part(), _Part()
    assert set(reads_only.readiness()) == {"ready", "reader", "sink"}
    assert reads_only.readiness()["ready"] is True


def test_liveness_asks_for_the_threads_alone():
    health = Health(Outbox(1 << 20, lambda: None), closes=True)
    assert health.liveness() == []
    parts = health.reader, health.publisher, closing = _Part(), _Part(), _Part()
    health.closings = {"orders": closing}
    parts[0].reading = replace(READS, stepped_age_s=1e6)
    assert health.liveness() == []
    for name, part in zip(("reader", "sink", "closer"), parts, strict=True):
        part.are_threads_alive = False
        assert health.liveness() == [name]
        part.are_threads_alive = True
    parts[0].are_threads_alive = False
    health.is_stopping = True
    assert health.liveness() == []


def test_the_outbox_knows_how_long_its_oldest_waits():
    now_s = 100.0
    outbox = Outbox(1 << 20, lambda: None, lambda: now_s)
    assert (outbox.oldest_age_s, outbox.acknowledged_age_s) == (0.0, None)
    for end_lsn in (10, 20):
        outbox.offer([], Progress(ORIGIN, Position(end_lsn=end_lsn)))
        now_s += 5
    assert outbox.oldest_age_s == 10.0
    first, second = (batch.sequence for batch in outbox.take(10, 0))
    outbox.acknowledge([second])
    assert outbox.oldest_age_s == 10.0, "the second is durable, the first still waits"
    assert outbox.acknowledged_age_s is None
    outbox.acknowledge([first])
    now_s += 3
    assert (outbox.oldest_age_s, outbox.acknowledged_age_s) == (0.0, 3.0)


class _Orders:
    """An agenda on two clocks that go at one pace."""

    def __init__(self) -> None:
        self.clock, self.now_us = FakeClock(), 850_000_000 * S
        schedule = Schedule(window_end_us=NEGATIVE_INFINITY_US, max_entries=1000)
        self.agenda = Agenda(Closer(schedule, random=lambda: 0.0), DatabaseClock(), self.clock)
        self.agenda.extend_window(self.now_us + 3600 * S)
        assert self.agenda.work_now(10) is Work.MEASURE
        self._measure()

    def _measure(self) -> None:
        self.agenda.observe([ClockSample(self.clock.us, self.now_us, self.clock.us)])

    def pass_s(self, seconds: int) -> None:
        self.clock.us += seconds * S
        self.now_us += seconds * S
        self._measure()

    def settle(self, due: Due, outcome: Outcome) -> None:
        row = CurrentRow("pending", due.version, due.deadline_us, True)
        self.agenda.settle(CloseReport(unclosed=[Unclosed(due, outcome, row)]))


def test_an_order_waits_since_it_could_be_taken_not_since_its_deadline():
    orders = _Orders()
    assert orders.agenda.work_now(10) is None
    orders.agenda.apply([(1, orders.now_us - 3600 * S, 0)])
    assert orders.agenda.facts().overdue_us == 3600 * S
    assert orders.agenda.facts().behind_us == 0
    orders.pass_s(20)
    assert orders.agenda.facts().behind_us == 20 * S
    assert isinstance(orders.agenda.work_now(10), list)
    assert orders.agenda.facts().behind_us == 0
    orders.agenda.apply([(2, orders.now_us + 5 * S, 0)])
    orders.pass_s(7)
    assert orders.agenda.facts().behind_us == 2 * S, "due for two seconds"


def test_a_lock_counts_since_it_was_first_met_and_a_refusal_does_not():
    orders = _Orders()
    orders.agenda.apply([(1, orders.now_us, 0)])
    (due,) = orders.agenda.work_now(10)
    orders.settle(due, Outcome.LOCKED)
    for _ in range(4):
        orders.pass_s(5)
        (due,) = orders.agenda.work_now(10)
        assert orders.agenda.locked_us() % (5 * S) == 0
        orders.settle(due, Outcome.LOCKED)
    assert orders.agenda.locked_us() == 20 * S
    orders.pass_s(5)
    (due,) = orders.agenda.work_now(10)
    orders.agenda.give_back([due])
    assert orders.agenda.locked_us() == 25 * S, "an outage in between changes nothing"
    (due,) = orders.agenda.work_now(10)
    orders.settle(due, Outcome.FAILED)
    orders.pass_s(60)
    assert orders.agenda.locked_us() == 0
    orders.agenda.apply([(1, None, 0)])
    assert orders.agenda.locked_us() == 0


def test_what_is_awaited_is_said_by_what_waits_for_it_alone():
    awaited = "hotel.orders was added: waiting"
    closers = judge_closers({"shop.orders": CLOSES, "hotel.orders": replace(CLOSES, is_started=False)}, awaited)
    assert (closers.ready, closers.reason) == (False, f"hotel.orders: {awaited}")
    assert judge_closers({"shop.orders": CLOSES, "hotel.orders": CLOSES}, awaited).ready
    assert judge_reader(replace(READS, is_streaming=False), awaited).reason == awaited
    assert judge_reader(READS, awaited).ready
    assert judge_sink(replace(SINKS, is_open=False), awaited).reason == awaited
    assert judge_sink(replace(SINKS, is_open=False, last_error="away"), awaited).reason == "away"
