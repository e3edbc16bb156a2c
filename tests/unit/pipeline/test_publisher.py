"""The publisher's thread between an outbox and a broker that fails."""

from contextlib import contextmanager

import pytest

from cdcwatch.deadline.event import Event
from cdcwatch.deadline.position import Position
from cdcwatch.errors import PreconditionError, UnavailableError
from cdcwatch.handoff.outbox import Outbox
from cdcwatch.handoff.progress import Origin, Progress
from cdcwatch.handoff.sink import FencedError
from cdcwatch.pipeline import publisher as publishers
from cdcwatch.pipeline.beginning import StartOverError, StoppedError
from cdcwatch.pipeline.publisher import Publisher
from tests.fakes.sink import FakeBroker, FakeSink
from tests.waiting import wait_until

SLOT = "orders_slot"
ORIGIN = Origin("7", 1, "shop", SLOT)
IN_TIME_S = 20


class Immediately:
    """A back-off that doesn't wait."""

    def __init__(self, **_):
        pass

    def next_s(self):
        return 0.001

    def reset(self):
        pass


class Run:
    """A publisher at work, and what it said."""

    def __init__(self, *, is_exact=True, owns_slot=True, begin=None):
        self.broker = FakeBroker()
        self.is_exact = is_exact
        self.outbox = Outbox(1 << 20, lambda: None)
        self.begun, self.errors, self.owns_slot = [], [], owns_slot
        self.publisher = Publisher(
            FakeSink(self.broker, SLOT, is_transactional=is_exact),
            self.outbox,
            begin=begin or self._begin,
            owns_slot=self._owns_slot,
            failed=self.errors.append,
        )
        self.count = 0

    def _begin(self, _sink, progress):
        self.begun.append(progress)
        return progress or Progress(ORIGIN, Position())

    def _owns_slot(self):
        if isinstance(self.owns_slot, Exception):
            raise self.owns_slot
        return self.owns_slot

    def offer(self, events=3):
        for _ in range(events):
            self.count += 1
            self.outbox.offer([Event(b"1", b"%d" % self.count)], Progress(ORIGIN, Position(self.count)))

    def settle(self):
        wait_until(lambda: self.outbox.is_idle, IN_TIME_S, "everything is durable")

    def numbers(self):
        return [int(record.value) for record in self.broker.records]


@pytest.fixture(autouse=True)
def _no_waits(monkeypatch):
    monkeypatch.setattr(publishers, "Backoff", Immediately)


@contextmanager
def running(**how):
    run = Run(**how)
    run.publisher.start()
    try:
        yield run
    finally:
        run.broker.is_up = True
        run.outbox.acknowledge([batch.sequence for batch in run.outbox._unacknowledged])
        run.outbox.close()
        run.publisher.join(IN_TIME_S)
        assert not run.publisher.is_alive()


@pytest.mark.parametrize("is_exact", [True, False])
def test_events_become_durable_in_order(is_exact):
    with running(is_exact=is_exact) as run:
        for _ in range(5):
            run.offer()
        run.settle()
        assert run.numbers() == list(range(1, 16))
        assert run.outbox.flush_lsn == 15
        assert (run.begun, run.errors, run.publisher.is_open) == ([None], [], True)


def test_it_ends_when_the_outbox_is_closed_and_drained():
    with running() as run:
        run.offer()
        run.outbox.close()
        run.publisher.join(IN_TIME_S)
        assert not run.publisher.is_alive()
        assert run.numbers() == [1, 2, 3]


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_broker_that_is_away_delays_and_loses_nothing(is_exact):
    with running(is_exact=is_exact) as run:
        run.offer()
        run.settle()
        run.broker.is_up = False
        run.offer()
        if is_exact:
            wait_until(lambda: run.publisher.reopen_count > 3, IN_TIME_S, "it tries again and again")
            assert "away" in (run.publisher.last_error or "")
            assert not run.publisher.is_open
        assert run.outbox.flush_lsn == 3
        run.broker.is_up = True
        run.settle()
        assert run.numbers() == list(range(1, 7))
        assert run.begun == [None]  # the reader begins once


def test_what_was_committed_unknown_to_us_is_not_published_again():
    with running() as run:
        for cut in ("cuts_before_commit", "cuts_after_commit", "cuts_after_commit", "cuts_before_commit"):
            setattr(run.broker, cut, 1)
            run.offer()
            run.settle()
        assert run.numbers() == list(range(1, 13))
        assert run.publisher.reopen_count == 4


def test_a_fencing_by_the_brokers_own_time_out_is_got_over():
    with running() as run:
        run.offer()
        run.settle()
        run.broker.epochs[SLOT] += 1
        run.offer()
        run.settle()
        assert run.numbers() == list(range(1, 7))
        assert run.errors == []


def test_so_it_is_while_the_database_is_away():
    with running(owns_slot=UnavailableError("away", remedy="")) as run:
        run.settle()
        wait_until(lambda: run.publisher.is_open, IN_TIME_S, "the sink is open")
        run.broker.epochs[SLOT] += 1
        run.offer()
        run.settle()
        assert run.errors == []


def test_another_process_that_has_the_slot_ends_it():
    with running(owns_slot=False) as run:
        wait_until(lambda: run.publisher.is_open, IN_TIME_S, "the sink is open")
        run.broker.epochs[SLOT] += 1
        run.offer()
        run.publisher.join(IN_TIME_S)
        assert not run.publisher.is_alive()
        assert [type(error) for error in run.errors] == [FencedError]
        assert (run.numbers(), run.outbox.flush_lsn) == ([], 0)


def test_what_another_process_wrote_meanwhile_begins_it_anew():
    with running() as run:
        run.offer()
        run.settle()
        run.broker.epochs[SLOT] += 1
        run.broker.progress[SLOT] = Progress(ORIGIN, Position(run.count + 7))
        run.offer()
        run.publisher.join(IN_TIME_S)
        assert [type(error) for error in run.errors] == [StartOverError]
        assert run.numbers() == [1, 2, 3]


def test_what_no_retry_mends_ends_it():
    def begin(_sink, _progress):
        raise PreconditionError("a gap", remedy="accept it")

    with running(begin=begin) as run:
        run.publisher.join(IN_TIME_S)
        assert [str(error) for error in run.errors] == ["a gap"]


@pytest.mark.parametrize("is_exact", [True, False])
def test_a_refusal_after_the_beginning_is_waited_out(is_exact, monkeypatch):
    with running(is_exact=is_exact) as run:
        run.offer()
        run.settle()
        publish, refusals = FakeSink.publish, [PreconditionError("denied", remedy="grant Write")] * 3

        def refusing(sink, batches):
            if refusals:
                raise refusals.pop()
            publish(sink, batches)

        monkeypatch.setattr(FakeSink, "publish", refusing)
        run.offer()
        run.settle()
        assert run.numbers() == list(range(1, 7))
        assert (run.errors, run.publisher.reopen_count) == ([], 3)


@pytest.mark.parametrize("is_exact", [True, False])
def test_between_two_refusals_the_error_stands(is_exact, monkeypatch):
    """Open again is not well again: readiness doesn't flap between attempts."""
    run = Run(is_exact=is_exact)
    run.publisher.step(0.0)
    publish = FakeSink.publish
    run.offer()

    def refusing(_sink, _batches):
        raise PreconditionError("denied", remedy="grant Write")

    monkeypatch.setattr(FakeSink, "publish", refusing)
    assert run.publisher.step(0.0)  # refused: waits
    run.publisher._open()
    assert (run.publisher.is_open, run.publisher.last_error) == (True, "denied")
    monkeypatch.setattr(FakeSink, "publish", publish)
    run.publisher.step(0.0)
    assert (run.publisher.last_error, run.numbers()) == (None, [1, 2, 3])


def test_a_stop_before_the_sink_was_ever_open_ends_it():
    run = Run()
    run.broker.is_up = False
    run.publisher.start()
    wait_until(lambda: run.publisher.reopen_count > 0, IN_TIME_S, "it tries")
    run.publisher.request_stop()
    run.publisher.join(IN_TIME_S)
    assert not run.publisher.is_alive()


@pytest.mark.parametrize("error", [StoppedError(), UnavailableError("away", remedy="")])
def test_a_beginning_that_is_broken_off_by_the_stop_is_no_failure(error, caplog):
    def begin(_sink, _progress):
        run.publisher.request_stop()
        raise error

    run = Run(begin=begin)
    assert run.publisher.step(0) is None
    assert (run.errors, run.publisher.reopen_count) == ([], 0)
    assert "again in" not in caplog.text


def test_while_it_drains_it_does_not_try_without_a_pause():
    """A stop ends the long pauses; what fails at once would be tried thousands of times a second."""
    run = Run()
    paused_s = []

    class Nap:
        def wait(self, seconds):
            paused_s.append(seconds)
            if len(paused_s) == 3:
                run.broker.is_up = True

    run.publisher._drain_nap = Nap()
    run.publisher.step(0)  # opens
    run.offer()
    run.broker.is_up = False
    run.publisher.request_stop()
    run.outbox.close()
    run.publisher.run()
    assert len(paused_s) == 3
    assert all(0 < seconds <= publishers._DRAIN_NAP_S for seconds in paused_s)
    assert run.numbers() == [1, 2, 3]
