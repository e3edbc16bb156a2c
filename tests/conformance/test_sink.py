"""One suite for every sink: the fake that simulations run on must not be kinder than Kafka."""

from __future__ import annotations

import errno
from collections import Counter
from contextlib import contextmanager, nullcontext
from itertools import pairwise

import orjson
import pytest
from confluent_kafka import KafkaError, KafkaException
from msgspec.structs import replace

from cdcwatch.deadline.event import CONTENT_TYPE, EventEncoder, Stamp
from cdcwatch.deadline.position import Position, SnapshotVisibility
from cdcwatch.deadline.rule import CANCELLED, SCHEDULED, Derived
from cdcwatch.decode.change import Row, Unreadable
from cdcwatch.errors import UnavailableError
from cdcwatch.handoff.file.sink import FileSink
from cdcwatch.handoff.file.tail import FileTail
from cdcwatch.handoff.kafka.sink import AtLeastOnceSink, ExactlyOnceSink
from cdcwatch.handoff.outbox import Outbox
from cdcwatch.handoff.progress import Origin, Progress, SnapshotMark
from cdcwatch.handoff.sink import Batch, FencedError, NoSink
from cdcwatch.settings import FileSettings, KafkaSettings, RegistrySettings
from tests.conformance.redis_world import RedisWorld
from tests.fakes.sink import FakeBroker, FakeSink
from tests.fakes.table import WATCHED
from tests.murmur2 import partition_of
from tests.registry import SmallRegistry
from tests.topic import Found, from_avro, read_topic
from tests.waiting import wait_until

SLOT = "orders_slot"
ORIGIN = Origin("7301234567890123456", 1, "shop", SLOT)
ENCODER = EventEncoder(WATCHED, system_identifier="7301234567890123456", database="shop")
START = Progress(ORIGIN, Position(0x1000))
PARTITIONS = 3
IN_TIME_S = 30


class FakeWorld:
    publishes = has_headers = True
    partitions = PARTITIONS

    def __init__(self, *, is_exact):
        self.is_exact = is_exact
        self.broker = FakeBroker(PARTITIONS)

    def sink(self, slot=SLOT):
        return FakeSink(self.broker, slot, is_transactional=self.is_exact)

    def records(self):
        headers = [("content-type", CONTENT_TYPE)]
        return [Found(*record, headers) for record in self.broker.records]

    def dead(self):
        return [(record.key, record.value) for record in self.broker.dead]

    def cut_after_commit(self, sink):
        self.broker.cuts_after_commit = 1

    def push(self, sink):
        """Sends what the sink holds, without an end of its transaction."""


class CutAfterCommit:
    """A producer whose commit is done and whose answer is lost."""

    def __init__(self, producer):
        self._producer = producer

    def __getattr__(self, name):
        return getattr(self._producer, name)

    def commit_transaction(self, *arguments):
        self._producer.commit_transaction(*arguments)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "the answer is lost"))


class KafkaWorld:
    publishes = True
    partitions = PARTITIONS

    def __init__(self, kafka, topic, *, is_exact, registry=""):
        self.is_exact, self.has_headers = is_exact, not registry
        self.servers, self.topic = kafka.bootstrap_servers, topic
        self.sinks, self.format = [], {"format": "avro", "registry": RegistrySettings(url=registry)} if registry else {}

    def sink(self, slot=SLOT):
        kind = ExactlyOnceSink if self.is_exact else AtLeastOnceSink
        made = kind(KafkaSettings(bootstrap_servers=self.servers, topic=self.topic, **self.format), slot)
        self.sinks.append(made)
        return made

    def records(self):
        found = read_topic(self.servers, self.topic)
        return [from_avro(record) for record in found] if self.format else found

    def dead(self):
        return [(record.key, record.value) for record in read_topic(self.servers, f"{self.topic}.dead")]

    def cut_after_commit(self, sink):
        sink._producer = CutAfterCommit(sink._producer)

    def push(self, sink):
        assert sink._producer.flush(IN_TIME_S) == 0


class FileWorld:
    publishes = is_exact = True
    partitions = 1
    has_headers = False

    def __init__(self, directory):
        self.settings = FileSettings(path=str(directory / "deadlines.jsonl"))
        self.sinks = []

    def sink(self, slot=SLOT):
        made = FileSink(self.settings, slot)
        self.sinks.append(made)
        return made

    def records(self):
        return self._read(dead=False)

    def dead(self):
        return [(record.key, record.value) for record in self._read(dead=True)]

    def _read(self, *, dead):
        tail = FileTail(self.settings, dead=dead)
        found = [Found(record.partition, record.key, record.value, []) for record in tail.so_far()]
        tail.close()
        return found

    def cut_after_commit(self, sink):
        write = sink._write

        def written(events, progress):
            sink._write = write
            write(events, progress)
            raise OSError(errno.EIO, "the answer is lost")

        sink._write = written

    def push(self, sink):
        """What is written is written."""


class NoWorld:
    publishes = False
    is_exact = True

    def sink(self, slot=SLOT):
        return NoSink(START)


EXACT = ["exactly once", "fake exactly once", "file", "redis exactly once"]
PUBLISHING = [*EXACT, "at least once", "fake at least once"]


@contextmanager
def made(request):
    if request.param == "none":
        yield NoWorld()
        return
    if request.param == "file":
        world = FileWorld(request.getfixturevalue("tmp_path"))
        yield world
        for sink in world.sinks:
            sink.close()
        return
    is_exact = request.param.endswith("exactly once")
    if request.param.startswith("fake"):
        yield FakeWorld(is_exact=is_exact)
        return
    with SmallRegistry() if "Avro" in request.param else nullcontext() as registry:
        if request.param.startswith("redis"):
            server, stream = request.getfixturevalue("redis_server"), request.getfixturevalue("stream")
            world = RedisWorld(server, stream, PARTITIONS)
        else:
            kafka, topic = request.getfixturevalue("kafka"), request.getfixturevalue("topic")
            world = KafkaWorld(kafka, topic, is_exact=is_exact, registry=registry.url if registry else "")
        yield world
        for sink in world.sinks:
            sink.close()


@pytest.fixture(params=[*PUBLISHING, "none"])
def world(request):
    with made(request) as world:
        yield world


@pytest.fixture(params=[*PUBLISHING, "Avro exactly once"])
def publishing(request):
    with made(request) as world:
        yield world


@pytest.fixture(params=EXACT)
def exact(request):
    with made(request) as world:
        yield world


def event(key, number=0):
    row = Row(number, "pending", number)
    return ENCODER.change(key, Derived(SCHEDULED, row, None), Stamp.of(0x2000, 0), number)


def progress(number):
    return Progress(ORIGIN, Position(0x1000 + number, 0xFFF + number, number))


class Sender:
    """Stands between events and a sink, as the publisher does."""

    def __init__(self, sink):
        self.sink = sink
        self.outbox = Outbox(1 << 30, lambda: None)
        self.acknowledged = []
        self.count = 0

    def offer(self, events):
        self.count += 1
        self.outbox.offer(events, progress(self.count))

    def publish(self):
        batches = self.outbox.take(10**6, 0)
        if batches:
            self.sink.publish(batches)

    def look(self):
        acknowledged = self.sink.acknowledged()
        self.acknowledged += acknowledged
        self.outbox.acknowledge(acknowledged)
        return self.outbox.is_idle

    def settle(self):
        self.publish()
        wait_until(self.look, IN_TIME_S, "everything is durable")

    def reopen(self, sink=None):
        self.sink.close()
        self.sink = sink or self.sink
        held = self.sink.open()
        self.outbox.rewind(held if self.sink.is_transactional else None)
        return held


def opened(world, slot=SLOT):
    sink = world.sink(slot)
    sink.open()
    return Sender(sink)


def values(world):
    return [record.value for record in world.records()]


def test_everything_is_acknowledged_once(world):
    sender = opened(world)
    assert sender.sink.acknowledged() == []
    for count in (3, 0, 1):
        sender.offer([event(key) for key in range(count)])
    sender.settle()
    assert sorted(number for sequence in sender.acknowledged for number in sequence) == list(range(7))
    assert sender.outbox.flush_lsn == 0x1003
    assert sender.sink.acknowledged() == []


def test_nothing_is_acknowledged_before_it_is_published(world):
    sender = opened(world)
    sender.offer([event(1)])
    assert not sender.look()
    assert sender.acknowledged == []


def test_events_stand_in_order_in_their_keys_partition(publishing):
    sender = opened(publishing)
    sent = [event(number % 11, number) for number in range(200)]
    for begin in range(0, 200, 40):
        sender.offer(sent[begin : begin + 40])
        sender.publish()
    sender.settle()
    records = publishing.records()
    assert Counter(record.value for record in records) == Counter(event.value for event in sent)
    for record in records:
        assert record.partition == partition_of(record.key, publishing.partitions)
        assert record.headers == ([("content-type", CONTENT_TYPE)] if publishing.has_headers else [])
    for key in {event.key for event in sent}:
        assert [record.value for record in records if record.key == key] == [
            event.value for event in sent if event.key == key
        ]


def test_progress_is_read_back(publishing):
    sender = opened(publishing)
    assert sender.reopen() is None
    marked = replace(progress(9), snapshot=SnapshotMark(0x1008, SnapshotVisibility(700, 2**40, frozenset({701}))))
    sender.offer([event(1)])
    sender.outbox.offer([], marked)
    sender.settle()
    assert publishing.sink().open() == marked
    assert publishing.sink("another_slot").open() is None


def test_without_a_topic_everything_before_the_start_is_behind():
    sink = NoSink(START)
    assert (sink.open(), sink.is_transactional) == (START, True)


def test_what_a_sink_says_of_itself(world):
    assert world.sink().is_transactional == world.is_exact


def test_a_snapshot_is_durable_on_return(world):
    sink = world.sink()
    sink.open()
    events = [event(key) for key in range(2500)]
    assert sink.publish_snapshot(iter(events), progress(5)) == 2500
    sink.acknowledged()
    if world.publishes:
        assert Counter(values(world)) == Counter(event.value for event in events)
        assert world.sink().open() == progress(5)


def test_after_a_snapshot_the_sink_goes_on(world):
    sender = opened(world)
    sender.sink.publish_snapshot([event(1, 1)], progress(1))
    sender.offer([event(1, 2)])
    sender.settle()
    assert sender.outbox.flush_lsn == 0x1001
    if world.publishes:
        assert values(world) == [event(1, 1).value, event(1, 2).value]


def interrupted(events, world=None, sink=None):
    yield from events
    if world is not None:
        world.push(sink)
    raise UnavailableError("PostgreSQL went away", remedy="")


def test_a_snapshot_is_there_whole_or_not_at_all(exact):
    sink = exact.sink()
    sink.open()
    events = [event(key) for key in range(50)]
    with pytest.raises(UnavailableError):
        sink.publish_snapshot(interrupted(events[:20], exact, sink), progress(5))
    sink.close()
    again = exact.sink()
    assert again.open() is None
    assert exact.records() == []
    assert again.publish_snapshot(events, progress(5)) == 50
    assert Counter(values(exact)) == Counter(event.value for event in events)


def test_a_snapshot_that_was_broken_off_leaves_no_progress(publishing):
    sink = publishing.sink()
    sink.open()
    with pytest.raises(UnavailableError):
        sink.publish_snapshot(interrupted([event(1)]), progress(5))
    sink.close()
    assert publishing.sink().open() is None


def test_what_was_not_acknowledged_is_published_again(publishing):
    sender = opened(publishing)
    sent = [event(number % 5, number) for number in range(30)]
    sender.offer(sent[:10])
    sender.settle()
    sender.offer(sent[10:20])
    sender.publish()  # nobody asks whether it arrived
    sender.offer(sent[20:])
    sender.reopen(publishing.sink())
    sender.settle()
    assert sender.outbox.flush_lsn == 0x1003
    found = publishing.records()
    assert {record.value for record in found} == {event.value for event in sent}
    if publishing.is_exact:
        assert len(found) == len(sent)
    for key in range(5):
        numbers = [orjson.loads(record.value)["data"]["version"] for record in found if record.key == b"%d" % key]
        expected = list(range(key, 30, 5))
        # Where something is repeated, all that follows it is.
        assert sum(later <= earlier for earlier, later in pairwise(numbers)) <= 1
        assert list(dict.fromkeys(numbers)) == expected
    assert publishing.sink().open() == progress(3)


def test_a_commit_whose_answer_is_lost_is_found_and_not_repeated(exact):
    sender = opened(exact)
    sender.offer([event(1, 1)])
    sender.settle()
    sender.offer([event(1, 2)])
    exact.cut_after_commit(sender.sink)
    with pytest.raises(UnavailableError):
        sender.publish()
    sender.offer([event(1, 3)])
    assert sender.reopen() == progress(2)
    assert sender.outbox.flush_lsn == 0x1002
    sender.settle()
    assert values(exact) == [event(1, number).value for number in (1, 2, 3)]


def test_a_transaction_without_its_end_is_seen_by_nobody_and_comes_again(exact):
    sender = opened(exact)
    sender.offer([event(1, 1)])
    sender.settle()
    events = [event(1, 2), event(2, 3)]
    broken = Batch(interrupted(events, exact, sender.sink), progress(2), range(2, 5), 0)
    with pytest.raises(UnavailableError):
        sender.sink.publish([broken])
    sender.offer(events)
    assert sender.reopen(exact.sink()) == progress(1)
    assert values(exact) == [event(1, 1).value]
    sender.settle()
    assert Counter(values(exact)) == Counter(event.value for event in [event(1, 1), *events])


def test_whoever_opens_last_writes_and_the_one_before_is_fenced(exact):
    first, second = opened(exact), opened(exact)
    first.offer([event(1, 1)])
    with pytest.raises(FencedError) as caught:
        first.publish()
    assert caught.value.remedy
    assert exact.records() == []
    second.offer([event(1, 2)])
    second.settle()
    assert values(exact) == [event(1, 2).value]


def test_an_open_transaction_of_the_one_before_is_ended(exact):
    first = exact.sink()
    first.open()
    with pytest.raises(UnavailableError):
        first.publish([Batch(interrupted([event(1, 1)], exact, first), progress(1), range(2), 0)])
    second = opened(exact)
    assert exact.records() == []  # readable to the end at once: nothing of the first holds subscribers up
    second.offer([event(1, 2)])
    second.settle()
    assert values(exact) == [event(1, 2).value]


def test_sinks_of_other_slots_are_not_fenced(exact):
    first, second = opened(exact), opened(exact, "another_slot")
    for number, sender in enumerate((first, second, first)):
        sender.offer([event(1, number)])
        sender.settle()
    assert len(exact.records()) == 3
    assert exact.sink().open() == progress(2)
    assert exact.sink("another_slot").open() == progress(1)


def test_a_truncate_reaches_every_partition(publishing):
    sender = opened(publishing)
    truncated = ENCODER.table_wide(Derived(CANCELLED, None, None, "truncated"), Stamp.of(0x2000, 0), 2)
    sender.offer([event(1, 1), truncated, event(1, 3)])
    sender.settle()
    records = publishing.records()
    copies = [record for record in records if record.key is None]
    assert sorted((copy.partition, orjson.loads(copy.value)["id"]) for copy in copies) == [
        (partition, f"0/2000-2-p{partition}") for partition in range(publishing.partitions)
    ]
    home = partition_of(b"1", publishing.partitions)
    assert [record.key for record in records if record.partition == home] == [b"1", None, b"1"]


def dead_letter(ordinal):
    told = Unreadable("column 'status' is not valid UTF-8", "wal2json", "c3", False)
    return ENCODER.dead_letter(told, 0x2000, ordinal)


def test_dead_letters_go_to_a_topic_of_their_own(publishing):
    sender = opened(publishing)
    sender.offer([event(1, 1), dead_letter(2), event(2, 3)])
    sender.offer([dead_letter(4)])
    sender.settle()
    assert sender.outbox.flush_lsn == 0x1002
    assert sorted(values(publishing)) == sorted([event(1, 1).value, event(2, 3).value])
    assert publishing.dead() == [
        (b"0/2000-2", dead_letter(2).value),
        (b"0/2000-4", dead_letter(4).value),
    ]


def test_a_dead_letter_is_of_one_piece_with_its_neighbours(exact):
    sender = opened(exact)
    events = [dead_letter(1), event(1, 2)]
    broken = Batch(interrupted(events, exact, sender.sink), progress(1), range(3), 0)
    with pytest.raises(UnavailableError):
        sender.sink.publish([broken])
    sender.offer(events)
    sender.reopen(exact.sink())
    assert (exact.records(), exact.dead()) == ([], [])
    sender.settle()
    assert (values(exact), exact.dead()) == ([event(1, 2).value], [(b"0/2000-1", dead_letter(1).value)])


def test_a_closed_sink_is_away(publishing):
    sink = publishing.sink()
    batch = Batch([event(1)], progress(1), range(2), 0)
    for _ in range(2):
        with pytest.raises(UnavailableError):
            sink.publish([batch])
        with pytest.raises(UnavailableError):
            sink.publish_snapshot([event(1)], progress(1))
        sink.open()
        sink.close()
        sink.close()
