"""What to close next and what to do with an outcome: closing's decisions, without a clock, a thread or a database.

Two lanes: deadlines, in the database's time, and second attempts, in monotonic time (a jump of the database's clock
must not hold them up). They never share a batch: an order that makes its statement fail would slow down healthy ones.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from msgspec import Struct, field

from cdcwatch.close.outcome import Action, Outcome, Unclosed, Verdict, consequence
from cdcwatch.close.retries import FAILED_BACKOFF, GIVEN_UP_BACKOFF, LOCKED_BACKOFF, Retries, Retry
from cdcwatch.instant import NEGATIVE_INFINITY_US

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cdcwatch.close.outcome import CloseReport
    from cdcwatch.deadline.schedule import Due, Schedule
    from cdcwatch.table import Key

Update = tuple["Key", int | None, int]
"""A key, its deadline in microseconds (None: it has none any more) and the row's version."""

# Into so many parts go orders of which one may break the connection: each time that costs, at worst, a time limit.
_PARTS: Final = 8
BROKE: Final = "the connection broke"


ATTEMPTS: Final = 8
# Over a quarter of a minute; what is still not there then is left to the sweep.
_UNSEEN_ATTEMPTS: Final = 16


class Settled(Struct):
    """What a batch came to, for metrics and for the worker."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    lateness_us: list[int] = field(default_factory=list)
    stalled: bool = False
    """A batch of first attempts in which nothing but errors came back: pause before the next one."""
    given_up: list[Unclosed] = field(default_factory=list)
    """Failed as often as is allowed just now: a dead letter each."""


class Closer:
    """The pending orders, in both lanes. Not thread-safe."""

    def __init__(
        self, schedule: Schedule, *, random: Callable[[], float], attempts: int = ATTEMPTS, deletes: bool = False
    ) -> None:
        """`random` gives the jitter, in [0, 1); `attempts` may fail before an order is given up.

        `deletes`: a close takes the row away (`close.action = "delete"`).
        """
        self.schedule = schedule
        self._deletes = deletes
        self._attempts = attempts
        self._random = random
        self._retries = Retries()
        self._retried_last = False
        self._in_flight: set[Key] = set()
        """Taken and not handed back."""
        self._found: dict[Key, bool] = {}
        """What the sweep found and is open as far as we know: whether it was tried."""
        self.recovered = 0
        """Closed of what the sweep found."""
        self._last_closed_us: int | None = None
        self._gone = 0
        """Orders that the table did not show, and the stream then took off: not counted yet."""

    def __len__(self) -> int:
        return len(self.schedule) + len(self._retries)

    @property
    def retrying(self) -> int:
        """Orders that were tried and wait to be tried again."""
        return len(self._retries)

    @property
    def locked_since_us(self) -> int | None:
        """Since when, by the monotonic clock, others hold the order that waits longest. Looks at every retry."""
        return min((one.since_us for one in self._retries if one.outcome is Outcome.LOCKED), default=None)

    @property
    def refused_since_us(self) -> int | None:
        """Since when, monotonic, closes are refused for the table or the role and not one has succeeded."""
        since_us = min((one.since_us for one in self._retries if one.is_tables_fault), default=None)
        if since_us is None or (self._last_closed_us is not None and self._last_closed_us > since_us):
            return None
        return since_us

    def apply(self, updates: Iterable[Update]) -> int | None:
        """Takes in what the stream says, and gives the earliest deadline among it. The stream's word ends a retry."""
        earliest_us: int | None = None
        put, discard, retries = self.schedule.put, self.schedule.discard, self._retries
        found = self._found
        for key, deadline_us, version in updates:
            if found and key not in self._in_flight:  # the stream knows of it; else it may be our own close
                found.pop(key, None)
            if retries and (deadline_us is not None or not self._awaits_answer(key)):
                tried = retries.discard(key)
                if deadline_us is None and tried is not None and tried.outcome is Outcome.GONE:
                    self._gone += key not in self._in_flight  # else its report counts it
            if deadline_us is None:
                discard(key)
                continue
            put(key, deadline_us, version)
            if earliest_us is None or deadline_us < earliest_us:
                earliest_us = deadline_us
        return earliest_us

    def load(self, dues: Iterable[Due]) -> int | None:
        """Takes in what was read from the table, where the stream has not spoken; the earliest deadline let in."""
        earliest_us: int | None = None
        for due in dues:
            # A retry knows this order better; a later change of it comes by the stream.
            if due.key in self._retries:
                continue
            let_in = self.schedule.put_if_absent(*due)
            if let_in and (earliest_us is None or due.deadline_us < earliest_us):
                earliest_us = due.deadline_us
        return earliest_us

    def knows(self, due: Due, now_us: int) -> bool:
        """Whether an order that is overdue in the table is in hand: pending, in flight, tried again or given up.

        One that is known with a deadline to come is not: the stream lacks what made it due. Beyond the window's end all
        is left to the window.
        """
        if due.key in self._retries or due.key in self._in_flight or due.deadline_us > self.schedule.window_end_us:
            return True
        known = self.schedule.get(due.key)
        return known is not None and known.deadline_us <= now_us

    def load_found(self, dues: Iterable[Due], now_us: int) -> int:
        """Takes in what the sweep has found and nobody here knows; how many those are."""
        count = 0
        for due in dues:
            if not self.knows(due, now_us):
                self.schedule.put(*due)
                self._found[due.key] = False
                count += 1
        return count

    @property
    def untried(self) -> int:
        """Orders that the sweep found and no close has come back for. Looks at all that it found."""
        return sum(not was_tried for was_tried in self._found.values())

    def found_but(self, stuck_since_us: int) -> tuple[int, int]:
        """Of what the sweep found and is open: how many may soon be closed, and how many are refused or held.

        `stuck_since_us`: held by others since then, by the monotonic clock, counts as held.
        """
        stuck = 0
        for key in self._found:
            retry = self._retries.get(key)
            if retry is not None and (
                retry.outcome is Outcome.FAILED
                or (retry.outcome is Outcome.LOCKED and retry.since_us <= stuck_since_us)
            ):
                stuck += 1
        return len(self._found) - stuck, stuck

    def keys(self) -> list[Key]:
        """All that are pending or tried again, in no order."""
        return [*self.schedule.keys(), *self._retries.keys()]

    def forget(self, keys: Iterable[Key]) -> int:
        """These are another's now, but for what the sweep found here; how many were forgotten."""
        before = len(self)
        for key in keys:
            if key not in self._found:
                self.schedule.discard(key)
                self._retries.discard(key)
        return before - len(self)

    def clear(self) -> None:
        """The table was emptied."""
        self.schedule.clear()
        self._found = {}
        self._retries.clear()

    def take(self, now_us: int, monotonic_us: int, limit: int) -> list[Due]:
        """The next batch: deadlines reached at `now_us` (the database's clock), or attempts due at `monotonic_us`."""
        batch = self._next_batch(now_us, monotonic_us, limit)
        self._in_flight.update([due.key for due in batch])
        return batch

    def _next_batch(self, now_us: int, monotonic_us: int, limit: int) -> list[Due]:
        retry_at_us = self._retries.next_us
        if retry_at_us is not None and retry_at_us <= monotonic_us and not self._retried_last:
            self._retried_last = True
            return self._retries.take(monotonic_us, limit)
        self._retried_last = False
        batch = self.schedule.pop_due(now_us, limit)
        return batch or self._retries.take(monotonic_us, limit)

    def delay_us(self, now_us: int, monotonic_us: int) -> int | None:
        """How long until something may be taken; None: nothing is pending."""
        deadline_us = self.schedule.next_deadline_us
        retry_at_us = self._retries.next_us
        delays = [
            at_us - since_us
            for at_us, since_us in ((deadline_us, now_us), (retry_at_us, monotonic_us))
            if at_us is not None
        ]
        return max(0, min(delays)) if delays else None

    def settle(self, report: CloseReport, monotonic_us: int) -> Settled:
        """Takes in what became of a batch: re-arms what moved, plans further attempts, counts."""
        settled = Settled()
        fresh = False
        if report.closed or report.claimed:
            self._last_closed_us = monotonic_us
        self._settle_closed(report, settled)
        for unclosed in report.unclosed:
            outcome, was_found = self._outcome(unclosed), unclosed.due.key in self._found
            self._in_flight.discard(unclosed.due.key)
            before = self._retries.get(unclosed.due.key)
            if not self._may_come(unclosed, before):
                settled.outcomes[outcome] += 1
            fresh = fresh or before is None
            if self._settle_unclosed(unclosed, monotonic_us):
                settled.given_up.append(unclosed)
            if was_found:
                self._settle_found(unclosed.due.key, outcome)
        is_all_refused = len(report.unclosed) == settled.outcomes[Outcome.FAILED]
        settled.stalled = fresh and is_all_refused and not report.closed and not report.claimed
        return settled

    def _settle_closed(self, report: CloseReport, settled: Settled) -> None:
        """Closed and claimed orders; and those gone that the stream took off since the last batch."""
        self._in_flight.difference_update([closed.key for closed in report.closed])
        for closed in report.closed:
            self._retries.discard(closed.key)
            if self._found:
                self.recovered += self._found.pop(closed.key, None) is not None
            if closed.deadline_us != NEGATIVE_INFINITY_US:
                settled.lateness_us.append(closed.lateness_us)
        settled.outcomes[Outcome.CLOSED] += len(report.closed)
        if self._gone:
            settled.outcomes[Outcome.GONE] += self._gone
            self._gone = 0
        for key in report.claimed:
            self._retries.discard(key)
            self._in_flight.discard(key)
            self.recovered += self._found.pop(key, None) is not None
        if report.claimed:
            settled.outcomes[Outcome.CLAIMED] += len(report.claimed)

    def give_back(self, batch: Sequence[Due], monotonic_us: int) -> None:
        """Takes a batch back untried; what the stream said meanwhile stands."""
        for due in batch:
            self._in_flight.discard(due.key)
            self._give_back(due, self._retries.get(due.key), monotonic_us)

    def doubt(self, batch: Sequence[Due], monotonic_us: int, *, broke: bool = False) -> list[Unclosed]:
        """Takes a batch back of which nobody knows whether it is closed: it is tried again, which tells.

        `broke`: the connection broke over it. From the second time on one of them may be what breaks it, and they come
        in ever smaller batches, with pauses. Given back: an order that has now broken it alone as often as is allowed.
        """
        random = self._random() if broke else 0.0  # one for all, so that they come back together
        given_up: list[Unclosed] = []
        for due in batch:
            self._in_flight.discard(due.key)
            if due.key in self._found:
                self._found[due.key] = True
            if due.key in self.schedule:
                continue
            known = self._retries.get(due.key) or Retry(due, None, 0, None, monotonic_us)
            doubted = known._replace(outcome=None, attempts=0, at_us=monotonic_us, since_us=monotonic_us)
            if broke:
                doubted = self._broken(doubted, len(batch), random)
                if doubted.breaks == self._attempts:
                    given_up.append(Unclosed(due, Outcome.FAILED, None, BROKE))
            self._retries.put(doubted)
        return given_up

    def untold(self, given_up: Iterable[Unclosed], monotonic_us: int) -> None:
        """No dead letter could be left of these: they fail once more first."""
        for unclosed in given_up:
            known = self._retries.get(unclosed.due.key)
            if known is not None:
                at_us = monotonic_us + FAILED_BACKOFF.delay_us(1, self._random())
                attempts, breaks = (min(count, self._attempts - 1) for count in (known.attempts, known.breaks))
                self._retries.put(known._replace(attempts=attempts, breaks=breaks, at_us=at_us))

    def _broken(self, doubted: Retry, together: int, random: float) -> Retry:
        """As it is to be tried again after the connection broke over it and others, `together` of them."""
        doubts = doubted.doubts + 1
        breaks = doubted.breaks + (together == 1)
        if doubts == 1:
            return doubted._replace(doubts=doubts, breaks=breaks)
        company, pause_us = max(1, together // _PARTS), LOCKED_BACKOFF.delay_us(doubts, random)
        outcome, attempts = doubted.outcome, doubted.attempts
        if breaks >= self._attempts:
            # Whatever the stream says of it now is news, and no echo.
            outcome, attempts, pause_us = Outcome.FAILED, breaks, GIVEN_UP_BACKOFF.delay_us(breaks, random)
        elif breaks:
            pause_us = FAILED_BACKOFF.delay_us(breaks, random)
        at_us = doubted.since_us + pause_us
        return doubted._replace(
            outcome=outcome, attempts=attempts, at_us=at_us, doubts=doubts, breaks=breaks, company=company
        )

    def _give_back(self, due: Due, before: Retry | None, monotonic_us: int) -> None:
        if before is not None:
            # Not among first attempts: what failed before may fail again.
            self._retries.put(before._replace(due=due, at_us=monotonic_us))
        else:
            self.schedule.put_if_absent(*due)

    def _awaits_answer(self, key: Key) -> bool:
        """Whether it may be our own close that took this order off, which only the row itself tells."""
        known = self._retries.get(key)
        return known is not None and known.outcome is None

    def _outcome(self, unclosed: Unclosed) -> Outcome:
        """`already_closed` is `found_closed` where an attempt of ours had an unknown end and the version fits it.

        So is `gone` where a close deletes: nothing is left that could tell.
        """
        due, outcome, row = unclosed[:3]
        if self._deletes and outcome is Outcome.GONE and self._awaits_answer(due.key):
            return Outcome.FOUND_CLOSED
        is_ours = outcome is Outcome.ALREADY_CLOSED and self._awaits_answer(due.key)
        return Outcome.FOUND_CLOSED if is_ours and row is not None and row.version in (0, due.version + 1) else outcome

    def _settle_unclosed(self, unclosed: Unclosed, monotonic_us: int) -> bool:
        """True when it is given up with this."""
        due, outcome, row = unclosed[:3]
        before = self._retries.discard(due.key)
        if due.key in self.schedule:
            return False  # the stream has spoken meanwhile
        verdict = consequence(outcome, due, row)
        if self._may_come(unclosed, before):
            verdict = Verdict(Action.RETRY, due)
        if verdict.action is Action.REARM:
            self.schedule.put_if_absent(*verdict.due)
        elif verdict.action is Action.GIVE_BACK:
            self._give_back(verdict.due, before, monotonic_us)
        elif verdict.action is Action.RETRY:
            is_same = before is not None and before.outcome is outcome
            attempts = before.attempts + 1 if before is not None and is_same else 1
            since_us = before.since_us if before is not None and is_same else monotonic_us
            is_given_up = outcome is Outcome.FAILED and attempts >= self._attempts and not unclosed.is_tables_fault
            backoff = FAILED_BACKOFF if outcome is Outcome.FAILED else LOCKED_BACKOFF
            pause = GIVEN_UP_BACKOFF if is_given_up else backoff
            at_us = monotonic_us + pause.delay_us(attempts, self._random())
            retry = Retry(verdict.due, outcome, attempts, at_us, since_us, is_tables_fault=unclosed.is_tables_fault)
            if before is not None and before.doubts:
                retry = retry._replace(doubts=before.doubts, breaks=before.breaks, company=before.company)
            self._retries.put(retry)
            return is_given_up and attempts == self._attempts
        return False

    def _may_come(self, unclosed: Unclosed, before: Retry | None) -> bool:
        """Whether the commit that told of this order may be one that others don't see yet: no row, or an older one.

        The stream has a commit once its record is flushed; others see it when the session that made it goes on, with
        synchronous replication when the standby has answered. What was seen in the table once is gone; where it was
        deleted, the stream's word ends this. Without a version an older row can't be told from a newer one.
        """
        due, outcome, row = unclosed[:3]
        is_unseen = row.version < due.version if row is not None else outcome is Outcome.GONE
        if not is_unseen or due.key in self._found:
            return False
        return before is None or (before.outcome is outcome and before.attempts < _UNSEEN_ATTEMPTS)

    def _settle_found(self, key: Key, outcome: Outcome) -> None:
        if key in self._retries or key in self.schedule:
            self._found[key] = outcome is not Outcome.DEFERRED
            return
        self._found.pop(key, None)
        self.recovered += outcome is Outcome.FOUND_CLOSED
