import threading

import pytest
from msgspec.structs import replace

from cdcwatch.deadline.event import Event
from cdcwatch.deadline.position import Position
from cdcwatch.handoff.outbox import Outbox
from cdcwatch.handoff.progress import Origin, Progress

ORIGIN = Origin("7", 1, "shop", "s")
NO_WAIT_S = 0.0
LONG_S = 60.0


def progress(end_lsn, commit_lsn=0, ordinal=0):
    return Progress(ORIGIN, Position(end_lsn, commit_lsn, ordinal))


def events(count, size_bytes=10):
    return [Event(b"k", b"x" * size_bytes) for _ in range(count)]


class Flushes(list):
    """Counts how often the reader was woken."""

    def __call__(self):
        self.append(True)


@pytest.fixture
def woken():
    return Flushes()


@pytest.fixture
def outbox(woken):
    return Outbox(10_000, woken)


def take(outbox, max_events=100):
    return outbox.take(max_events, NO_WAIT_S)


def test_batches_are_taken_in_order_once_and_confirmed_when_durable(outbox, woken):
    outbox.offer(events(2), progress(100))
    outbox.offer(events(1), progress(200))
    assert not outbox.is_idle
    batches = take(outbox)
    assert [(len(batch.events), batch.sequence, batch.progress) for batch in batches] == [
        (2, range(3), progress(100)),
        (1, range(3, 5), progress(200)),
    ]
    assert take(outbox) == []
    assert (outbox.flush_lsn, outbox.unacknowledged_events, outbox.event_count) == (0, 3, 3)
    outbox.acknowledge([batches[1].sequence])
    assert (outbox.flush_lsn, outbox.unacknowledged_events, woken) == (0, 3, [])
    outbox.acknowledge([range(2)])
    assert outbox.flush_lsn == 0  # the progress record of the first is not durable yet
    outbox.acknowledge([range(2, 3)])
    assert (outbox.flush_lsn, outbox.unacknowledged_events, woken) == (200, 0, [True])
    assert outbox.is_idle
    assert outbox.size_bytes == 0


def test_a_batch_in_the_middle_of_a_transaction_confirms_nothing_of_it(outbox):
    outbox.offer(events(1), progress(100))
    outbox.offer(events(1), progress(100, 150, 1))
    outbox.acknowledge([batch.sequence for batch in take(outbox)])
    assert outbox.flush_lsn == 100
    outbox.offer(events(1), progress(180, 150, 2))
    assert outbox.flush_lsn == 100
    outbox.acknowledge([batch.sequence for batch in take(outbox)])
    assert outbox.flush_lsn == 180


def test_a_position_without_events_is_confirmed_behind_all_events_before_it(outbox):
    outbox.offer(events(1), progress(100))
    outbox.offer([], progress(500))
    first, idle = take(outbox)
    assert (idle.events, idle.sequence) == ([], range(2, 3))
    outbox.acknowledge([idle.sequence])
    assert outbox.flush_lsn == 0
    outbox.acknowledge([first.sequence])
    assert outbox.flush_lsn == 500


def test_no_more_events_are_taken_than_asked_for_but_whole_batches_and_one_at_least(outbox):
    for count in (3, 2, 2, 9, 1):
        outbox.offer(events(count), progress(100))
    assert [[len(batch.events) for batch in take(outbox, 5)] for _ in range(4)] == [[3, 2], [2], [9], [1]]


def test_back_pressure_by_bytes_until_half_is_durable(outbox):
    assert (outbox.is_full, outbox.is_half_empty) == (False, True)
    for end_lsn in range(1, 5):
        outbox.offer(events(1, 2250), progress(end_lsn))
        assert outbox.is_full == (end_lsn == 4)
    assert outbox.size_bytes == 10_000  # 250 bytes an event beside its value
    batches = take(outbox)
    assert outbox.is_full  # given to the sink is not durable
    for durable, batch in enumerate(batches, 1):
        outbox.acknowledge([batch.sequence])
        assert outbox.is_half_empty == (durable >= 2)
        assert not outbox.is_full


def test_one_batch_larger_than_the_limit_gets_through(outbox):
    outbox.offer(events(1, 50_000), progress(1))
    assert outbox.is_full
    (batch,) = take(outbox)
    outbox.acknowledge([batch.sequence])
    assert (outbox.is_full, outbox.size_bytes) == (False, 0)


def offered(outbox, *positions):
    for position in positions:
        outbox.offer(events(2), Progress(ORIGIN, position))


POSITIONS = [Position(100, 90, 2), Position(100, 190, 4), Position(200, 190, 5), Position(300, 190, 5)]


@pytest.mark.parametrize("durable", range(5))
def test_after_a_rewind_what_the_sink_holds_is_acknowledged_and_the_rest_comes_again(outbox, woken, durable):
    offered(outbox, *POSITIONS)
    take(outbox)
    outbox.rewind(Progress(ORIGIN, POSITIONS[durable - 1]) if durable else progress(50))
    assert [batch.progress.position for batch in take(outbox)] == POSITIONS[durable:]
    assert outbox.flush_lsn == [0, 100, 100, 200, 300][durable]
    assert bool(woken) == (durable > 0)


def test_after_a_rewind_what_was_added_at_the_durable_position_comes_again(outbox):
    """Orders of an attached partition, and the note of a gap, move no position."""
    at_one_place = [
        progress(100),
        replace(progress(100), additions=1),
        replace(progress(100), additions=2),
        replace(progress(100), additions=2, gap="renamed"),
    ]
    for one in at_one_place:
        outbox.offer(events(1), one)
    for durable, one in enumerate(at_one_place, 1):
        outbox.rewind(one)
        assert [batch.progress for batch in take(outbox)] == at_one_place[durable:]


def test_after_a_rewind_without_durable_progress_all_that_is_not_acknowledged_comes_again(outbox):
    offered(outbox, *POSITIONS)
    batches = take(outbox)
    outbox.acknowledge([batches[0].sequence, batches[2].sequence])
    outbox.rewind(None)
    assert [batch.progress.position for batch in take(outbox)] == POSITIONS[1:]
    assert outbox.flush_lsn == 100
    outbox.acknowledge([batch.sequence for batch in batches])
    assert (outbox.flush_lsn, outbox.is_idle, take(outbox)) == (300, True, [])


def test_after_a_rewind_what_was_acknowledged_ahead_must_be_so_again(outbox):
    """Its progress record is published again too: before that, the sink's record would stand behind the watermark."""
    for number in (1, 2, 3):
        outbox.offer(events(1), progress(number))
    first, second, third = outbox.take(10, 0)
    outbox.acknowledge([third.sequence, second.sequence])
    outbox.rewind(None)
    assert [batch.progress for batch in outbox.take(10, 0)] == [progress(1), progress(2), progress(3)]
    outbox.acknowledge([first.sequence])
    assert outbox.flush_lsn == first.progress.position.end_lsn
    outbox.acknowledge([second.sequence, third.sequence])
    assert outbox.flush_lsn == third.progress.position.end_lsn


def test_a_rewind_before_anything_was_taken(outbox):
    offered(outbox, *POSITIONS)
    outbox.rewind(Progress(ORIGIN, POSITIONS[1]))
    offered(outbox, Position(400))
    assert [batch.progress.position for batch in take(outbox)] == [*POSITIONS[2:], Position(400)]


def test_a_taker_is_woken_by_an_offer(outbox):
    taken = []
    taker = threading.Thread(target=lambda: taken.extend(outbox.take(10, LONG_S)))
    taker.start()
    outbox.offer(events(1), progress(100))
    taker.join(LONG_S / 2)
    assert not taker.is_alive()
    assert [batch.sequence for batch in taken] == [range(2)]


def test_a_taker_is_woken_by_the_end(outbox):
    taker = threading.Thread(target=lambda: outbox.take(10, LONG_S))
    taker.start()
    outbox.close()
    taker.join(LONG_S / 2)
    assert not taker.is_alive()


def test_it_is_drained_when_closed_and_durable(outbox):
    outbox.offer(events(1), progress(100))
    assert not outbox.is_drained
    outbox.close()
    assert not outbox.is_drained
    (batch,) = take(outbox)
    outbox.acknowledge([batch.sequence])
    assert outbox.is_drained


def test_closed_alone_is_drained_and_idle_alone_is_not(outbox):
    assert not outbox.is_drained
    outbox.close()
    assert outbox.is_drained


def test_what_the_sink_holds_at_the_start_may_be_confirmed(outbox):
    outbox.begin_at(POSITIONS[1])
    assert (outbox.flush_lsn, outbox.is_idle) == (100, True)


def test_it_accounts_for_what_ends_where_a_batch_of_its_own_does(outbox):
    outbox.begin_at(POSITIONS[0])
    offered(outbox, POSITIONS[1], POSITIONS[3])
    assert [outbox.accounts_for(Progress(ORIGIN, position)) for position in POSITIONS] == [True, True, False, True]
    outbox.acknowledge([take(outbox)[0].sequence])
    assert [outbox.accounts_for(Progress(ORIGIN, position)) for position in POSITIONS] == [False, True, False, True]
    assert not outbox.accounts_for(None)
