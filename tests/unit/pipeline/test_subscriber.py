"""Hearing the topic as a member of a group, with a group and an agenda of our own."""

from __future__ import annotations

import logging

import pytest
from msgspec.structs import replace

from cdcwatch.close.clock import DatabaseClock
from cdcwatch.close.closer import Closer
from cdcwatch.close.part import PartAgenda
from cdcwatch.deadline.event import EventEncoder, Gap, Stamp
from cdcwatch.deadline.rule import CANCELLED, SCHEDULED, Derived
from cdcwatch.deadline.schedule import Due, Schedule
from cdcwatch.decode.change import Row
from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.handoff.heard import Interpreter
from cdcwatch.handoff.member import Heard
from cdcwatch.pipeline.ownership import Ownership
from cdcwatch.pipeline.readiness import judge_subscriber
from cdcwatch.pipeline.subscriber import SETTLING_S, Subscriber
from tests.fakes.table import WATCHED, FakeClock
from tests.murmur2 import partition_of

NOW_US = 850_000_000_000_000
LATER_US = NOW_US + 10**9
AWAY = UnavailableError("Kafka: no broker can be reached", remedy="bring one back")
ENCODER = EventEncoder(WATCHED, system_identifier="7", database="shop")
STAMP = Stamp.of(0x1A2B390, NOW_US)


def at(key: int, partitions: int = 3) -> int:
    return partition_of(str(key).encode(), partitions)


def scheduled(key: int, deadline_us: int = LATER_US, *, encoder: EventEncoder = ENCODER) -> Heard:
    event = encoder.change(key, Derived(SCHEDULED, Row(deadline_us, "pending", 0), None), STAMP, 1)
    return Heard(at(key), event.key, event.value)


class Group:
    """Gives what it is told to give, inside of `poll`, as the real one does."""

    def __init__(self) -> None:
        self.holder: Subscriber | None = None
        self.steps: list[object] = []
        self.count = 3
        self.away = False
        self.refuses: PreconditionError | UnavailableError | None = None
        self.left = 0

    def join(self, holder):
        if self.refuses is not None:
            raise self.refuses
        self.holder = holder
        return self

    def poll(self):
        heard = []
        steps, self.steps = self.steps, []
        for step in steps:
            if isinstance(step, Exception):
                raise step
            if callable(step):
                step(self.holder)
            else:
                heard.append(step)
        return heard, True

    def partitions(self):
        if self.away:
            raise AWAY
        return self.count

    def close(self):
        self.left += 1


class Rig:
    """A subscriber on a group, an agenda and a clock."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.group = Group()
        closer = Closer(Schedule(window_end_us=NOW_US + 10**10), random=lambda: 0.5)
        self.agenda = PartAgenda(closer, DatabaseClock(), FakeClock(), Ownership())
        self.reloads: list[Ownership] = []
        self.failures: list[Exception] = []
        self.applied, self.skipped = 0, {}
        self.subscriber = Subscriber(
            self.group.join,
            Interpreter(WATCHED, "shop", "7"),
            self.agenda,
            reload=lambda: self.reloads.append(self.agenda.part),
            failed=self.failures.append,
            observer=self,
            now_s=lambda: self.now_s,
        )

    def heard(self, *, applied, skipped):
        self.applied += applied
        self.skipped |= skipped

    def step(self, *steps, after_s=0.1):
        self.now_s += after_s
        self.group.steps = list(steps)
        return self.subscriber.step()

    def gain(self, *partitions):
        self.step(lambda holder: holder.gained(list(partitions), self.group.count if partitions else 0))

    def lose(self, *partitions, is_gone=False):
        self.step(lambda holder: holder.lost(list(partitions), is_gone=is_gone))

    def load(self, *keys):
        self.agenda.load([Due(key, LATER_US, 0) for key in keys])

    @property
    def has(self):
        return set(self.agenda._closer.keys())

    @property
    def part(self):
        return judge_subscriber(self.subscriber.signs())


@pytest.fixture
def rig():
    return Rig()


KEYS = range(100)


def test_what_is_gained_is_let_in_before_the_table_is_read_again(rig):
    rig.gain(0, 2)
    (seen,) = rig.reloads
    assert seen.assigned == {0, 2}
    rig.load(*KEYS)
    assert rig.has == {key for key in KEYS if at(key) in {0, 2}}
    rig.gain(1)
    assert rig.reloads[1].assigned == {0, 1, 2}


def test_what_is_lost_is_dropped_at_once_and_nothing_else(rig):
    rig.gain(0, 1, 2)
    rig.load(*KEYS)
    rig.lose(1)
    assert rig.has == {key for key in KEYS if at(key) != 1}
    assert len(rig.reloads) == 1
    rig.load(*KEYS)
    assert rig.has == {key for key in KEYS if at(key) != 1}


def test_a_zombie_drops_what_the_group_gave_to_others(rig):
    rig.gain(0, 1, 2)
    rig.load(*KEYS)
    rig.lose(0, 1, 2, is_gone=True)
    assert rig.has == set()
    assert rig.subscriber.ownership.is_empty


def test_while_kafka_is_away_what_is_known_is_kept_and_read_anew_on_return(rig):
    rig.gain(0, 1)
    rig.load(*KEYS)
    known = rig.has
    rig.group.away = True
    rig.lose(0, 1, is_gone=True)
    assert rig.has == known
    assert rig.subscriber.lags
    rig.load(200, 201, 202, 203)  # by the window, which asks the table meanwhile
    assert rig.has > known

    rig.group.away = False
    rig.gain()
    assert rig.has == set(), "nobody kept it up to date"
    rig.gain(1, 2)
    assert rig.reloads[-1].assigned == {1, 2}
    rig.load(*KEYS)
    assert rig.has == {key for key in KEYS if at(key) in {1, 2}}
    assert not rig.subscriber.lags


def test_a_membership_that_ends_is_made_anew(rig, caplog):
    caplog.set_level(logging.INFO, "cdcwatch")
    rig.gain(0)
    rig.load(*KEYS)
    known = rig.has
    assert rig.step(AWAY) > 0
    assert rig.group.left == 1
    assert rig.has == known
    assert rig.part.reason == str(AWAY)
    rig.gain(0)
    assert rig.reloads[-1].assigned == {0}
    assert rig.has == set()
    assert rig.part.ready
    assert not rig.failures


def test_a_right_or_topic_that_is_missing_ends_it_at_the_start_and_is_waited_for_later(rig):
    rig.group.refuses = PreconditionError("Kafka has no topic", remedy="make it")
    assert rig.step() is None
    assert rig.failures == [rig.group.refuses]

    other = Rig()
    other.gain(0)
    assert other.step(PreconditionError("Kafka has no topic", remedy="make it")) > 0
    assert not other.failures


def test_a_broker_that_is_away_at_the_start_is_waited_for(rig):
    rig.group.refuses = AWAY
    assert rig.step() > 0
    assert not rig.part.ready
    rig.group.refuses = None
    rig.gain(0)
    assert rig.part.ready


def test_one_without_partitions_is_ready(rig):
    assert not rig.part.ready
    rig.step()
    assert rig.part.reason == "joining the consumer group"
    rig.gain()
    assert rig.part.ready
    assert rig.part.reason == "idle: others have all partitions"
    assert not rig.reloads
    rig.gain(0, 2)
    assert rig.part.reason == "2 of 3 partitions: 0, 2"


def test_a_broker_that_answers_nothing_shows(rig):
    rig.gain(0)
    rig.group.away = True
    rig.step(after_s=2.5)
    assert rig.subscriber.lags or rig.part.ready  # a moment is nothing
    rig.step(after_s=4)
    assert rig.subscriber.lags
    assert not rig.part.ready
    rig.group.away = False
    rig.step(after_s=2.5)
    assert rig.part.ready


def test_events_are_taken_in_in_their_order(rig):
    rig.gain(0, 1, 2)
    gone = ENCODER.change(2, Derived(CANCELLED, None, None, "deleted"), STAMP, 1)
    rig.step(scheduled(1), scheduled(2), Heard(at(2), gone.key, gone.value), scheduled(1, LATER_US + 5))
    assert rig.has == {1}
    assert rig.agenda._closer.schedule.get(1) == Due(1, LATER_US + 5, 0)
    assert rig.applied == 4


def test_what_came_of_a_partition_that_is_lost_meanwhile_is_let_go(rig):
    rig.gain(0, 1, 2)
    rig.step(scheduled(1), lambda holder: holder.lost([at(1)], is_gone=False), scheduled(2))
    assert rig.has == ({2} if at(2) != at(1) else set())


def test_a_truncate_takes_the_orders_of_its_partition_off(rig):
    rig.gain(0, 1, 2)
    rig.load(*KEYS)
    emptied = ENCODER.table_wide(Derived(CANCELLED, None, None, "truncated"), STAMP, 1)
    key = next(key for key in KEYS if at(key) == 1)
    rig.step(scheduled(key), Heard(1, None, emptied.value), scheduled(1000 + key))
    assert rig.has == {key for key in KEYS if at(key) != 1} | {1000 + key}


def test_after_a_gap_the_table_is_read_again(rig):
    rig.gain(0)
    gap = ENCODER.gap(Gap("lost", None, 7), 7, NOW_US)
    rig.step(Heard(0, gap.record_key, gap.value))
    assert len(rig.reloads) == 2


def test_what_is_not_ours_is_counted_and_told_once(rig, caplog):
    rig.gain(0, 1, 2)
    rubbish = [Heard(0, b"1", b"{"), Heard(1, b"2", None), Heard(2, None, b"1")]
    rig.step(*rubbish, scheduled(5), *rubbish)
    assert rig.has == {5}
    assert rig.skipped == {"malformed": 4, "tombstone": 2}
    assert len([one for one in caplog.records if "tells nothing here" in one.message]) == 2


def test_added_partitions_move_orders_and_nothing_is_dropped_for_it(rig):
    rig.gain(0, 1, 2)
    rig.load(*KEYS)
    rig.group.count = 5
    rig.step(after_s=2.5)
    assert rig.subscriber.ownership.partitions == 5
    assert rig.has == set(KEYS), "what was told in the old ones is still waited for"
    assert len(rig.reloads) == 2
    assert rig.subscriber.lags, "the reader may still tell by the old count"
    rig.load(*range(100, 200))
    assert rig.has == set(range(200)), "the group has given the new ones to nobody yet"
    assert rig.part.ready
    assert rig.part.reason == "3 of 5 partitions: 0, 1, 2; 3 until lately: an order is whose it is by either count"
    rig.step(after_s=SETTLING_S + 1)
    assert len(rig.reloads) == 3
    assert not rig.subscriber.lags
    assert rig.part.reason == "3 of 5 partitions: 0, 1, 2"
    rig.load(*range(200, 300))
    assert {key for key in rig.has if key >= 200} == {key for key in range(200, 300) if at(key, 5) < 3}


def test_partitions_that_the_group_learned_of_first_are_counted_as_soon_as_it_shares_them_anew(rig):
    rig.gain(0, 1, 2)
    rig.group.count = 5
    rig.lose(2)
    assert rig.subscriber.ownership.partitions == 5


def test_what_is_given_up_by_the_new_count_and_had_by_the_old_one_is_kept(rig):
    rig.gain(0, 1, 2)
    rig.load(*KEYS)
    rig.group.count = 5
    rig.step(after_s=2.5)
    rig.lose(1)
    assert rig.has == {key for key in KEYS if at(key, 5) != 1 or at(key) != 1}


STRANGERS = {
    "another table": (EventEncoder(replace(WATCHED, name="carts"), system_identifier="7", database="shop"), "carts"),
    "another database": (EventEncoder(WATCHED, system_identifier="7", database="stage"), "cdcwatch:7/stage/"),
    "another server": (EventEncoder(WATCHED, system_identifier="8", database="shop"), "cdcwatch:8/shop/"),
    "another program": (None, "another program"),
    "no events at all": (None, "another program"),
}


@pytest.mark.parametrize("who", STRANGERS)
def test_a_topic_of_others_alone_is_told_and_the_table_is_asked(rig, who, caplog):
    encoder, said = STRANGERS[who]
    if encoder is None:
        value = b'{"type":"x","source":"x","data":{}}' if who == "another program" else b'{"order":1}'
        record = Heard(0, b"1", value)
    else:
        record = scheduled(1, encoder=encoder)
    rig.gain(0, 1, 2)
    assert rig.part.ready, "an empty topic is nobody's"
    for _ in range(3):
        rig.step(Heard(0, b"2", None), record)
    assert rig.subscriber.lags
    assert not rig.part.ready
    assert said in rig.part.reason
    assert "kafka.topic" in rig.part.reason
    assert len([one for one in caplog.records if "not of this table" in one.message]) == 1

    rig.step(scheduled(5), record)
    assert rig.part.ready
    assert not rig.subscriber.lags


def test_others_beside_what_is_ours_harm_nobody(rig):
    rig.gain(0, 1, 2)
    rig.step(scheduled(5), *(scheduled(key, encoder=STRANGERS["another table"][0]) for key in range(9)))
    assert rig.part.ready
    assert not rig.subscriber.lags
