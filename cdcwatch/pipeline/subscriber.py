"""What `--role close` has in place of the reader: a thread that hears the topic, as a member of the consumer group.

That nothing falls between the table and the topic. Let a partition become ours:

1. its end E is noted, and we hear it from a little before E on (`OVERLAP_OFFSETS`);
2. its orders are let in (`take_over`), then the window is asked to read the table again.

A change whose event stands before E was committed before E was noted, so the read, which begins later, shows the row
as that change left it, or later. A change whose event stands at E or after it is heard. There is no third kind: an
event is published after its commit, and an open transaction's events lie at E or after it, as E is the end of what is
committed.

A commit may be told before it is seen: its record is flushed and sent to the reader, and only then does the backend
take itself off the list of running transactions. On a busy machine it may lose the processor in between for as long as
an event takes to the topic; then E lies behind the event, and the read doesn't show the row. That is what the little
before E is for. (With synchronous replication a commit waits for the standby in that state. If that is away for longer
than the overlap reaches back, and a partition changes hands just then, the sweep finds what was missed.)

Both may tell of one order, one before the other. What is heard wins over what is read (`put_if_absent`), whichever is
newer:

- Heard before it is read, and the read is older: the read is not let in. If the event took the order off, the older
  read puts it back: at its deadline the close finds it paid. A statement is lost, no order.
- Read before it is heard, and the event is older (the reader publishes late): the entry goes back to a state that is
  over. Its change to the present state is committed already, and its event stands further on in the same partition: it
  is heard next. If the deadline passes in between, the close re-reads the row and arms what it finds. If the present
  deadline passes in between, because the stream lags, the window reads what is due about now from the table (`lags`).

So the heap ends up where the topic ends, and until then a wrong entry costs a statement, never an order: the statement
decides, by the row as it is.

The compacted topic would not do in place of the table: the topic need not be compacted, and where it has a retention,
deadlines further ahead than that are gone from it; a reader of it would look at every order that ever was, and at all
deadlines beyond the horizon; and the table is what the close asks in the end anyhow.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

from cdcwatch.backoff import Backoff
from cdcwatch.errors import CdcwatchError, PreconditionError, UnavailableError
from cdcwatch.handoff.heard import Interpreter, Skipped, TableWide
from cdcwatch.log import told_of
from cdcwatch.pipeline.ownership import Ownership
from cdcwatch.pipeline.readiness import STRANGER_REMEDY, SubscriberSigns
from cdcwatch.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cdcwatch.close.closer import Update
    from cdcwatch.close.part import Part
    from cdcwatch.handoff.member import Heard, Holder, Member
    from cdcwatch.table import Key

_ASK_EVERY_S: Final = 2.0
LAG_S: Final = 1.0
_SILENT_S: Final = 5.0
"""Without an answer for so long, brokers count as away."""

SETTLING_S: Final = 600.0
"""Partitions were added: a producer may learn of it after five minutes only, librdkafka's topic.metadata.refresh.
Until then an order is also whose it was by the count before (`Ownership.owns`)."""

_log = logging.getLogger(__name__)


@runtime_checkable
class PartFeed(Protocol):
    """As of `PartAgenda`."""

    def apply(self, updates: Sequence[Update]) -> None:
        """Takes in what is told."""

    def take_over(self, part: Part) -> None:
        """From now on this part is ours."""

    def evict(self, is_gone: Callable[[Key], bool]) -> int:
        """Lets go of what is so."""
        ...


class HearingObserver(Protocol):
    """Where the figures go."""

    def heard(self, *, applied: int, skipped: Mapping[str, int]) -> None:
        """Records of the topic that changed something, and others by why they did not."""


class Subscriber(threading.Thread):
    """Owns the membership while it runs."""

    def __init__(
        self,
        join: Callable[[Holder], Member],
        interpreter: Interpreter,
        agenda: PartFeed,
        *,
        reload: Callable[[], None],
        failed: Callable[[CdcwatchError], None],
        observer: HearingObserver,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`reload`: has the window read the table again. `failed`: gets what no retry mends."""
        super().__init__(name="subscriber", daemon=True)  # a call into a broker that is away can't be interrupted
        self._join, self._interpreter, self._agenda = join, interpreter, agenda
        self._reload, self._failed, self._observer, self._now_s = reload, failed, observer, now_s
        self._stop_requested = threading.Event()
        self._backoff = Backoff(first_s=0.2, most_s=5.0)
        self._member: Member | None = None
        self._ownership = Ownership()
        self._held: frozenset[int] = frozenset()
        """Lost while no broker answers: nobody else can have been given them for certain, and we go on with them."""
        self._has_joined = self._was_told = False
        self._last_error = ""
        self._asked_s = self._answered_s = self._caught_up_s = self._stepped_s = now_s()
        self._unsettled_until_s = 0.0
        self._said: set[str] = set()

    # -- for others --------------------------------------------------------------------------------------------------

    @property
    def ownership(self) -> Ownership:
        """As it is now."""
        return self._ownership

    @property
    def caught_up_s(self) -> float:
        """When it had last heard all there was."""
        return self._caught_up_s

    @property
    def lags(self) -> bool:
        """Whether orders may be due that it has not heard of yet: the table is to be asked."""
        now_s = self._now_s()
        return (
            bool(self._last_error)
            or bool(self._held)
            or now_s < self._unsettled_until_s
            or bool(self._interpreter.stranger)
            or now_s - min(self._caught_up_s, self._answered_s + _ASK_EVERY_S) > LAG_S
        )

    def signs(self) -> SubscriberSigns:
        """How hearing does, for readiness. From any thread."""
        now_s, ownership = self._now_s(), self._ownership
        return SubscriberSigns(
            has_joined=self._has_joined,
            last_error=self._last_error,
            assigned=tuple(sorted(ownership.assigned)),
            partitions=ownership.partitions,
            partitions_before=max(ownership.before, default=0),
            stranger=self._interpreter.stranger,
            answered_age_s=now_s - self._answered_s,
            behind_s=now_s - self._caught_up_s,
            stepped_age_s=now_s - self._stepped_s,
        )

    def request_stop(self) -> None:
        """Leaves the group; the thread ends."""
        self._stop_requested.set()

    # -- the thread --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Until stopped or failed."""
        try:
            while not self._stop_requested.is_set():
                wait_s = self.step()
                if wait_s is None:
                    return
                if wait_s:
                    self._stop_requested.wait(wait_s)
        finally:
            self._leave()

    def step(self) -> float | None:
        """Joins, or takes in what has come. Seconds to wait before the next; None: it has failed."""
        self._stepped_s = self._now_s()
        try:
            if self._member is None:
                self._member = self._join(self)
            self._hear(self._member)
        except CdcwatchError as error:
            self._leave()
            passes = isinstance(error, UnavailableError) or (self._was_told and isinstance(error, PreconditionError))
            if not passes:
                self._failed(error)
                return None
            return self._wait(error)
        return 0.0

    def _wait(self, error: CdcwatchError) -> float:
        wait_s = self._backoff.next_s()
        remedy = f" (remedy: {error.remedy})" if str(error) != self._last_error else ""
        self._last_error = str(error)
        _log.warning("subscriber: %s; again in %.1f s%s", error, wait_s, remedy, extra=told_of(error))
        return wait_s

    def _leave(self) -> None:
        """What is ours stays so for now: it is closed as it is known, and read anew once we are back."""
        member, self._member = self._member, None
        self._has_joined = False
        self._held |= self._ownership.assigned
        if member is not None:
            member.close()

    def _hear(self, member: Member) -> None:
        heard, is_all = member.poll()
        if heard:
            self._take_in(heard)
        now_s = self._now_s()
        if now_s - self._asked_s >= _ASK_EVERY_S:
            self._asked_s = now_s
            self._ask(member)
            now_s = self._now_s()
        if is_all:
            self._caught_up_s = now_s
            self._note_stranger()
        if self._has_joined and not self._is_silent:
            self._backoff.reset()
            self._last_error = ""

    def _ask(self, member: Member) -> None:
        """Whether a broker answers, and how many partitions there are now."""
        try:
            count = member.partitions()
        except UnavailableError as error:
            if not self._last_error and self._is_silent:
                self._last_error = str(error)
                _log.warning("subscriber: %s; closing goes on with what is known and what the table shows", error)
            return
        self._answered_s = self._now_s()
        self._count(count)

    @property
    def _is_silent(self) -> bool:
        return self._now_s() - self._answered_s > _SILENT_S

    # -- partitions come and go: inside of `poll` --------------------------------------------------------------------

    def gained(self, partitions: list[int], count: int) -> None:
        """As of `Holder`."""
        if not self._has_joined:
            _log.info("subscriber: joined the group")
        self._has_joined = self._was_told = True
        self._answered_s = self._now_s()
        self._asked_s = 0.0  # at once: the group may have learned of partitions before we did
        if self._held:  # back again: what they hold was not kept up to date meanwhile
            self._drop(self._held)
        if count:
            self._count(count)
        if not partitions:
            return
        self._set(self._ownership.gaining(partitions))
        self._reload()
        _log.info("subscriber: got %s; has %s", _listed(partitions), self._described())

    def lost(self, partitions: list[int], *, is_gone: bool) -> None:
        """As of `Holder`.

        Where no broker answers, the group went on without us for want of our signs of life, or not at all: with the
        brokers away nobody may be there to close what we leave. Two who close one order are one statement too many.
        """
        self._has_joined = self._has_joined and not is_gone
        self._asked_s = 0.0
        if is_gone and not self._answers():
            self._held |= frozenset(partitions)
            _log.warning(
                "subscriber: the topic is away, and the membership with it; closing goes on with what is known"
            )
            return
        self._drop(frozenset(partitions))
        said = "the group went on without us and has" if is_gone else "gave up"
        _log.info("subscriber: %s %s; has %s", said, _listed(partitions), self._described())

    def _drop(self, partitions: frozenset[int]) -> None:
        self._held -= partitions
        self._set(self._ownership.losing(partitions))
        self._agenda.evict(self._ownership.has_lost)

    def _answers(self) -> bool:
        member = self._member
        if member is None:
            return False
        try:
            member.partitions()
        except CdcwatchError:
            return False
        return True

    def _count(self, count: int) -> None:
        """Partitions were added: keys move.

        The reader learns of it within five minutes, and tells in the old ones until then; the group learns of it with
        its members' next refresh, and nobody has the new ones until then. So what is due is asked of the table
        meanwhile, an order is whose it was before as well, and all is read once more at the end of that.
        """
        before = self._ownership.partitions
        if count != before:
            self._set(self._ownership.counting(count))
            if before:
                _log.warning("the topic has %s now, %d before: orders change hands", _partitions(count), before)
                self._unsettled_until_s = self._now_s() + SETTLING_S
                self._reload()
        elif self._unsettled_until_s and self._now_s() >= self._unsettled_until_s:
            self._unsettled_until_s = 0.0
            self._set(self._ownership.settled())
            self._reload()

    def _set(self, ownership: Ownership) -> None:
        self._ownership = ownership
        self._agenda.take_over(ownership)

    def _described(self) -> str:
        ownership = self._ownership
        return f"{len(ownership.assigned)} of {_partitions(ownership.partitions)}"

    # -- records -----------------------------------------------------------------------------------------------------

    def _take_in(self, heard: list[Heard]) -> None:
        updates: list[Update] = []
        skipped: Counter[str] = Counter()
        applied = 0
        for partition, key, value in heard:
            if partition not in self._ownership.assigned:
                continue  # lost while it came
            told = self._interpreter.read(key, value)
            if isinstance(told, Skipped):
                skipped[told] += 1
                self._note_skipped(told, partition)
                continue
            applied += 1
            if not isinstance(told, TableWide):
                updates.append(told)
                continue
            self._agenda.apply(updates)
            updates = []
            self._take_in_table_wide(told, partition)
        self._agenda.apply(updates)
        self._observer.heard(applied=applied, skipped=skipped)

    def _take_in_table_wide(self, told: TableWide, partition: int) -> None:
        if told is TableWide.GAP:
            self._reload()
            return
        ownership = self._ownership
        self._agenda.evict(lambda key: ownership.partition(key) == partition)

    def _note_stranger(self) -> None:
        stranger = self._interpreter.stranger
        if stranger and stranger not in self._said:
            self._said.add(stranger)
            _log.warning(
                "subscriber: the topic tells of %s alone, not of this table; orders are closed by what the table shows"
                " (remedy: %s)",
                stranger,
                STRANGER_REMEDY,
            )

    def _note_skipped(self, why: Skipped, partition: int) -> None:
        if why not in self._said:
            self._said.add(why)
            _log.warning(
                "subscriber: a record of partition %d tells nothing here (%s); further ones are counted only",
                partition,
                why,
            )


def _partitions(count: int) -> str:
    return counted(count, "partition")


def _listed(partitions: Sequence[int]) -> str:
    return f"{_partitions(len(partitions))} ({', '.join(map(str, sorted(partitions)))})" if partitions else "none"
