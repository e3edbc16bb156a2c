"""One connection's stream on a clock set by hand: what is read, what is handed over, what the server is told."""

from itertools import pairwise

import orjson
import pytest
from msgspec.structs import replace

from cdcwatch.deadline.derivation import Derivation
from cdcwatch.deadline.event import EventEncoder
from cdcwatch.deadline.position import Position, SnapshotVisibility
from cdcwatch.deadline.rule import DeadlineRule
from cdcwatch.decode.wal2json import Wal2JsonDecoder
from cdcwatch.errors import DecodeError, PreconditionError, UnavailableError
from cdcwatch.handoff.outbox import Outbox
from cdcwatch.handoff.progress import Origin, Progress, SnapshotMark
from cdcwatch.pipeline.beginning import require_no_gap
from cdcwatch.pipeline.follower import BITE_BYTES, Follower, ReadingState, StreamRestart
from tests.fakes.slot import FACTS, FakeStream, keepalive, xlog_data
from tests.fakes.table import WATCHED
from tests.wal2json import begin, commit, instant, render

START_LSN = FACTS.confirmed_flush_lsn
ORIGIN = Origin(FACTS.system_identifier, FACTS.timeline, FACTS.database, "cdcwatch_orders")
DUE_US = 850_000_000_000_000
SHORT_S = 0.001


class World:
    """What outlives a connection, and the connection at hand."""

    def __init__(self, *, limit_bytes=1 << 20, start=True, until_lsn=None, closes=True):
        self.closes, self.pressing = closes, False
        self.now_s = 1000.0
        self.outbox = Outbox(limit_bytes, lambda: None)
        self.state = ReadingState(ORIGIN, until_lsn=until_lsn)
        self.encoder = EventEncoder(WATCHED, system_identifier="7", database="shop")
        self.derivation = Derivation(DeadlineRule(WATCHED), self.encoder)
        self.fed = []
        self.observed = []
        self.garbled = []
        if start:
            self.begin_at(Position(START_LSN))
        self.connect()

    def begin_at(self, position):
        self.state.begin_at(Progress(ORIGIN, position), self.state.snapshot)

    def connect(self, **facts):
        self.facts = replace(FACTS, **facts)
        self.stream = FakeStream(received_lsn=self.facts.confirmed_flush_lsn)
        self.follower = Follower(
            self.stream,
            self.facts,
            decoder=Wal2JsonDecoder(WATCHED),
            derivation=self.derivation,
            outbox=self.outbox,
            schedules=(self if self.closes else None,),
            state=self.state,
            observer=self,
            now_s=self.now_s,
        )

    def apply(self, updates):
        self.fed.append(list(updates))

    def clear(self):
        self.fed.append("clear")

    def presses(self):
        return self.pressing

    def read(self, **seen):
        self.observed.append(seen)

    def not_understood(self, **seen):
        self.garbled.append(seen)

    def step(self, *messages, after_s=0.0):
        self.stream.incoming.extend(messages)
        self.now_s += after_s
        return self.follower.step(self.now_s)

    def run_for(self, duration_s):
        """As the reader does when nothing arrives; the times of the status updates."""
        end_s, times = self.now_s + duration_s, []
        while self.now_s < end_s:
            before = len(self.stream.statuses)
            wait_s = self.step()
            assert 0 <= wait_s <= 1
            times += [self.now_s] * (len(self.stream.statuses) - before)
            self.now_s += max(wait_s, SHORT_S)
        return times

    def publish(self):
        """The publisher takes everything; what it took."""
        return self.outbox.take(10**6, 0)

    def acknowledge(self):
        batches = self.publish()
        self.outbox.acknowledge([batch.sequence for batch in batches])
        return batches

    @property
    def flushed(self):
        return [status.flush_lsn for status in self.stream.statuses]


@pytest.fixture
def world():
    return World()


def insert(key=1, version=0, status="pending"):
    values = {"id": key, "status": status, "expires_at": instant(DUE_US), "version": version}
    return render("I", WATCHED, columns=values)


def transaction(commit_lsn, *lines, xid=700):
    """Its messages; it ends 8 bytes behind its commit record."""
    inner = [xlog_data(line, commit_lsn - 0x40) for line in lines]
    return [
        xlog_data(begin(commit_lsn, commit_lsn + 8, xid=xid), commit_lsn - 0x40),
        *inner,
        xlog_data(commit(commit_lsn, commit_lsn + 8, xid=xid), commit_lsn + 8),
    ]


def ids(batches):
    return [orjson.loads(event.value)["id"] for batch in batches for event in batch.events]


# -- handing over ------------------------------------------------------------------------------------------------------


def test_a_bite_is_handed_over_in_one_batch(world):
    world.step(*transaction(0x2000, insert(1), insert(2)), *transaction(0x3000, insert(3)))
    (batch,) = world.publish()
    assert ids([batch]) == ["0/2000-1", "0/2000-2", "0/3000-1"]
    assert batch.progress == Progress(ORIGIN, Position(0x3008, 0x3000, 1))
    assert world.fed == [[(1, DUE_US, 0), (2, DUE_US, 0), (3, DUE_US, 0)]]
    assert world.observed == [{"messages": 7, "changes": 3, "replayed": 0, "received_lsn": 0x3008}]


def test_the_schedule_is_cleared_where_the_truncate_stands(world):
    truncate = render("T", WATCHED)
    world.step(*transaction(0x2000, insert(1), truncate, insert(2), truncate, truncate))
    assert world.fed == [[(1, DUE_US, 0)], "clear", [(2, DUE_US, 0)], "clear", [], "clear"]
    world.step(*transaction(0x3000, truncate, insert(3)))
    assert world.fed[6:] == [[], "clear", [(3, DUE_US, 0)]]


def test_a_snapshots_mark_goes_along_until_it_is_passed(world):
    world.state.snapshot = SnapshotMark(0x2800, SnapshotVisibility(700, 702, frozenset()))
    world.step(*transaction(0x2000, insert(1), xid=701), *transaction(0x3000, insert(2), xid=702))
    (batch,) = world.publish()
    assert ids([batch]) == ["0/3000-1"]
    assert batch.progress.snapshot is world.state.snapshot


def test_from_the_first_close_on_that_a_snapshot_shows_all_is_told_and_the_record_says_so(world):
    shown = SnapshotMark(0x4800, SnapshotVisibility(700, 705, frozenset(), to_first_close=True))
    world.state.snapshot = shown
    values = {"id": 1, "status": "expired", "expires_at": instant(DUE_US), "version": 1}
    closed = render("U", WATCHED, columns=values, identity={"id": 1})
    world.step(*transaction(0x2000, insert(1), insert(2), xid=701))
    assert not world.publish()
    first, *rest = transaction(0x3000, insert(3), closed, insert(4), xid=702)
    world.step(first, *rest)
    (batch,) = world.acknowledge()
    assert ids([batch]) == ["0/3000-2", "0/3000-3"]
    mark = Progress.from_json(batch.progress.to_json()).snapshot
    assert mark == replace(shown, tells_all=True)

    started = World(start=False)
    started.state.begin_at(batch.progress, mark)
    started.step(*transaction(0x3000, insert(3), closed, insert(4), xid=702), *transaction(0x4000, insert(5), xid=703))
    assert ids(started.publish()) == ["0/4000-1"]


def test_nothing_is_read_before_the_sink_has_spoken():
    world = World(start=False)
    world.step(*transaction(0x2000, insert(1)))
    assert not world.follower.reads
    assert (world.stream.read_count, world.publish()) == (0, [])
    world.begin_at(Position(0x2008, 0x2000, 1))
    world.step(*transaction(0x3000, insert(2)))
    assert ids(world.publish()) == ["0/3000-1"]  # what the sink holds is skipped


def test_a_new_connection_goes_on_where_the_old_one_broke(world):
    messages = transaction(0x2000, insert(1), insert(2), insert(3))
    world.step(*messages[:3])
    world.stream.is_up = False
    with pytest.raises(UnavailableError):
        world.step()
    world.connect()
    world.step(*messages)
    assert ids(world.publish()) == ["0/2000-1", "0/2000-2", "0/2000-3"]
    assert [seen["replayed"] for seen in world.observed] == [0, 2]


def test_a_line_that_cannot_be_read_ends_it_and_confirms_nothing(world):
    with pytest.raises(DecodeError):
        world.step(xlog_data(b"{", 0x2000))
    assert world.stream.statuses == []


def test_a_row_that_cannot_be_understood_goes_with_its_neighbours_and_is_observed(world):
    bad = insert(2).replace(b"pending", b"p\xe9")
    world.step(*transaction(0x2000, insert(1), bad, insert(3)), *transaction(0x3000, insert(4)))
    assert ids(world.publish()) == ["0/2000-1", "0/2000-2", "0/2000-3", "0/3000-1"]
    assert world.fed == [[(1, DUE_US, 0), (3, DUE_US, 0), (4, DUE_US, 0)]]
    assert world.garbled == [{"count": 1, "last": "0/2000-2: column 'status' is not valid UTF-8"}]
    world.step(*transaction(0x4000, insert(5)))
    assert len(world.garbled) == 1


def test_a_row_that_is_only_scouted_is_counted_when_it_is_read():
    world = World(limit_bytes=1)
    bad = insert(2).replace(b"pending", b"p\xe9")
    world.step(*transaction(0x2000, insert(1)))
    taken = world.outbox.take(100, 0)
    world.outbox.is_sink_failing = True
    world.step(*transaction(0x3000, bad))
    assert world.garbled == []
    world.outbox.is_sink_failing = False
    world.outbox.acknowledge([batch.sequence for batch in taken])
    with pytest.raises(StreamRestart):
        world.step()
    world.connect()
    world.step(*transaction(0x2000, insert(1)), *transaction(0x3000, bad))
    assert [seen["count"] for seen in world.garbled] == [1]


# -- back-pressure -----------------------------------------------------------------------------------------------------


def test_reading_pauses_when_the_outbox_is_full_and_goes_on_when_half_of_it_is_durable():
    world = World(limit_bytes=2000)
    commit_lsn = 0x2000
    while world.follower.reads:
        assert commit_lsn < 0x4000, "it never pauses"
        world.step(*transaction(commit_lsn, insert(1)))
        commit_lsn += 0x100
    assert world.outbox.is_full
    reads = world.stream.read_count
    world.step(*transaction(commit_lsn, insert(1)))
    batches = world.publish()
    while not world.outbox.is_half_empty:
        assert not world.follower.reads
        world.step()
        assert world.stream.read_count == reads
        world.outbox.acknowledge([batches.pop(0).sequence])
    assert world.follower.reads
    world.step()
    assert world.stream.read_count == reads + 1
    assert ids(world.publish()) == [f"0/{commit_lsn:X}-1"]


# -- status updates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", ["in flight", "in a transaction", "idle", "paused", "before the sink has spoken"])
def test_an_answer_is_sent_at_once_when_asked_for(busy):
    world = World(limit_bytes=500 if busy == "paused" else 1 << 20, start=busy != "before the sink has spoken")
    messages = transaction(0x2000, insert(1), insert(2))
    if busy == "in flight":
        world.step(*messages)
    elif busy == "in a transaction":
        world.step(*messages[:2])
    asking = keepalive(START_LSN, reply_requested=True)
    if busy == "paused":
        world.step(*messages[:3], asking)  # the bite that fills the outbox brings the question
        assert not world.follower.reads
    elif busy == "before the sink has spoken":
        world.step(asking)
        assert world.flushed == []  # not read yet; the interval keeps the connection
        return
    else:
        world.step(asking)
    assert world.flushed == [START_LSN]
    assert not world.stream.statuses[0].reply_requested
    world.step()
    assert world.flushed == [START_LSN]


@pytest.mark.parametrize(
    ("timeout_s", "interval_s"), [(60.0, 10.0), (3.0, 1.0), (0.6, 0.2), (0.0, 10.0), (3600.0, 10.0)]
)
@pytest.mark.parametrize("state", ["reading", "paused", "before the sink has spoken", "stopping"])
def test_a_status_at_least_every_third_of_the_servers_patience(timeout_s, interval_s, state):
    world = World(limit_bytes=1, start=state != "before the sink has spoken", closes=False)
    world.connect(wal_sender_timeout_s=timeout_s)
    if state == "paused":
        world.step(*transaction(0x2000, insert(1)))
        assert not world.follower.reads
    world.state.stopping = state == "stopping"
    begun_s = world.now_s
    if state == "reading":
        world.state.patience_s = 1e9
    times = [begun_s, *world.run_for(40)]
    assert len(times) > 3
    assert max(late - early for early, late in pairwise(times)) <= interval_s + 2 * SHORT_S
    assert set(world.flushed) == {START_LSN}


def test_the_first_status_is_not_below_the_slots_position(world):
    """The outbox knows no position yet."""
    assert world.outbox.flush_lsn == 0
    world.run_for(10.5)
    assert world.flushed[0] == START_LSN
    assert world.state.confirmed_lsn == START_LSN


def test_a_durable_commit_is_told_soon_but_not_for_every_commit(world):
    for commit_lsn in range(0x2000, 0x2000 + 0x100 * 50, 0x100):
        world.step(*transaction(commit_lsn, insert(1)), after_s=0.01)
        world.acknowledge()
    world.step(after_s=0.05)
    assert world.flushed[-1] == 0x2000 + 0x100 * 49 + 8
    assert len(world.flushed) <= 11
    assert world.flushed == sorted(world.flushed)


def test_only_a_whole_transactions_end_is_told(world):
    messages = transaction(0x2000, insert(1), insert(2))
    world.step(*messages[:-1])
    world.acknowledge()
    world.step(after_s=11)
    assert world.flushed == [START_LSN]
    world.step(messages[-1])
    world.step(after_s=1)
    world.step(after_s=1)
    assert world.flushed[-1] == START_LSN
    world.acknowledge()
    world.step(after_s=1)
    assert world.flushed[-1] == 0x2008


def test_nothing_beyond_what_this_connection_received(world):
    world.step(*transaction(0x2000, insert(1)))
    world.connect()  # the server sends from the slot's position again
    world.acknowledge()
    assert world.outbox.flush_lsn == 0x2008
    world.run_for(10.5)
    assert set(world.flushed) == {START_LSN}
    world.step(keepalive(0x1800), after_s=1)
    assert world.flushed[-1] == 0x1800
    world.step(*transaction(0x2000, insert(1)), after_s=1)
    assert world.flushed[-1] == 0x2008


def test_never_backwards(world):
    """After a crash of the server its slot may stand before what it was told; the server knows what it lost."""
    world.step(*transaction(0x2000, insert(1)))
    world.acknowledge()
    world.step(after_s=1)
    world.connect(confirmed_flush_lsn=0x3000)  # another's progress: ahead of ours
    world.step(keepalive(0x3000, reply_requested=True))
    world.step(after_s=11)
    assert world.flushed == [0x3000, 0x3000]
    assert world.state.confirmed_lsn == 0x3000


# -- the server's idle position ----------------------------------------------------------------------------------------


def test_a_keepalives_position_is_confirmed_when_nothing_is_in_flight(world):
    world.step(keepalive(0x9000))
    world.step(after_s=1)
    (batch,) = world.acknowledge()
    assert (batch.events, batch.progress.position.end_lsn) == ([], 0x9000)
    world.step(after_s=1)
    assert world.flushed == [0x9000]


def test_a_question_or_the_end_asked_for_makes_it_told_without_waiting():
    world = World()
    world.step(keepalive(0x9000, reply_requested=True))
    assert [batch.progress.position.end_lsn for batch in world.publish()] == [0x9000]
    world = World(until_lsn=0x9000)
    world.step(keepalive(0x8FFF))
    assert world.publish() == []
    world.step(keepalive(0x9000))
    assert [batch.progress.position.end_lsn for batch in world.publish()] == [0x9000]


def test_idle_positions_are_told_once_a_second(world):
    for second in range(100):
        world.step(*transaction(0x2000 + second * 0x100), after_s=0.1)
    assert 9 <= len(world.publish()) <= 10


def test_a_keepalives_position_says_nothing_while_an_event_is_in_flight(world):
    world.step(*transaction(0x2000, insert(1)))
    world.step(keepalive(0x9000), after_s=1)
    world.step(after_s=1)
    batches = world.publish()
    world.step(keepalive(0x9000), after_s=1)  # given to the sink, not durable
    world.step(after_s=1)
    world.outbox.acknowledge([batch.sequence for batch in batches])
    world.acknowledge()
    world.step(after_s=1)
    world.step(after_s=1)
    assert set(world.flushed) <= {START_LSN, 0x2008}
    world.step(keepalive(0x9000), after_s=1)
    world.acknowledge()
    world.step(after_s=1)
    assert world.flushed[-1] == 0x9000


def test_nor_when_it_comes_in_the_same_bite_as_the_event(world):
    world.step(*transaction(0x2000, insert(1)), keepalive(0x9000))
    assert [batch.progress.position.end_lsn for batch in world.publish()] == [0x2008]
    assert world.derivation.position.end_lsn == 0x2008


def test_nor_within_a_transaction(world):
    messages = transaction(0x2000, insert(1, status="paid"), insert(2))
    world.step(*messages[:2], keepalive(0x9000))
    world.step(after_s=2)
    world.acknowledge()
    world.step(keepalive(0x9000), after_s=2)
    world.acknowledge()
    world.step(after_s=10)
    assert set(world.flushed) == {START_LSN}
    world.step(*messages[2:], after_s=1)
    world.acknowledge()
    world.step(after_s=1)
    assert world.flushed[-1] == 0x2008


def test_empty_transactions_move_the_confirmed_position(world):
    world.step(*transaction(0x2000), *transaction(0x3000))
    world.step(after_s=1)
    world.acknowledge()
    world.step(after_s=1)
    assert world.flushed[-1] == 0x3008


# -- a connection that is only half there ------------------------------------------------------------------------------


def silence_until_given_up(world):
    begun_s = world.now_s
    with pytest.raises(UnavailableError, match="nothing came from the server"):
        world.run_for(1000)
    return world.now_s - begun_s


def test_a_silent_server_is_asked_and_then_given_up_with_twice_the_patience_each_time(world):
    given_up_s = []
    for _ in range(4):
        world.connect()
        given_up_s.append(silence_until_given_up(world))
        assert world.stream.statuses[0].reply_requested
    assert given_up_s == pytest.approx([13, 26, 52, 104], abs=0.1)


def test_a_server_that_answers_is_believed(world):
    for _ in range(30):
        world.run_for(6)
        assert sum(status.reply_requested for status in world.stream.statuses) == 1
        world.stream.statuses.clear()
        world.step(keepalive(START_LSN))


@pytest.mark.parametrize("news", ["commit", "keepalive", "row"])
def test_news_bring_the_first_patience_back(world, news):
    silence_until_given_up(world)
    world.connect()
    world.step(
        *{
            "commit": transaction(0x2000, insert(1)),
            "keepalive": [keepalive(0x2000)],
            "row": transaction(0x2000, insert(1))[:2],
        }[news]
    )
    world.connect()
    assert silence_until_given_up(world) == pytest.approx(13, abs=0.1)


def test_what_was_known_already_does_not(world):
    """The server may be silent because it decodes a huge transaction, each time from the beginning."""
    known = transaction(0x2000, insert(1))
    world.step(*known)
    silence_until_given_up(world)
    world.connect()
    world.step(*known, keepalive(0x2008))
    assert silence_until_given_up(world) == pytest.approx(26, abs=0.1)


def test_silence_while_we_do_not_read_is_no_silence():
    world = World(limit_bytes=1, closes=False)
    world.step(*transaction(0x2000, insert(1)))
    world.run_for(300)
    world.acknowledge()
    world.run_for(4)
    assert not any(status.reply_requested for status in world.stream.statuses)


# -- pace --------------------------------------------------------------------------------------------------------------


def test_when_behind_it_naps_and_when_far_behind_it_does_not_wait(world):
    bulk = b'{"action":"M","content":"' + b"x" * (200 << 10) + b'"}'
    assert world.step(xlog_data(bulk, 0x2000)) < 0
    assert world.step(*[xlog_data(bulk, 0x2000)] * (BITE_BYTES // len(bulk) + 2)) == 0
    world.step()
    assert world.step(*transaction(0x2000, insert(1))) > 0


# -- the end -----------------------------------------------------------------------------------------------------------


def test_until_a_position_is_confirmed():
    world = World(until_lsn=0x2008)
    world.step(*transaction(0x2000, insert(1)))
    world.step(after_s=1)
    assert world.state.confirmed_lsn < 0x2008
    world.acknowledge()
    world.step(after_s=1)
    assert world.state.confirmed_lsn == 0x2008


def test_a_slot_that_stands_there_already_is_known_to():
    world = World(until_lsn=START_LSN)
    world.step()
    assert world.state.confirmed_lsn == START_LSN


def test_when_stopping_nothing_more_is_read_and_the_last_position_goes_out_at_once(world):
    world.step(*transaction(0x2000, insert(1)))
    world.step()
    world.state.stopping = True
    world.step(*transaction(0x3000, insert(2)))
    world.acknowledge()
    world.step()
    assert (world.flushed, world.state.confirmed_lsn) == ([0x2008], 0x2008)
    world.step(after_s=5)
    assert world.publish() == []


# -- gaps --------------------------------------------------------------------------------------------------------------


def progress(end_lsn=START_LSN, **origin):
    return Progress(replace(ORIGIN, **origin), Position(end_lsn))


def test_a_slot_at_or_before_the_last_event_has_no_gap():
    require_no_gap(FACTS, None, ORIGIN, server_lsn=START_LSN + 1)
    require_no_gap(FACTS, progress(), ORIGIN, server_lsn=START_LSN + 1)
    require_no_gap(FACTS, progress(START_LSN + 1), ORIGIN, server_lsn=START_LSN + 1)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (progress(START_LSN - 1), "0/1000, beyond the last event in the topic .0/FFF."),
        (progress(system_identifier="8"), "another database system"),
        (progress(timeline=2), "of timeline 2, and the server is on 1"),
    ],
)
def test_a_gap_is_never_silent(found, said):
    with pytest.raises(PreconditionError, match=said) as caught:
        require_no_gap(FACTS, found, ORIGIN, server_lsn=START_LSN + 1)
    assert "--accept-gap" in caught.value.remedy


def test_while_a_full_sink_fails_deadlines_are_scouted_and_read_anew_afterwards():
    world = World(limit_bytes=1)
    world.step(*transaction(0x2000, insert(1)))
    taken = world.outbox.take(100, 0)
    world.step(*transaction(0x3000, insert(2)))
    assert world.stream.incoming, "the outbox is full and the sink only slow: nothing is read"
    world.outbox.is_sink_failing = True
    world.step()
    assert [update[0] for update in world.fed[-1]] == [2], "the schedule learns of it"
    world.step(keepalive(0x9000), after_s=5)
    assert world.outbox.take(100, 0) == [], "but nothing of it is handed over, events or positions"

    world.outbox.is_sink_failing = False
    world.outbox.acknowledge([batch.sequence for batch in taken])
    with pytest.raises(StreamRestart):
        world.step()
    world.connect()
    world.step(*transaction(0x2000, insert(1)), *transaction(0x3000, insert(2)))
    assert ids(world.publish()) == ["0/3000-1"]


def test_a_sink_that_takes_nothing_and_says_nothing_is_scouted_after_a_while():
    world = World(limit_bytes=1)
    world.step(*transaction(0x2000, insert(1)))
    world.step(*transaction(0x3000, insert(2)), after_s=1)
    assert len(world.fed) == 1, "not at once: a sink that is only slow makes room soon"
    world.step(after_s=3)
    assert [update[0] for update in world.fed[-1]] == [2]
    assert ids(world.publish()) == ["0/2000-1"]


def test_a_spike_of_closes_goes_before_the_stream():
    world = World()
    world.pressing = True
    wait_s = world.step(*transaction(0x2000, insert(1)))
    assert wait_s < 0, "a nap"
    assert world.stream.incoming, "nothing is read"
    world.step(after_s=1.1)
    assert not world.stream.incoming, "but not for long: then it reads as ever"


def test_a_reader_that_is_held_up_lags():
    world = World(limit_bytes=1)
    world.step()
    assert world.state.caught_up_s == world.now_s
    caught_up_s = world.now_s
    world.step(*transaction(0x2000, insert(1)))
    world.step(after_s=2)
    assert world.state.caught_up_s <= caught_up_s


def test_a_sink_that_fails_from_the_start_is_scouted_too():
    world = World(start=False)
    world.step(*transaction(0x2000, insert(1)))
    assert world.fed == []
    world.outbox.is_sink_failing = True
    world.step()
    assert [update[0] for update in world.fed[-1]] == [1]
    world.begin_at(Position(START_LSN))
    with pytest.raises(StreamRestart):
        world.step()
    world.connect()
    world.step(*transaction(0x2000, insert(1)))
    assert ids(world.publish()) == ["0/2000-1"]


def test_a_server_restored_from_an_older_copy_is_a_gap():
    with pytest.raises(PreconditionError, match="restored from an older copy"):
        require_no_gap(FACTS, Progress(ORIGIN, Position(START_LSN + 2)), ORIGIN, server_lsn=START_LSN + 1)
