"""A partition becomes a worker's at any moment between commits, publishing, hearing and the read of the table: in the end
every open order is in memory, by its deadline or an earlier one, which the close would put right."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cdcwatch.close.clock import DatabaseClock
from cdcwatch.close.closer import Closer
from cdcwatch.close.part import PartAgenda
from cdcwatch.deadline.event import EventEncoder, Stamp
from cdcwatch.deadline.rule import CANCELLED, SCHEDULED, Derived
from cdcwatch.deadline.schedule import Due, Schedule
from cdcwatch.decode.change import Row
from cdcwatch.handoff.heard import Interpreter
from cdcwatch.handoff.member import Heard
from cdcwatch.pipeline.ownership import Ownership
from cdcwatch.pipeline.subscriber import Subscriber
from tests.fakes.table import WATCHED, FakeClock
from tests.murmur2 import partition_of

PARTITIONS = 2
KEYS = range(4)
NOW_US = 850_000_000_000_000
ENCODER = EventEncoder(WATCHED, system_identifier="7", database="shop")
STAMP = Stamp.of(7, NOW_US)

# What happens next: an order gets a deadline or loses it, which the reader may be sent before others see it; the table
# shows what was committed; the reader publishes the oldest change that it hasn't; the worker hears the oldest record that it hasn't; it gets a partition, or loses it; it reads a page of the table, or puts
# the page that it has read among its orders.
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from(KEYS), st.one_of(st.none(), st.integers(1, 9))),
        st.tuples(st.sampled_from(["show", "publish", "publish", "hear", "hear", "read", "load"])),
        st.tuples(st.sampled_from(["gain", "lose"]), st.integers(0, PARTITIONS - 1)),
    ),
    max_size=60,
)


class Handover:
    """Table, topic and one worker."""

    def __init__(self, *, overlap: int = 100) -> None:
        self._overlap = overlap
        closer = Closer(Schedule(window_end_us=NOW_US + 10**9), random=lambda: 0.5)
        self.closer = closer
        self.agenda = PartAgenda(closer, DatabaseClock(), FakeClock(), Ownership())
        self.table: dict[int, int] = {}
        self._seen: dict[int, int] = {}
        """What others see of the table."""
        self._unpublished: list[tuple[int, int | None]] = []
        self._topic: list[list[Heard]] = [[] for _ in range(PARTITIONS)]
        self._next: dict[int, int] = {}
        """Partition to the offset that is heard next."""
        self._page: list[Due] | None = None
        self._wants_read = False
        self._polled: list[object] = []
        self.subscriber = Subscriber(
            lambda _: self,
            Interpreter(WATCHED, "shop"),
            self.agenda,
            reload=self._reload,
            failed=lambda error: None,
            observer=self,
            now_s=lambda: 0.0,
        )

    # -- as a group and an observer ----------------------------------------------------------------------------------

    def poll(self):
        heard = []
        for one in self._polled:
            if callable(one):
                one()
            else:
                heard.append(one)
        return heard, True

    def partitions(self):
        return PARTITIONS

    def close(self):
        pass

    def heard(self, *, applied, skipped):
        assert not skipped

    def _step(self, *polled):
        self._polled = list(polled)
        assert self.subscriber.step() is not None

    def _reload(self):
        self._wants_read = True

    # -- what happens ------------------------------------------------------------------------------------------------

    def commit(self, key, deadline):
        if self.table.get(key) != self._seen.get(key):
            self.show()  # the next one waits for the row's lock, and sees what the first has done
        if deadline is None:
            if self.table.pop(key, None) is None:
                return
        else:
            self.table[key] = NOW_US + deadline
        self._unpublished.append((key, self.table.get(key)))

    def show(self):
        self._seen = dict(self.table)

    def publish(self):
        if self._unpublished:
            key, deadline_us = self._unpublished.pop(0)
            derived = (
                Derived(CANCELLED, None, None, "deleted")
                if deadline_us is None
                else Derived(SCHEDULED, Row(deadline_us, "pending", 0), None)
            )
            event = ENCODER.change(key, derived, STAMP, 1)
            partition = partition_of(str(key).encode(), PARTITIONS)
            self._topic[partition].append(Heard(partition, event.key, event.value))

    def hear(self):
        for partition, offset in self._next.items():
            if offset < len(self._topic[partition]):
                self._next[partition] += 1
                self._step(self._topic[partition][offset])
                return

    def gain(self, partition):
        if partition in self._next:
            return
        self._next[partition] = max(0, len(self._topic[partition]) - self._overlap)
        self._step(lambda: self.subscriber.gained([partition], PARTITIONS))

    def lose(self, partition):
        if self._next.pop(partition, None) is not None:
            self._step(lambda: self.subscriber.lost([partition], is_gone=False))

    def read(self):
        if self._wants_read and self._page is None:
            self._wants_read = False
            self._page = [Due(key, deadline_us, 0) for key, deadline_us in self._seen.items()]

    def load(self):
        if self._page is not None:
            page, self._page = self._page, None
            self.agenda.load(page)

    def _settle_read(self):
        for _ in range(2):  # a page that was read before is put in first
            self.load()
            self.read()
        self.load()

    def settle(self):
        """Everything is published, read and heard."""
        while self._unpublished:
            self.publish()
        self._settle_read()
        self.show()
        while any(offset < len(self._topic[partition]) for partition, offset in self._next.items()):
            self.hear()

    def missed(self):
        ours = {key: at_us for key, at_us in self.table.items() if self.agenda.part.owns(key)}
        known = {key: self.closer.schedule.get(key) for key in ours}
        return {key for key, at_us in ours.items() if known[key] is None or known[key].deadline_us > at_us}


def play(steps):
    handover = Handover()
    for name, *arguments in steps:
        getattr(handover, name)(*arguments)
    handover.settle()
    return handover


@given(steps=STEPS)
def test_no_open_order_is_missed_and_none_is_kept_that_is_anothers(steps):
    handover = play(steps)
    assert handover.missed() == set()
    assert all(handover.agenda.part.owns(key) for key in list(handover.closer.keys()))


def test_an_end_that_is_noted_after_the_read_would_be_noticed():
    key = next(key for key in KEYS if partition_of(str(key).encode(), PARTITIONS) == 0)
    for noted_late in (False, True):
        handover = Handover()
        handover.gain(0)
        handover.read()
        handover.load()
        handover.commit(key, 5)
        handover.show()
        handover.publish()
        handover._next[0] += noted_late
        handover.settle()
        assert handover.missed() == ({key} if noted_late else set())


def test_an_order_that_is_told_before_it_is_seen_is_heard_of_by_the_overlap():
    key = next(key for key in KEYS if partition_of(str(key).encode(), PARTITIONS) == 0)
    for overlap in (0, 1):
        handover = Handover(overlap=overlap)
        handover.commit(key, 5)
        handover.publish()
        handover.gain(0)
        handover.read()
        handover.load()
        handover.show()
        handover.settle()
        assert handover.missed() == (set() if overlap else {key})
